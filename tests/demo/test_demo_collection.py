"""The demo collection: what it holds, that it is the same every time, and what it refuses to touch."""

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from insclr.errors import UserError
from insclr_demo import draw_collection
from insclr_demo.camera import Camera, Light
from insclr_demo.catalogue import KINDS, catalogue, distractors
from insclr_demo.solids import build
from insclr_demo.surfaces import Panel, Shell, homography

SMALL: dict[str, Any] = {"things": 4, "views": 3, "size": 96}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_collection(tmp_path_factory.mktemp("demo") / "collection", **SMALL, workers=1)


def rows(collection: Path) -> list[dict[str, str]]:
    with (collection / "labels.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def content(collection: Path) -> dict[str, bytes]:
    return {
        path.relative_to(collection).as_posix(): path.read_bytes()
        for path in collection.rglob("*")
        if path.is_file()
    }


def test_labels_name_every_image_and_nothing_else(drawn: Path) -> None:
    listed = {row["path"] for row in rows(drawn)}
    assert listed == {path.relative_to(drawn).as_posix() for path in drawn.rglob("*.jpg")}
    assert list(rows(drawn)[0]) == ["path", "instance"]


def test_every_thing_has_its_number_of_views_in_a_folder_of_its_name(drawn: Path) -> None:
    assert sorted(Counter(row["instance"] for row in rows(drawn)).values()) == [3, 3, 3, 3]
    assert all(Path(row["path"]).parts[:2] == ("images", row["instance"]) for row in rows(drawn))


def test_every_image_is_a_colour_jpeg_of_the_size_asked_for(drawn: Path) -> None:
    for row in rows(drawn):
        with Image.open(drawn / row["path"]) as photo:
            photo.load()
            assert (photo.format, photo.mode, photo.size) == ("JPEG", "RGB", (96, 96))


def test_no_two_photos_are_alike_and_none_is_blank(drawn: Path) -> None:
    photos = [np.asarray(Image.open(drawn / row["path"]), np.float32) for row in rows(drawn)]
    assert all(photo.std() > 10 for photo in photos)
    assert all(np.abs(a - b).mean() > 5 for i, a in enumerate(photos) for b in photos[:i])


def test_same_seed_gives_same_bytes_with_any_number_of_workers(drawn: Path, tmp_path: Path) -> None:
    again = draw_collection(tmp_path / "again", **SMALL, workers=2)
    assert content(again) == content(drawn)


def test_another_seed_gives_other_things(drawn: Path, tmp_path: Path) -> None:
    other = draw_collection(tmp_path / "other", things=4, views=1, size=96, seed=1, workers=1)
    assert not {row["instance"] for row in rows(other)} & {row["instance"] for row in rows(drawn)}


def test_more_things_or_views_keep_those_already_drawn(drawn: Path, tmp_path: Path) -> None:
    larger = draw_collection(tmp_path / "larger", things=5, views=4, size=96, workers=1)
    first, second = content(drawn), content(larger)
    assert all(second[name] == data for name, data in first.items() if name.endswith(".jpg"))


def test_a_second_run_leaves_a_finished_collection_alone(drawn: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in drawn.rglob("*")}
    assert draw_collection(drawn, **SMALL) == drawn
    assert before == {path: path.stat().st_mtime_ns for path in drawn.rglob("*")}


def test_a_collection_with_a_lost_image_is_drawn_again(tmp_path: Path) -> None:
    folder = draw_collection(tmp_path / "c", things=1, views=2, size=64, workers=1)
    whole = content(folder)
    (folder / rows(folder)[0]["path"]).unlink()
    draw_collection(folder, things=1, views=2, size=64, workers=1)
    assert content(folder) == whole


def test_refuses_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "holiday.txt").write_text("mine")
    with pytest.raises(UserError, match="not a demo collection"):
        draw_collection(tmp_path, **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.txt"]


def test_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="not a demo collection"):
        draw_collection(tmp_path / "file", **SMALL)


def test_refuses_to_replace_a_collection_drawn_otherwise(drawn: Path) -> None:
    with pytest.raises(UserError, match="another demo collection"):
        draw_collection(drawn, **SMALL, seed=7)


@pytest.mark.parametrize("wrong", [{"things": 0}, {"views": 0}, {"size": 8}, {"workers": 0}])
def test_refuses_impossible_numbers(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="at least"):
        draw_collection(tmp_path / "c", **{**SMALL, **wrong})


