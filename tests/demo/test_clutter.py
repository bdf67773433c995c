"""Busy photos: small things among others, with boxes that are true."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from insclr.data.labels import read_labels
from insclr.errors import UserError
from insclr_demo import QUERIES, draw_collection
from insclr_demo.catalogue import catalogue
from insclr_demo.clutter import busy_photo
from insclr_demo.scene import cut_out
from insclr_demo.solids import Solid, build
from insclr_demo.surfaces import Panel


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_collection(
        tmp_path_factory.mktemp("demo") / "c", things=2, views=3, size=64, workers=1, clutter=True
    )


def rows(collection: Path) -> list[dict[str, str]]:
    with (collection / "labels.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_labels_name_every_photo_its_role_and_the_box_of_the_small_ones(drawn: Path) -> None:
    listed = rows(drawn)
    assert {row["path"] for row in listed} == {p.relative_to(drawn).as_posix() for p in drawn.rglob("*.jpg")}
    assert [row["role"] for row in listed].count("query") == 2 * QUERIES
    assert all(bool(row["x1"]) == (row["role"] == "index") for row in listed)
    labels = read_labels(drawn / "labels.csv")
    assert labels.boxes is not None
    assert labels.query_boxes == (None,) * len(labels)  # an index photo is searched as a whole


def test_a_thing_takes_15_to_40_percent_of_the_side_of_a_busy_photo(drawn: Path) -> None:
    for row in rows(drawn):
        if row["role"] == "index":
            with Image.open(drawn / row["path"]) as photo:
                assert photo.size == (128, 128)
            left, top, right, bottom = (int(row[side]) for side in ("x1", "y1", "x2", "y2"))
            assert 0 <= left < right <= 128
            assert 0 <= top < bottom <= 128
            assert 0.12 <= max(right - left, bottom - top) / 128 <= 0.42


def test_the_thing_is_in_its_box() -> None:
    red, blue = _poster("red"), _poster("blue")

    def distractor(_: bool, __: np.random.Generator) -> Solid:
        return blue

    for seed in range(4):
        photo, (left, top, right, bottom) = busy_photo(red, distractor, 160, np.random.default_rng(seed))
        pixels = np.asarray(photo, np.int64)
        reddish = (pixels[..., 0] > 2 * pixels[..., 2]) & (pixels[..., 0] > 2 * pixels[..., 1])
        inside = reddish[top:bottom, left:right]
        assert inside.mean() > 0.4
        assert reddish.sum() - inside.sum() < 0.25 * inside.sum()  # what is outside are lights of the room


def _poster(colour: str) -> Solid:
    corners = np.array([(-0.5, 0.5, 0), (0.5, 0.5, 0), (0.5, -0.5, 0), (-0.5, -0.5, 0)], float)
    return Solid((Panel(corners, Image.new("RGBA", (16, 16), colour)),), flat=True)


def test_a_cut_out_has_the_size_asked_for() -> None:
    for number, thing in enumerate(catalogue(8, 0)):
        cut = cut_out(build(thing), 80, np.random.default_rng(number))
        assert cut.mode == "RGBA"
        assert 70 <= max(cut.size) <= 80


def test_a_second_run_leaves_it_alone_and_a_plain_collection_is_not_drawn_over_it(drawn: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in drawn.rglob("*.jpg")}
    draw_collection(drawn, things=2, views=3, size=64, clutter=True)
    assert before == {path: path.stat().st_mtime_ns for path in drawn.rglob("*.jpg")}
    with pytest.raises(UserError, match="holds another demo collection"):
        draw_collection(drawn, things=2, views=3, size=64)
