"""The gallery: who joins a thing that people named."""

from pathlib import Path

import numpy as np
import pytest

from helpers.histogram_describer import HistogramDescriber, draw_things
from insclr.data.images import list_images
from insclr.feedback.entries import add_images, answer, name_thing
from insclr.feedback.joining import find_split
from insclr.feedback.names import build_gallery
from insclr.retrieval.index import index_images
from insclr.retrieval.score import UNCALIBRATED
from insclr.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    draw_things(tmp_path / "photos", 4, 6)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "store")
    return open_store(tmp_path / "store")


def paths_of(store: Store, thing: str) -> set[str]:
    return {row.image.path for row in build_gallery(store).thing(thing).rows}


def name_all_but(store: Store, left: str) -> None:
    for thing in range(4):
        rows = store.rows_by_path().items()
        images = [row.image.hash for path, row in rows if path.startswith(f"{thing}/") and path != left]
        store.append(name_thing(f"thing-{thing:02}", f"name {thing}", images))


def test_a_photo_joins_a_thing_by_its_score_unless_it_was_told_from_that_thing(store: Store) -> None:
    image = {path: row.image.hash for path, row in store.rows_by_path().items()}
    named = [f"0/{view}.png" for view in range(5)]
    name_all_but(store, "0/5.png")
    assert paths_of(store, "thing-00") == {*named, "0/5.png"}
    # Not the thing of another photo: that says nothing about the mug.
    store.append([answer(image["2/0.png"], [], [image["0/5.png"]])])
    assert paths_of(store, "thing-00") == {*named, "0/5.png"}
    store.append([answer(image["0/5.png"], [], [image["0/1.png"]])])
    assert paths_of(store, "thing-00") == set(named)


def test_where_little_is_named_a_photo_waits_for_a_person(store: Store) -> None:
    image = {path: row.image.hash for path, row in store.rows_by_path().items()}
    named = [f"0/{view}.png" for view in range(5)]
    store.append(name_thing("thing-00", "mug", [image[path] for path in named]))
    gallery = build_gallery(store)
    assert paths_of(store, "thing-00") == set(named)
    assert [row.image.path for row, _ in gallery.thing("thing-00").proposed] == ["0/5.png"]
    assert "0/5.png" in [row.image.path for row in gallery.alone]  # it is in one place, and found there
    store.append(add_images("thing-00", [image["0/5.png"]]))
    assert paths_of(store, "thing-00") == {*named, "0/5.png"}


def test_what_was_named_as_a_group_is_not_said_to_be_by_a_person_until_it_is(store: Store) -> None:
    image = {path: row.image.hash for path, row in store.rows_by_path().items()}
    store.append(name_thing("thing-00", "mug", [image[f"0/{view}.png"] for view in range(5)], grouped=True))
    store.append(add_images("thing-00", [image["0/1.png"]]))
    assert build_gallery(store).thing("thing-00").confirmed == {image["0/1.png"]}
    # Whatever the group does later, the photos stay where a person has seen them.
    assert paths_of(store, "thing-00") == {f"0/{view}.png" for view in range(5)}


def test_a_group_of_two_things_is_marked_and_its_split_proposed() -> None:
    generator = np.random.default_rng(0)

    def photos(axis: int, count: int) -> np.ndarray:
        rows = 0.15 * generator.standard_normal((count, 32)).astype(np.float32)
        rows[:, axis] += 1
        rows[:, 0] += 0.5  # what all photos have in common
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    mixed = np.concatenate([photos(1, 9), photos(2, 5)])
    assert sorted(find_split(mixed, UNCALIBRATED)) == [9, 10, 11, 12, 13]
    assert find_split(photos(1, 14), UNCALIBRATED) == []
    large = np.concatenate([photos(1, 1100), photos(2, 700)])[generator.permutation(1800)]
    assert len(find_split(large, UNCALIBRATED)) == 700
