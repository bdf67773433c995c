"""The gallery: who joins a thing that people named."""

from pathlib import Path

import pytest

from helpers.histogram_describer import HistogramDescriber, draw_things
from insclr.data.images import list_images
from insclr.feedback.entries import answer, name_thing
from insclr.feedback.names import build_gallery
from insclr.retrieval.index import index_images
from insclr.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    draw_things(tmp_path / "photos", 4, 6)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "store")
    return open_store(tmp_path / "store")


def paths_of(store: Store, thing: str) -> set[str]:
    return {row.image.path for row in build_gallery(store).thing(thing).rows}


def test_a_photo_joins_a_thing_by_its_score_unless_it_was_told_from_that_thing(store: Store) -> None:
    image = {path: row.image.hash for path, row in store.rows_by_path().items()}
    named = [f"0/{view}.png" for view in range(5)]
    store.append(name_thing("thing-00", "mug", [image[path] for path in named]))
    assert paths_of(store, "thing-00") == {*named, "0/5.png"}
    # Not the thing of another photo: that says nothing about the mug.
    store.append([answer(image["2/0.png"], [], [image["0/5.png"]])])
    assert paths_of(store, "thing-00") == {*named, "0/5.png"}
    store.append([answer(image["0/5.png"], [], [image["0/1.png"]])])
    assert paths_of(store, "thing-00") == set(named)
