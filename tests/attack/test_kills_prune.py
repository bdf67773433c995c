"""kill -9 inside the delete of `index --prune`: in the rows, in the segments that search them, in the local features.

24,000 drawn rows with regions and local features, of which 8,000 are kept: enough for mapped segments, which the
delete leaves more than half empty, so that they are packed anew.
"""

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from helpers.histogram_describer import HistogramDescriber
from helpers.killing import Note, kill_inside, rows_of, whole_step
from insclr.data.images import ImageList
from insclr.retrieval.index import index_images
from insclr.retrieval.local_database import LocalFeatureDatabase
from insclr.retrieval.local_features import THUMBNAIL, LocalFeatures
from insclr.retrieval.local_store import Decision
from insclr.store import IndexedImage, Regions, Store, StoreInfo, create_store, open_store

ROWS, KEPT, DIM = 24_000, 8_000, HistogramDescriber.dim
STEPS = {
    "the rows": "insclr.store.local.LocalStore.delete",
    "the segments": "insclr.store.segments.Segments.pack",
    "the local features": "insclr.retrieval.local_database.LocalFeatureDatabase.drop",
}


def vectors_of(numbers: list[int]) -> np.ndarray:
    """The descriptor of every number's image."""
    rows = np.stack([np.random.default_rng(number).normal(size=DIM) for number in numbers])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def prune(store: Path, images: ImageList) -> None:
    index_images(HistogramDescriber(), images, store, prune=True)


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    store = open_store(folder)
    try:
        yield store
    finally:
        store.close()


def local_hashes(folder: Path) -> set[str]:
    kept = LocalFeatureDatabase(folder / "parts.sqlite")
    try:
        return kept.hashes()
    finally:
        kept.close()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ImageList]:
    """A store of ROWS rows, and the list of the KEPT images among them that are still there."""
    home = tmp_path_factory.mktemp("prune")
    folder, store = home / "images", home / "store"
    folder.mkdir()
    (folder / "00000").write_bytes(b"never read: the rows say its size and time")
    for number in range(1, KEPT):
        os.link(folder / "00000", folder / f"{number:05d}")
    state = (folder / "00000").stat()
    describer = HistogramDescriber()
    made = create_store(store, StoreInfo(describer.name, describer.fingerprint, DIM, folder))
    boxes = np.array([[0, 0, 0.5, 0.5]], np.float32)
    with made.writing():
        for begin in range(0, ROWS, 4000):
            numbers = list(range(begin, begin + 4000))
            rows = [
                IndexedImage(f"{one:05d}", f"{one:064x}", state.st_size, state.st_mtime_ns, {})
                for one in numbers
            ]
            vectors = vectors_of(numbers)
            made.upsert(rows, vectors, [Regions(boxes, vector[None]) for vector in vectors])
    made.set_note("local evidence", json.dumps(asdict(Decision(True, "drawn", ROWS))))
    made.close()
    kept = LocalFeatureDatabase(store / "parts.sqlite")
    nothing = LocalFeatures.from_bytes(bytes(8 + THUMBNAIL**2))
    kept.write({f"{one:064x}": nothing for one in range(ROWS)})
    kept.close()
    assert list((store / "cache" / "segments").glob("*/coarse.faiss"))
    return store, ImageList(folder, tuple(f"{one:05d}" for one in range(KEPT)))


def check_whole(folder: Path) -> int:
    """How many rows there are: all or the kept ones, with their own descriptors and regions, found by search."""
    rows = rows_of(folder)
    numbers = sorted(int(path) for path in rows)
    assert numbers in (list(range(ROWS)), list(range(KEPT))), "the delete is one transaction"
    sample = numbers[:: len(numbers) // 200]
    expected = vectors_of(sample)
    assert all(rows[f"{one:05d}"][0] == f"{one:064x}" for one in sample)
    np.testing.assert_allclose([rows[f"{one:05d}"][1] for one in sample], expected, atol=2e-3)
    with opened(folder) as store:
        paths = {row.id: path for path, row in store.rows_by_path().items()}
        assert set(store.region_ids().tolist()) == set(paths)
        found = store.search(expected, 5)
        assert [paths[id_] for id_ in found.ids[:, 0].tolist()] == [f"{one:05d}" for one in sample]
        assert {int(id_) for id_ in found.ids.ravel()} <= set(paths), "a row that is gone is found"
        assert np.isin(list(paths), store.ids()).all()
    assert {f"{one:064x}" for one in numbers} <= local_hashes(folder)
    return len(numbers)


@pytest.mark.parametrize("where", list(STEPS))
def test_prune_killed_inside(
    where: str, full: tuple[Path, ImageList], tmp_path: Path, kills: int, note: Note
) -> None:
    (store, listed), step, told = full, STEPS[where], tmp_path / "told"
    shutil.copytree(store, tmp_path / "unbroken")
    seconds = whole_step(step, told, prune, tmp_path / "unbroken", listed)
    assert check_whole(tmp_path / "unbroken") == KEPT
    dice, inside, counts = random.Random(5), 0, set()
    for number in range(kills):
        broken = tmp_path / f"s{number}"
        shutil.copytree(store, broken)
        inside += kill_inside(step, dice.uniform(0, seconds), told, prune, broken, listed)
        counts.add(check_whole(broken))
        prune(broken, listed)
        assert check_whole(broken) == KEPT
        assert local_hashes(broken) == {f"{one:064x}" for one in range(KEPT)}
        named = {one.name for one in (broken / "cache" / "segments").iterdir() if one.is_dir()}
        assert len(named) == 1, "segments that nobody names are left over"
        shutil.rmtree(broken)
    assert inside, "no kill struck inside"
    note(
        f"kill -9 x {kills} ({inside} inside) in {where} of index --prune, {seconds * 1000:.0f} ms long",
        f"{' or '.join(str(one) for one in sorted(counts))} of {ROWS} rows, never between; then as unbroken",
        "0 lost, equal",
    )
