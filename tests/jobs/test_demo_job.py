"""The demo as a newcomer runs it, on a smaller collection."""

from functools import partial
from pathlib import Path

import pytest

from insclr.data.labels import read_labels
from insclr.describe.pipeline import describe_images
from insclr.evaluation.evaluate import evaluate_labels
from insclr.jobs import demo
from insclr.model.model_file import resolve_model
from insclr.store import open_store
from insclr_demo import draw_collection


def test_the_demo_tells_what_its_model_and_its_store_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(draw_collection, things=5, views=8, size=64, workers=1)
    monkeypatch.setattr(demo, "draw_collection", small)
    told: list[str] = []
    done = demo.run_demo(tmp_path / "d", "fast", told.append)
    labels = read_labels(tmp_path / "d" / "collection" / "labels.csv")
    described = describe_images(resolve_model(tmp_path / "d" / "run"), labels.images)
    assert done.after.map == pytest.approx(evaluate_labels(described, labels).map, abs=0.1)
    assert open_store(tmp_path / "d" / "store").count() == 40
    assert (tmp_path / "d" / "run" / "report.html").exists()
    trained = (tmp_path / "d" / "run" / "model.safetensors").stat().st_mtime_ns
    again = demo.run_demo(tmp_path / "d", "fast", told.append)
    assert (again.before.map, again.after.map) == (done.before.map, done.after.map)
    assert (tmp_path / "d" / "run" / "model.safetensors").stat().st_mtime_ns == trained
    assert "40 images in the store" in "\n".join(told)
