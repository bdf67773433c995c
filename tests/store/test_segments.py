"""A large local store: mapped segments beside the database, and rows that are in none of them yet."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from insclr.store import IndexedImage, Neighbours, StoreInfo, parse_where
from insclr.store import segment as segment_module
from insclr.store import segments as segments_module
from insclr.store.local import LocalStore

DIM = 32
INFO = StoreInfo(model="run/model.safetensors", fingerprint="f" * 64, dim=DIM, root=Path("/pictures"))


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "EXACT_UP_TO", 300)
    monkeypatch.setattr(segments_module, "SEGMENT_ROWS", 1500)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore.create(tmp_path / "s", INFO)
    yield store
    store.close()


def unit_vectors(count: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def images(numbers: range) -> list[IndexedImage]:
    return [IndexedImage(f"{i}.jpg", f"hash{i}", 1, 1, {"odd": str(i % 2)}) for i in numbers]


def add(store: LocalStore, vectors: np.ndarray, first: int = 0) -> None:
    with store.writing():
        store.upsert(images(range(first, first + len(vectors))), vectors)


def recall(found: Neighbours, ids: np.ndarray, vectors: np.ndarray, queries: np.ndarray) -> float:
    """The share of the exact neighbours (over the rows given) that were found."""
    order = np.argsort(-(queries @ vectors.T), axis=1)[:, : found.ids.shape[1]]
    pairs = zip(found.ids.tolist(), ids[order].tolist(), strict=True)
    return float(np.mean([len({*one} & {*other}) / len(other) for one, other in pairs]))


def segment_rows(store: LocalStore) -> list[int]:
    folder = store.cache / "segments"
    return sorted(len(np.load(file)) for file in folder.glob("*/ids.npy"))


def vectors_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many descriptors each statement took from the database, filled as they are executed."""
    counts: list[int] = []
    real = segments_module.Segments.read_rows

    def spy(self: segments_module.Segments, *statement: object) -> object:
        found = real(self, *statement)  # type: ignore[arg-type]
        counts.append(len(found[0]))
        return found

    monkeypatch.setattr(segments_module.Segments, "read_rows", spy)
    return counts


def test_writing_packs_many_rows_and_a_reader_opens_them_without_the_database_s_vectors(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, queries = unit_vectors(4000), unit_vectors(50, seed=1)
    add(store, vectors)
    assert segment_rows(store) == [1000, 1500, 1500]
    reader = LocalStore(Path(store.uri))
    counts = vectors_read(monkeypatch)
    found = reader.search(queries, 10)
    assert sum(counts) == 0
    assert recall(found, reader.ids(), vectors, queries) >= 0.95
    for query, ids, similarities in zip(queries, found.ids, found.similarities, strict=True):
        np.testing.assert_allclose(vectors[ids - 1] @ query, similarities, atol=2e-3)
    np.testing.assert_allclose(reader.descriptors([4000, 1, 1501]), vectors[[3999, 0, 1500]], atol=1e-3)


def test_a_few_added_rows_are_found_at_once_and_build_nothing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, unit_vectors(2000))
    folders = {folder.name for folder in (store.cache / "segments").iterdir()}
    counts = vectors_read(monkeypatch)
    add(store, unit_vectors(100, seed=2), first=2000)
    found = store.search(unit_vectors(100, seed=2), 1)
    assert found.ids[:, 0].tolist() == list(range(2001, 2101))
    assert {folder.name for folder in (store.cache / "segments").iterdir()} == folders
    assert max(counts) == 100


def test_small_segments_are_packed_together(store: LocalStore) -> None:
    for first in range(0, 2400, 400):
        add(store, unit_vectors(400, seed=first), first)
    # 400, 800; 800 is more than half of 1500 and stays
    assert segment_rows(store) == [800, 800, 800]
    assert store.ids().tolist() == list(range(1, 2401))


def test_deleted_and_changed_rows_are_not_found_as_they_were(store: LocalStore) -> None:
    vectors, queries = unit_vectors(2000), unit_vectors(40, seed=1)
    add(store, vectors)
    gone = list(range(0, 2000, 7))
    store.delete([f"{i}.jpg" for i in gone])
    changed = unit_vectors(50, seed=3)
    store.upsert(images(range(1, 51)), changed)
    now = vectors.copy()
    now[1:51] = changed
    store.upsert(images(range(0, 1)), vectors[:1])  # deleted, and back under a new id
    rows = store.rows_by_path()
    paths = [f"{i}.jpg" for i in range(2000) if f"{i}.jpg" in rows]
    ids = np.array([rows[path].id for path in paths])
    alive = now[[int(path.removesuffix(".jpg")) for path in paths]]
    for reader in (store, LocalStore(Path(store.uri))):
        assert reader.ids().tolist() == sorted(ids)
        assert recall(reader.search(queries, 10), ids, alive, queries) >= 0.95
        np.testing.assert_allclose(reader.descriptors(ids), alive, atol=1e-3)


def test_a_segment_of_which_most_is_gone_is_written_anew(store: LocalStore) -> None:
    vectors = unit_vectors(1500)
    add(store, vectors)
    with store.writing():
        store.delete([f"{i}.jpg" for i in range(900)])
    assert segment_rows(store) == [600]
    assert store.search(vectors[900:], 1).ids[:, 0].tolist() == list(range(901, 1501))
    with store.writing():
        store.delete([f"{i}.jpg" for i in range(900, 1500)])
    assert segment_rows(store) == []
    assert store.search(vectors[:1], 1).ids.tolist() == [[-1]]