def test_the_catalogue_has_every_kind_unique_names_and_families_of_look_alikes() -> None:
    things = catalogue(60, seed=0)
    assert len({thing.name for thing in things}) == 60
    assert {thing.kind for thing in things} == set(KINDS)
    families = Counter((thing.kind, thing.brand) for thing in things)
    assert sum(size for size in families.values() if size > 1) >= 40
    for one in things:
        for other in things:
            if one is not other and (one.kind, one.brand) == (other.kind, other.brand):
                assert (one.layout, one.form, one.voice) == (other.layout, other.form, other.voice)
                assert one.title != other.title
                assert (one.inks, one.picture) != (other.inks, other.picture)


def test_names_stay_unique_when_the_brands_run_out() -> None:
    assert len({thing.name for thing in catalogue(400, seed=0)}) == 400


def test_what_stands_about_is_never_in_the_catalogue() -> None:
    assert not {thing.brand for thing in distractors(0)} & {thing.brand for thing in catalogue(400, seed=0)}


def test_homography_takes_the_four_pixels_to_the_four_points() -> None:
    pixels = np.array([(3, 4), (90, 10), (80, 70), (5, 60)], float)
    source = np.array([(0, 0), (50, 0), (50, 40), (0, 40)], float)
    a, b, c, d, e, f, g, h = homography(pixels, source)
    for (x, y), expected in zip(pixels, source, strict=True):
        below = g * x + h * y + 1
        np.testing.assert_allclose(
            ((a * x + b * y + c) / below, (d * x + e * y + f) / below), expected, atol=1e-9
        )


def test_the_camera_sees_right_and_up_where_they_are() -> None:
    camera = Camera.around(np.zeros(3), azimuth=0, elevation=0, roll=0, distance=4)
    # At distance 4 and focal 1 a unit is a quarter; pixels count downwards.
    np.testing.assert_allclose(
        camera.project(np.array([(1, 0, 0), (0, 1, 0)], float)), [(0.25, 0), (0, -0.25)], atol=1e-12
    )
    framed = camera.frame(np.array([(-1, 0, 0), (1, 0, 0)], float), middle=(50, 30), longest=40)
    np.testing.assert_allclose(framed.project(np.array([(-1, 0, 0), (1, 0, 0)], float)), [(30, 30), (70, 30)])


def test_a_panel_shows_its_printed_side_only() -> None:
    print_ = Image.new("RGBA", (10, 10), (200, 0, 0, 255))
    panel = Panel(np.array([(-1, 1, 0), (1, 1, 0), (1, -1, 0), (-1, -1, 0)], float), print_)
    light = Light(np.array([0.0, 0.0, 1.0]), ambient=1.0)
    for azimuth, seen in ((0.0, (200, 0, 0, 255)), (np.pi, (0, 0, 0, 0))):
        camera = Camera.around(np.zeros(3), azimuth, 0, 0, 5).frame(panel.outline, (20, 20), 30)
        canvas = Image.new("RGBA", (40, 40))
        panel.paint(canvas, camera, light)
        assert canvas.getpixel((20, 20)) == seen
        assert canvas.getpixel((1, 1)) == (0, 0, 0, 0)


def test_a_shell_shows_the_middle_of_its_texture_in_front() -> None:
    texture = np.zeros((4, 8, 3), np.uint8)
    texture[:, 3:5] = 255  # the two columns around the middle: a quarter turn
    shell = Shell(1.0, 0.5, 0.5, texture, gloss=0.0)
    light = Light(np.array([0.0, 0.0, 1.0]), ambient=1.0)
    for azimuth, level in ((0.0, 255), (np.pi, 0)):
        camera = Camera.around(np.array([0, 0.5, 0]), azimuth, 0, 0, 5).frame(shell.outline, (20, 20), 30)
        canvas = Image.new("RGBA", (40, 40))
        shell.paint(canvas, camera, light)
        assert canvas.getpixel((20, 20)) == (level, level, level, 255)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_about_one_unit_large_and_stands_on_the_ground(kind: str) -> None:
    thing = next(thing for thing in catalogue(60, seed=0) if thing.kind == kind)
    outline = build(thing).outline
    assert 0.8 < np.ptp(outline, axis=0).max() < 1.3
    if not build(thing).flat:
        assert outline[:, 1].min() == pytest.approx(0)
