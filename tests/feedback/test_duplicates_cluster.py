"""Near-identical pictures, and groups of pictures of the same thing."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.histogram_describer import HistogramDescriber, draw_things
from insclr.data.images import list_images
from insclr.feedback.groups import cluster
from insclr.feedback.links import Link, Links
from insclr.retrieval.duplicates import duplicates
from insclr.retrieval.index import index_images
from insclr.retrieval.score import calibrate_store
from insclr.store import IndexedImage, Store, StoreInfo, create_store, open_store


def indexed(images: Path) -> Store:
    index_images(HistogramDescriber(), list_images(images), images.parent / "store")
    return open_store(images.parent / "store")


def test_copies_and_recompressed_pictures_are_found_and_others_are_not(tmp_path: Path) -> None:
    images = tmp_path / "images"
    draw_things(images, 3, 2)
    shutil.copy(images / "0" / "0.png", images / "copy.png")
    with Image.open(images / "0" / "0.png") as picture:
        picture.resize((96, 96)).save(images / "large.jpg", quality=80)
        # The same colours in another place: equal histograms, not the same picture.
        picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(images / "mirror.png")
    groups = duplicates(indexed(images), similarity=0.9)
    assert [[row.image.path for row in group] for group in groups] == [["0/0.png", "copy.png", "large.jpg"]]


def test_equal_files_are_duplicates_even_when_they_have_vanished(tmp_path: Path) -> None:
    images = tmp_path / "images"
    draw_things(images, 2, 1)
    shutil.copy(images / "0" / "0.png", images / "copy.png")
    store = indexed(images)
    shutil.rmtree(images)
    assert [len(group) for group in duplicates(store)] == [2]


@pytest.fixture
def things(tmp_path: Path) -> Store:
    """Twelve well separated things of twenty pictures, and five pictures of their own."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((12, 32))
    vectors = np.repeat(centres, 20, axis=0) + 0.3 * generator.standard_normal((240, 32))
    vectors = np.concatenate([vectors, generator.standard_normal((5, 32))])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    store = create_store(tmp_path / "s", StoreInfo("m", "f", 32, tmp_path))
    pictures = [IndexedImage(f"{i // 20}/{i}.png", str(i), 1, 1, {"n": str(i)}) for i in range(245)]
    store.upsert(pictures, vectors)
    calibrate_store(store)
    return store


def test_pictures_of_a_thing_are_one_group_and_loners_are_in_none(things: Store) -> None:
    groups = cluster(things)
    folders = [{row.image.path.split("/")[0] for row in group.rows} for group in groups]
    assert all(len(one) == 1 for one in folders)
    assert sorted(len(group.rows) for group in groups) == [20] * 12
    assert {int(one) for folder in folders for one in folder} == set(range(12))


def test_an_answer_joins_two_groups_where_copies_of_a_file_lie_in_one(things: Store) -> None:
    """Copies are no photos that people spoke about: they do not own the group."""
    some = [things.rows_by_path()[f"0/{i}.png"] for i in range(2)]
    copies = [replace(row.image, hash="copy") for row in some]
    things.upsert(copies, things.descriptors([row.id for row in some]))
    groups = cluster(things, links=Links([Link("5", "25", same=True)]))  # of the first and the second thing
    assert sorted(len(group.rows) for group in groups) == [20] * 10 + [40]


def test_groups_are_made_of_what_is_left_beside_a_writer(
    things: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("insclr.store.local.RELOAD_SHARE", 1e-9)  # searches put a reload off
    reader = open_store(things.uri)
    assert len(reader.ids()) == 245
    things.delete([f"0/{i}.png" for i in range(5)])
    assert sorted(len(group.rows) for group in cluster(reader)) == [15] + [20] * 11
    assert duplicates(reader, similarity=0.5) == []  # there are no files to agree
