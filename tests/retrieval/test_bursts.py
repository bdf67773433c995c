"""Bursts: photos of one camera seconds apart, the sharp and well exposed one suggested, no copies sought."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from helpers.called import call
from helpers.histogram_describer import HistogramDescriber
from insclr.data.images import list_images
from insclr.retrieval.bursts import find_bursts, measure_quality
from insclr.retrieval.index import index_images
from insclr.store import Store, open_store


def shoot(file: Path, taken: str, camera: str = "Box", blur: float = 0, gain: float = 1) -> None:
    noise = np.random.default_rng(0).integers(60, 200, (30, 40, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((400, 300), Image.Resampling.NEAREST)
    image = image.filter(ImageFilter.GaussianBlur(blur)) if blur else image
    exif = Image.Exif()
    exif[0x0110] = camera
    exif.get_ifd(0x8769)[0x9003] = taken
    image.point(lambda level: min(255, round(level * gain))).save(file, exif=exif)


def make_store(folder: Path) -> Store:
    photos = folder / "photos"
    photos.mkdir()
    shoot(photos / "a.png", "2024:05:01 12:00:00", blur=4)
    shoot(photos / "b.png", "2024:05:01 12:00:02")
    shoot(photos / "c.png", "2024:05:01 12:00:05", gain=3)  # three seconds after b, washed out
    shoot(photos / "d.png", "2024:05:01 12:00:09")  # four seconds later
    shoot(photos / "e.png", "2024:05:01 12:00:01", camera="Other")
    Image.new("RGB", (40, 30)).save(photos / "f.png")
    index_images(HistogramDescriber(), list_images(photos), folder / "store")
    return open_store(folder / "store")


def test_photos_of_one_camera_seconds_apart_are_a_burst(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    (burst,) = find_bursts(store)
    assert [row.image.path for row in burst.rows] == ["a.png", "b.png", "c.png"]
    assert burst.best.image.path == "b.png"
    assert [len(one.rows) for one in find_bursts(store, 4)] == [4]
    assert [len(one.rows) for one in find_bursts(store, 2)] == [2]


def test_a_file_that_is_gone_is_never_suggested(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    (tmp_path / "photos" / "b.png").unlink()
    assert find_bursts(store)[0].best.image.path == "c.png"
    assert measure_quality(tmp_path / "photos" / "b.png") == 0


def test_the_command_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path).close()
    status, shown, _ = call(capsys, "bursts", tmp_path / "store")
    assert status == 0
    assert "* b.png" in shown
    assert "1 burst of photos" in shown
    line = call(capsys, "bursts", tmp_path / "store", "--json")[1].splitlines()[0]
    assert json.loads(line) == {"photos": ["a.png", "b.png", "c.png"], "best": "b.png"}
    assert len(list((tmp_path / "photos").iterdir())) == 6
