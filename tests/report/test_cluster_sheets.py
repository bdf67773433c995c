"""Groups as a table and as pages."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.histogram_describer import HistogramDescriber, draw_things
from helpers.parsed_page import Page
from insclr.api import cluster
from insclr.data.images import list_images
from insclr.errors import UserError
from insclr.feedback.entries import answer, name_thing
from insclr.feedback.groups import Cluster
from insclr.report.cluster_sheets import write_clusters
from insclr.retrieval.index import index_images
from insclr.store import IndexedImage, Store, StoreInfo, create_store, open_store

HOSTILE = 'a"><img src=x onerror=alert(1)>&.png'


def grouped(tmp_path: Path, *groups: list[str]) -> tuple[list[Cluster], Store]:
    """A store of the named images, whose files need not exist, and the groups they are in."""
    store = create_store(tmp_path / "store", StoreInfo("m", "f", 1, tmp_path))
    names = [name for group in groups for name in group]
    images = [IndexedImage(name, name, 1, 1, {"room": "attic"}) for name in names]
    store.upsert(images, np.ones((len(names), 1), dtype=np.float32))
    rows = {row.image.path: row for row in store.rows_by_path().values()}
    return [Cluster(tuple(rows[name] for name in group)) for group in groups], store


def sheet(out, number=1):
    return Page((out / "sheets" / f"{number:04d}.html").read_text(encoding="utf-8"))


def test_groups_are_written_as_a_table_and_a_page(tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (30, 60), "red").save(tmp_path / name)
    write_clusters(*grouped(tmp_path, ["a.png", "b.png", "gone.png"], ["c.png", "d.png"]), tmp_path / "out")
    with (tmp_path / "out" / "clusters.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["group"], row["path"]) for row in rows] == [
        ("1", "a.png"),
        ("1", "b.png"),
        ("1", "gone.png"),
        ("2", "c.png"),
        ("2", "d.png"),
    ]
    assert rows[0]["room"] == "attic"
    assert [file.name for file in (tmp_path / "out" / "sheets").iterdir()] == ["0001.html"]
    page = sheet(tmp_path / "out")
    assert "2 things in 5 photos" in page.text
    assert page.text.index("Group 1 3 photos") < page.text.index("Group 2 2 photos")
    shown = [attributes["class"] for attributes in page.having_class("pic")]
    assert shown == ["pic t0", "pic t1", "pic", "pic", "pic"]  # files that are gone leave their names


def test_a_page_loads_nothing_and_file_names_stay_text(tmp_path):
    Image.new("RGB", (30, 60), "red").save(tmp_path / HOSTILE)
    write_clusters(*grouped(tmp_path, [HOSTILE, "<script>.png"]), tmp_path / "out")
    page = sheet(tmp_path / "out")
    assert not page.loads
    assert page.attribute("aria-label") == [HOSTILE, "<script>.png"]
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert not page.attribute("onerror")


def test_many_groups_take_several_pages_and_a_large_one_is_cut(tmp_path):
    groups = [[f"{group}-{i}.png" for i in range(70)] for group in range(8)]
    write_clusters(*grouped(tmp_path, *groups), tmp_path / "out")
    first, second = sheet(tmp_path / "out", 1), sheet(tmp_path / "out", 2)
    assert len(first.having_class("tile")) == 6 * 64  # a seventh group would be more than 400 photos
    assert len(second.having_class("tile")) == 2 * 64
    assert "+ 6 more" in first.text
    assert "Group 7 70 photos" in second.text
    assert set(first.attribute("href")) == {"0002.html"}
    assert set(second.attribute("href")) == {"0001.html"}
    assert not first.loads


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    groups, store = grouped(tmp_path, ["a.png", "b.png"])
    write_clusters(groups, store, tmp_path / "out")
    write_clusters(groups, store, tmp_path / "out")
    (tmp_path / "out" / "mine.txt").write_text("precious")
    with pytest.raises(UserError, match="holds other files"):
        write_clusters(groups, store, tmp_path / "out")


def test_a_spreadsheet_runs_no_cell(tmp_path):
    clusters, store = grouped(tmp_path, ["=HYPERLINK(1).png", "-b.png"])
    write_clusters(clusters, store, tmp_path / "out")
    with (tmp_path / "out" / "clusters.csv").open() as file:
        assert [row["path"] for row in csv.DictReader(file)] == ["'=HYPERLINK(1).png", "'-b.png"]


def test_groups_hold_what_people_named_and_told_apart(tmp_path: Path) -> None:
    draw_things(tmp_path / "photos", 3, 4)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "store")
    store = open_store(tmp_path / "store")
    image = {path: row.image.hash for path, row in store.rows_by_path().items()}
    store.append(name_thing("thing-00", "mug", [image["0/0.png"], image["2/0.png"]]))
    store.append([answer(image["0/0.png"], [], [image["0/1.png"]])])
    groups = cluster(tmp_path / "store", tmp_path / "groups")
    (mug,) = [group for group in groups if "0/0.png" in group]
    assert "2/0.png" in mug
    assert "0/1.png" not in mug
    with (tmp_path / "groups" / "clusters.csv").open() as file:
        named = {row["path"]: row["thing"] for row in csv.DictReader(file)}
    assert (named["0/0.png"], named["2/0.png"], named["1/0.png"]) == ("mug", "mug", "")
