"""What every store does, on both engines."""

import multiprocessing
import os
import signal
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.store_info import INFO
from insclr.errors import UserError
from insclr.store import (
    IndexedImage,
    Store,
    StoreUnavailable,
    create_store,
    open_store,
    parse_where,
)
from insclr.store.local import LocalStore
from insclr.store.milvus import MilvusStore
from insclr.store.milvus_fields import TEXT_FIELDS, text_entity


def unit_vectors(count: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def pictures(count: int, **columns: list[str]) -> list[IndexedImage]:
    return [
        IndexedImage(
            f"a/{i}.jpg",
            f"hash{i}",
            100 + i,
            10**18 + i,
            {name: values[i] for name, values in columns.items()},
        )
        for i in range(count)
    ]


def test_rows_come_back_as_written_after_opening_again(store: Store, uri: str) -> None:
    written = pictures(5, brand=["a", "b", "ü'\"", "", "007"])
    vectors = unit_vectors(5)
    store.upsert(written, vectors)
    again = open_store(uri)
    assert again.info == INFO
    assert again.count() == 5
    assert again.columns() == ["brand"]
    rows = again.rows_by_path()
    assert {path: row.image for path, row in rows.items()} == {one.path: one for one in written}
    ids = [rows[one.path].id for one in written]
    np.testing.assert_allclose(again.descriptors(ids), vectors, atol=1e-3)
    assert [row.id for row in again.rows([ids[3], 10**15, ids[1]])] == [ids[3], ids[1]]
    assert sorted(ids) == again.ids().tolist()
    with pytest.raises(KeyError):
        again.descriptors([10**15])
    again.close()


def test_search_gives_the_exact_neighbours_best_first(store: Store) -> None:
    vectors, queries = unit_vectors(60), unit_vectors(3, seed=1)
    store.upsert(pictures(60), vectors)
    found = store.search(queries, 7)
    cosine = queries @ vectors.T
    path_of = {row.id: row.image.path for row in store.rows_by_path().values()}
    for place, order in enumerate(np.argsort(-cosine, axis=1)[:, :7]):
        assert [path_of[int(one)] for one in found.ids[place]] == [f"a/{i}.jpg" for i in order]
        np.testing.assert_allclose(found.similarities[place], cosine[place][order], atol=2e-3)


def test_asking_for_more_than_there_is_fills_up_with_minus_one(store: Store) -> None:
    assert store.search(unit_vectors(1), 3).ids.tolist() == [[-1, -1, -1]]
    store.upsert(pictures(2), unit_vectors(2))
    found = store.search(unit_vectors(1), 4)
    assert (found.ids[0] >= 0).tolist() == [True, True, False, False]


def test_a_path_has_one_row_and_keeps_its_id(store: Store) -> None:
    store.upsert(pictures(3), unit_vectors(3))
    before = store.rows_by_path()
    version = store.version()
    changed = replace(pictures(3)[1], hash="new", size=7)
    store.upsert([changed], unit_vectors(1, seed=9))
    assert store.count() == 3
    assert store.version() != version
    row = store.rows_by_path()["a/1.jpg"]
    assert row.id == before["a/1.jpg"].id
    assert row.image == changed
    np.testing.assert_allclose(store.descriptors([row.id]), unit_vectors(1, seed=9), atol=1e-3)


def test_update_changes_all_but_the_vector_and_adds_nothing(store: Store) -> None:
    store.upsert(pictures(2), unit_vectors(2))
    moved = replace(pictures(2)[0], mtime=5, columns={"kind": "screw"})
    store.update([moved, replace(moved, path="never/seen.jpg")])
    assert store.count() == 2
    row = store.rows_by_path()["a/0.jpg"]
    assert row.image == moved
    np.testing.assert_allclose(store.descriptors([row.id]), unit_vectors(2)[:1], atol=1e-3)


def test_deleted_rows_are_no_longer_found(store: Store) -> None:
    vectors = unit_vectors(4)
    store.upsert(pictures(4), vectors)
    gone = store.rows_by_path()["a/2.jpg"].id
    store.delete(["a/2.jpg", "never/there.jpg"])
    assert store.count() == 3
    assert gone not in store.search(vectors[2:3], 4).ids


WHERES: list[tuple[str, list[int]]] = [
    ("year >= 2010", [2, 3]),
    ("year = 2010.0", [2]),
    ("year != 2010", [0, 1, 3, 4]),
    ("brand = 'acme'", [0, 3]),
    ("brand = acme and year > 1999", [3]),
    ("brand in ('acme', 'o''neil')", [0, 1, 3]),
    ("not (brand = acme or year < 2000)", [2, 4]),
    ("brand contains 'ne'", [1]),
    ("brand contains '0%'", [2]),
    ("code = '007'", [0]),
    ("code = 7", [0, 1]),
    ('"odd name" = x', [4]),
    ("path contains '3.j'", [3]),
    ("path = 'a/1.jpg' or path = 5", [1]),
    ("brand = '''; DROP TABLE pictures; --'", []),
]


def test_where_limits_the_search(store: Store) -> None:
    columns = {
        "year": ["1999", "1995", "2010", "2011", "unknown"],
        "brand": ["acme", "o'neil", "100%", "acme", "other"],
        "code": ["007", "7", "", "x", "70"],
        "odd name": ["", "", "", "y", "x"],
    }
    store.upsert(pictures(5, **columns), unit_vectors(5))
    older = isinstance(store, MilvusStore) and store.server.version < (2, 4)
    for where, expected in WHERES:
        if older and "contains" in where:
            with pytest.raises(UserError, match=r"needs Milvus 2\.4 or newer"):
                store.search(unit_vectors(1), 5, parse_where(where, store.columns()))
            continue
        found = store.search(unit_vectors(1), 5, parse_where(where, store.columns()))
        paths = sorted(row.image.path for row in store.rows(found.ids[0][found.ids[0] >= 0].tolist()))
        assert paths == [f"a/{i}.jpg" for i in expected], where


def test_vectors_of_another_model_are_refused(store: Store, uri: str) -> None:
    with pytest.raises(UserError, match=r"another model .*run/model.safetensors.*new store"):
        create_store(uri, replace(INFO, fingerprint="0" * 64))
    assert create_store(uri, INFO).info == store.info


def test_vectors_must_be_of_unit_length_and_the_right_size(store: Store) -> None:
    with pytest.raises(ValueError, match="unit length"):
        store.upsert(pictures(1), np.zeros((1, 8), dtype=np.float32))
    with pytest.raises(ValueError, match="expected"):
        store.upsert(pictures(1), unit_vectors(1, dim=4))


def test_notes_are_kept_with_the_rows(store: Store, uri: str) -> None:
    assert store.note("calibration") is None
    store.set_note("calibration", "a")
    store.set_note("calibration", "b")
    assert open_store(uri).note("calibration") == "b"


def test_a_missing_store_is_reported_with_how_to_make_one(tmp_path: Path, milvus_uri: str) -> None:
    for uri in (str(tmp_path / "nowhere"), str(tmp_path), milvus_uri):
        with pytest.raises(UserError, match=r"no store at .*insclr index"):
            open_store(uri)


def test_milvus_that_cannot_be_reached_is_named() -> None:
    with pytest.raises(UserError, match=r"Milvus at http://127.0.0.1:1/x cannot be reached"):
        open_store("http://127.0.0.1:1/x")


def test_a_milvus_that_goes_away_is_unavailable(milvus_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import grpc

    store = create_store(milvus_uri, INFO)

    class Gone(grpc.RpcError):  # type: ignore[misc]
        def details(self) -> str:
            return "Deadline Exceeded"

    def gone(*_: object, **__: object) -> None:
        raise Gone

    monkeypatch.setattr("pymilvus.MilvusClient.search", gone)
    with pytest.raises(StoreUnavailable, match="reports an error: Deadline Exceeded"):
        store.search(unit_vectors(1), 1)


def test_a_damaged_milvus_store_is_named(lite_uri: str) -> None:
    store = create_store(lite_uri, INFO)
    assert isinstance(store, MilvusStore)
    journal = f"{store.server.name}_journal"
    store.server.create(journal, TEXT_FIELDS)
    store.server.upsert(journal, [text_entity("1", "no entry")])
    with pytest.raises(UserError, match="is damaged"):
        store.journal()
    store.set_note("info", "{}")
    store.close()
    with pytest.raises(UserError, match="is damaged"):
        open_store(lite_uri)


def test_a_milvus_lite_file_is_a_store_too(tmp_path: Path) -> None:
    store = create_store(str(tmp_path / "own.db"), INFO)
    store.upsert(pictures(2), unit_vectors(2))
    assert store.count() == 2
    store.close()


def test_a_folder_with_other_files_does_not_become_a_store(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match=r"not a store and not empty \(letter.txt\)"):
        create_store(tmp_path, INFO)
    with pytest.raises(UserError, match="is a file"):
        create_store(tmp_path / "letter.txt", INFO)


def test_a_broken_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.sqlite").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(UserError, match=r"rows\.sqlite is damaged"):
        open_store(tmp_path)


def test_a_second_writer_waits_and_then_fails(tmp_path: Path) -> None:
    store, other = create_store(tmp_path / "s", INFO), open_store(tmp_path / "s")
    with store.writing():
        began = time.monotonic()
        with pytest.raises(UserError, match=rf"process {os.getpid()}\) is busy"), other.writing(wait=0.3):
            pass
        assert time.monotonic() - began >= 0.3
    with other.writing(wait=0):
        pass


def _write_until_killed(folder: str) -> None:
    store = LocalStore(Path(folder))
    with store.writing():
        for start in range(1_000_000):
            batch = [replace(one, path=f"{start}/{one.path}") for one in pictures(50)]
            store.upsert(batch, unit_vectors(50, seed=start))


def test_a_killed_writer_leaves_whole_batches_and_a_free_lock(tmp_path: Path) -> None:
    store = create_store(tmp_path / "s", INFO)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["insclr.retrieval.index"])
    writer = context.Process(target=_write_until_killed, args=(str(tmp_path / "s"),))
    writer.start()
    while store.count() < 200:
        time.sleep(0.01)
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join()
    again = open_store(tmp_path / "s")
    assert again.count() % 50 == 0
    assert again.count() == len(again.rows_by_path()) == len(again.ids())
    with again.writing(wait=0):
        again.upsert(pictures(1), unit_vectors(1))


def test_a_reader_sees_what_a_writer_adds(tmp_path: Path) -> None:
    store = create_store(tmp_path / "s", INFO)
    reader = open_store(tmp_path / "s")
    assert reader.search(unit_vectors(1), 1).ids.tolist() == [[-1]]
    store.upsert(pictures(3), unit_vectors(3))
    deadline = time.monotonic() + 5
    while (reader.search(unit_vectors(1), 1).ids < 0).any() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reader.search(unit_vectors(3)[2:], 1).ids[0, 0] == store.rows_by_path()["a/2.jpg"].id


def test_a_reader_has_the_descriptors_of_rows_just_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("insclr.store.local.RELOAD_SHARE", 1e-9)  # searches put a reload off
    store = create_store(tmp_path / "s", INFO)
    store.upsert(pictures(2), unit_vectors(2))
    reader = open_store(tmp_path / "s")
    assert reader.ids().tolist() == [1, 2]
    store.upsert(pictures(3), unit_vectors(3))
    ids = [row.id for row in reader.rows_by_path().values()]
    np.testing.assert_allclose(reader.descriptors(ids), unit_vectors(3), atol=1e-3)
    with pytest.raises(KeyError):
        reader.descriptors([99])


def test_the_database_survives_without_its_cache(tmp_path: Path) -> None:
    store = create_store(tmp_path / "s", INFO)
    store.upsert(pictures(3), unit_vectors(3))
    store.close()
    with sqlite3.connect(tmp_path / "s" / "rows.sqlite") as rows:
        assert rows.execute("SELECT count(*), length(vector) FROM pictures").fetchone() == (3, 16)