def test_what_a_killed_packing_left_goes_with_the_next_writing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, unit_vectors(500))
    with monkeypatch.context() as killed:  # after the list was written, before what it replaces was removed
        killed.setattr(shutil, "rmtree", lambda *_, **__: None)
        with store.writing():
            store.delete([f"{i}.jpg" for i in range(400)])
    assert segment_rows(store) == [100, 500]
    with store.writing():
        pass
    assert segment_rows(store) == [100]


def test_rows_described_anew_again_and_again_stay_right(store: LocalStore) -> None:
    latest = unit_vectors(1000)
    add(store, latest)
    for seed in range(1, 7):
        some = np.random.default_rng(seed).choice(1000, 350, replace=False)
        latest[some] = unit_vectors(350, seed=seed)
        with store.writing():
            store.upsert([images(range(i, i + 1))[0] for i in some], latest[some])
    assert store.ids().tolist() == list(range(1, 1001))
    np.testing.assert_allclose(store.descriptors(store.ids()), latest, atol=1e-3)
    assert store.search(latest, 1).ids[:, 0].tolist() == list(range(1, 1001))


def test_a_condition_holds_in_segments_and_tail(store: LocalStore) -> None:
    vectors, queries = unit_vectors(1600), unit_vectors(30, seed=1)
    add(store, vectors[:1500])
    add(store, vectors[1500:], first=1500)
    found = store.search(queries, 10, parse_where("odd = 1", ["odd"]))
    assert (found.ids % 2 == 0).all()  # ids begin with 1
    odd = np.arange(1, 1600, 2)
    assert recall(found, odd + 1, vectors[odd], queries) >= 0.95
    assert store.search(queries, 2, parse_where("path = 7.jpg", ["odd"])).ids.tolist() == [[8, -1]] * 30


@pytest.mark.parametrize("harm", ["folder", "rows", "ids", "note"])
def test_damaged_segments_are_made_again(store: LocalStore, harm: str) -> None:
    vectors = unit_vectors(1000)
    add(store, vectors)
    (folder,) = (one for one in (store.cache / "segments").iterdir() if one.is_dir())
    if harm == "folder":
        shutil.rmtree(store.cache)
    elif harm == "note":
        store.set_note("segments", "{broken")
    else:
        (folder / ("rows.faiss" if harm == "rows" else "ids.npy")).write_bytes(b"broken")
    reader = LocalStore(Path(store.uri))
    assert reader.search(vectors, 1).ids[:, 0].tolist() == list(range(1, 1001))
    assert segment_rows(reader) == [1000]
    assert len(LocalStore(Path(store.uri)).ids()) == 1000


def test_a_store_put_back_from_a_copy_does_not_use_later_segments(store: LocalStore, tmp_path: Path) -> None:
    add(store, unit_vectors(500))
    shutil.copytree(store.uri, tmp_path / "copy")
    with store.writing():
        store.delete([f"{i}.jpg" for i in range(400)])
        store.upsert(images(range(500, 1000)), unit_vectors(500, seed=5))
    store.close()
    for file in Path(store.uri).glob("rows.sqlite*"):
        file.unlink()
    for file in (tmp_path / "copy").glob("rows.sqlite*"):
        shutil.copy(file, store.uri)
    restored = LocalStore(Path(store.uri))
    assert restored.search(unit_vectors(500), 1).ids[:, 0].tolist() == list(range(1, 501))


def test_who_cannot_write_the_cache_searches_all_the_same(tmp_path: Path) -> None:
    store = LocalStore.create(tmp_path / "s", INFO)
    (tmp_path / "s" / "cache").write_bytes(b"no folder")
    vectors = unit_vectors(700)
    add(store, vectors)
    assert store.search(vectors, 1).ids[:, 0].tolist() == list(range(1, 701))


def test_a_packing_that_was_killed_leaves_nothing_wrong(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = unit_vectors(1000)
    store.upsert(images(range(1000)), vectors)
    with monkeypatch.context() as killed:
        # The segment is written whole, and then the process ends before the database names it.
        killed.setattr(segments_module.Segments, "write_list", _end)
        with pytest.raises(KeyboardInterrupt):
            store.search(vectors[:1], 1)
    assert segment_rows(store) == [1000]
    store.delete(["0.jpg"])
    reader = LocalStore(Path(store.uri))
    assert reader.search(vectors[1:], 1).ids[:, 0].tolist() == list(range(2, 1001))
    assert segment_rows(reader) == [999]


def _end(*_: object) -> None:
    raise KeyboardInterrupt


def test_readers_go_on_while_another_process_packs(store: LocalStore) -> None:
    vectors = unit_vectors(1000)
    add(store, vectors)
    reader = LocalStore(Path(store.uri))
    reader.search(vectors[:1], 1)
    add(store, unit_vectors(400, seed=2), first=1000)  # packs both into one segment and removes the old one
    assert segment_rows(store) in ([1400], [400, 1000])
    assert reader.search(vectors, 1).ids[:, 0].tolist() == list(range(1, 1001))
    deadline = time.monotonic() + 30
    while len(reader.ids()) < 1400:  # they may be a moment behind
        assert time.monotonic() < deadline
