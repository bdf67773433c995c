"""The commands about what people said."""

from pathlib import Path

import pytest

from helpers.called import call
from helpers.histogram_describer import HistogramDescriber, draw_things
from insclr.data.images import list_images
from insclr.retrieval.index import index_images


def test_names_come_in_are_listed_go_out_and_are_undone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw_things(tmp_path / "photos", 3, 4)
    store = tmp_path / "store"
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), store)
    assert call(capsys, "names", "import", store, "folders")[:2] == (0, "12 images named\n")
    status, shown, _ = call(capsys, "names", "list", store)
    assert status == 0
    assert shown.splitlines()[:3] == ["     4  0", "     4  1", "     4  2"]
    assert call(capsys, "names", "export", store, "--out", tmp_path / "n.csv")[0] == 0
    assert (tmp_path / "n.csv").read_text().count("person") == 12
    status, shown, _ = call(capsys, "answers", "list", store)
    assert status == 0
    entries = shown.splitlines()
    assert len(entries) == 6  # a name and its photos, three times
    # One undo takes back the whole import.
    assert call(capsys, "answers", "undo", store)[1] == "undone: 12 photos added to 0, 1, 2\n"
    status, _, said = call(capsys, "answers", "undo", store, entries[0].split()[0])  # undone already
    assert status == 2
    assert "nothing to undo" in said
    status, shown, _ = call(capsys, "answers", "proof", store)
    assert (status, shown) == (0, "Now     0 of 30 results judged\n")
    assert call(capsys, "names", "import", store, "folders")[:2] == (0, "12 images named\n")
    status, _, said = call(
        capsys,
        "train",
        tmp_path / "photos",
        "--out",
        tmp_path / "run",
        "--recipe",
        "simclr",
        "--answers",
        store,
    )
    assert status == 2
    assert "cannot learn from answers" in said
    assert not (tmp_path / "run").exists()
