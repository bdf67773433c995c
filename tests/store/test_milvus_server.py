"""What the cluster store does beside a store's usual work, on Milvus Lite and on a real server."""

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.histogram_describer import HistogramDescriber
from helpers.milvus_servers import RealServer
from insclr.data.images import list_images
from insclr.describe.pipeline import Described
from insclr.errors import UserError
from insclr.retrieval.index import index_images
from insclr.store import (
    IndexedImage,
    StoreInfo,
    StoreUnavailable,
    create_store,
    new_entry,
    open_store,
)
from insclr.store import milvus_server as module
from insclr.store.milvus import MilvusStore
from insclr.store.milvus_server import MilvusServer

INFO = StoreInfo("m", "f" * 64, 8, Path("/pictures"))


def unit_vectors(count: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def pictures(count: int, folder: str = "a", **columns: str) -> list[IndexedImage]:
    return [IndexedImage(f"{folder}/{i}.jpg", f"{folder}{i}", 1, 1, columns) for i in range(count)]


def noise(folder: Path, count: int) -> Path:
    folder.mkdir()
    for i in range(count):
        pixels = np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


@pytest.fixture
def store(milvus_uri: str) -> Iterator[MilvusStore]:
    store = create_store(milvus_uri, INFO)
    assert isinstance(store, MilvusStore)
    yield store
    store.close()


@pytest.mark.parametrize("step", ["create_collection", "create_index"])
def test_what_another_process_made_a_moment_ago_is_taken_as_it_is(
    milvus_uri: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The other makes it between our look and our own making."""
    call = MilvusServer.call
    raced = []

    def racing(self: MilvusServer, method: str, *arguments: object, **named: object) -> object:
        if method == step:
            raced.append(method)
            call(self, method, *arguments, **named)  # type: ignore[arg-type]  # the other's
        return call(self, method, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(MilvusServer, "call", racing)
    store = create_store(milvus_uri, INFO)
    store.upsert(pictures(3), unit_vectors(3))
    assert (store.count(), bool(raced)) == (3, True)
    store.close()


def test_a_real_server_shows_what_was_just_written(real_uri: str) -> None:
    """The one test of the real server that is not slow."""
    store, vectors = create_store(real_uri, INFO), unit_vectors(30)
    store.upsert(pictures(30), vectors)
    assert store.count() == len(store.rows_by_path()) == len(store.ids()) == 30
    store.delete(["a/3.jpg"])
    assert store.count() == 29
    store.append([new_entry("name", {"name": "vase"})])
    other = open_store(real_uri)
    assert other.info == INFO
    assert "a/3.jpg" not in other.rows_by_path()
    assert [entry.data for entry in other.journal()] == [{"name": "vase"}]
    assert other.rows(other.search(vectors[5:6], 1).ids[0].tolist())[0].image.path == "a/5.jpg"


def test_all_rows_come_in_pages_in_the_order_of_their_ids(store: MilvusStore, milvus_uri: str) -> None:
    for part in range(4):
        store.upsert(pictures(25, str(part)), unit_vectors(25, part))
    store.upsert(pictures(10, "1", colour="red"), unit_vectors(10, 9))
    store.delete([f"2/{i}.jpg" for i in range(20)])
    server = MilvusServer(milvus_uri)
    rows = list(server.every(server.name, "id", ["id", "path"], page=7))
    expected = {f"{part}/{i}.jpg" for part in range(4) for i in range(25)} - {f"2/{i}.jpg" for i in range(20)}
    assert sorted(row["path"] for row in rows) == sorted(expected)
    assert [row["id"] for row in rows] == store.ids().tolist() == sorted(row["id"] for row in rows)


def test_the_journal_comes_in_pages_too(store: MilvusStore, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [new_entry("name", {"name": f"thing {i} ü \"'"}) for i in range(23)]
    store.append(entries)
    monkeypatch.setattr("insclr.store.milvus.ENTRIES_PER_MESSAGE", 5)
    assert [entry.data for entry in store.journal()] == [entry.data for entry in entries]


def test_many_queries_are_sent_in_parts(store: MilvusStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.upsert(pictures(40), unit_vectors(40))
    whole = store.search(unit_vectors(11, 1), 5)
    monkeypatch.setattr(module, "MAX_HITS_PER_MESSAGE", 10)
    parts = store.search(unit_vectors(11, 1), 5)
    np.testing.assert_array_equal(parts.ids, whole.ids)


def test_more_results_than_milvus_gives_are_filled_up(store: MilvusStore) -> None:
    store.upsert(pictures(3), unit_vectors(3))
    found = store.search(unit_vectors(1), module.MAX_RESULTS + 5).ids[0]
    assert (found >= 0).sum() == 3


def test_two_writers_keep_each_others_columns_and_change_the_version(
    store: MilvusStore, milvus_uri: str
) -> None:
    other = open_store(milvus_uri)
    store.upsert(pictures(1, "a", room="hall"), unit_vectors(1))
    seen = other.version()
    other.upsert(pictures(1, "b", year="1990"), unit_vectors(1))
    assert other.version() != seen
    assert open_store(milvus_uri).columns() == ["room", "year"]


@pytest.mark.parametrize("missing", ["notes", "index"])
def test_a_half_made_store_is_reported_and_completed(milvus_uri: str, missing: str) -> None:
    create_store(milvus_uri, INFO).close()
    server = MilvusServer(milvus_uri)
    client = server.client
    if missing == "notes":
        client.drop_collection(f"{server.name}_notes")
    else:
        client.release_collection(server.name)
        client.drop_index(server.name, "vector")
    with pytest.raises(UserError, match="left half made: run `insclr index` again"):
        open_store(milvus_uri)
    store = create_store(milvus_uri, INFO)
    store.upsert(pictures(2), unit_vectors(2))
    assert open_store(milvus_uri).count() == 2


def test_a_collection_of_another_program_is_left_alone(milvus_uri: str) -> None:
    server = MilvusServer(milvus_uri)
    server.client.create_collection(server.name, dimension=8)
    for opening in (lambda: open_store(milvus_uri), lambda: create_store(milvus_uri, INFO)):
        with pytest.raises(UserError, match=r"is not a store of insclr: give another name"):
            opening()


def test_an_older_server_is_refused(lite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymilvus.MilvusClient.get_server_version", lambda *_, **__: "v2.2.16")
    with pytest.raises(UserError, match=r"is of version v2.2.16: insclr needs 2.3 or newer"):
        open_store(lite_uri)


def test_an_error_of_the_server_is_reported_without_its_stack_trace(
    lite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pymilvus.exceptions import MilvusException

    store = create_store(lite_uri, INFO)
    said = "stack trace: /a/b/trace.go:51 github.com/x.Trace\n/a/c.go:7 x.(*Proxy).Upsert: attempt #0: broken"

    def fails(*_: object, **__: object) -> None:
        raise MilvusException(message=said)

    monkeypatch.setattr("pymilvus.MilvusClient.upsert", fails)
    with pytest.raises(StoreUnavailable, match=r"reports an error: attempt #0: broken$"):
        store.upsert(pictures(1), unit_vectors(1))


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UserError, match="INSCLR_MILVUS_TOKEN") as refused:
        open_store("http://root:secret@127.0.0.1:1/x")
    assert "secret" not in str(refused.value)


def test_many_rows_are_found_by_the_index_once_the_store_has_settled(
    store: MilvusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("insclr.store.milvus.SEALED_FROM_ROWS", 1500)
    vectors, queries = unit_vectors(2000), unit_vectors(20, 1)
    store.upsert(pictures(2000), vectors)
    store.settle()
    state = store.server.client.describe_index(store.server.name, "vector")
    assert not state.get("pending_index_rows")
    path_of = {row.id: row.image.path for row in store.rows_by_path().values()}
    found = store.search(queries, 10).ids
    exact = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    for ids, order in zip(found.tolist(), exact.tolist(), strict=True):
        assert {path_of[one] for one in ids} == {f"a/{i}.jpg" for i in order}


def test_what_milvus_cannot_hold_is_named(store: MilvusStore) -> None:
    for wrong, told in (
        (replace(pictures(1)[0], path="x" * 5000), "path longer than 4096 bytes"),
        (replace(pictures(1)[0], columns={"story": "y" * 70_000}), "columns longer than 65000 bytes"),
    ):
        with pytest.raises(UserError, match=told):
            store.upsert([wrong], unit_vectors(1))
    assert store.count() == 0


@pytest.mark.slow
def test_a_server_that_asks_for_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = RealServer(tmp_path, authorization_enabled=True)
    uri = f"{server.address}/photos"
    try:
        for token in ("", "root:wrong"):
            monkeypatch.setenv("INSCLR_MILVUS_TOKEN", token)
            with pytest.raises(UserError, match=r"right password: set INSCLR_MILVUS_TOKEN=user:password"):
                create_store(uri, INFO)
        monkeypatch.setenv("INSCLR_MILVUS_TOKEN", "root:Milvus")
        store = create_store(uri, INFO)
        store.upsert(pictures(2), unit_vectors(2))
        assert store.count() == 2
    finally:
        server.stop()


@pytest.mark.slow
def test_a_server_that_takes_no_more_writes_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RealServer(
        tmp_path, **{"quotaAndLimits.enabled": True, "quotaAndLimits.limitWriting.forceDeny": True}
    )
    monkeypatch.setattr(module, "WRITE_TIMEOUT", 5.0)
    try:
        store = create_store(f"{server.address}/photos", INFO)
        with pytest.raises(UserError, match="because of a quota or too little memory or disk"):
            store.upsert(pictures(2), unit_vectors(2))
    finally:
        server.stop()


class _KillsAt(HistogramDescriber):
    """Kills the server before it describes the images of its third batch."""

    def __init__(self, server: RealServer, back_after: float | None) -> None:
        super().__init__()
        self.server, self._back_after, self._batches = server, back_after, 0

    def files(self, *arguments: Any, **options: Any) -> Described:
        self._batches += 1
        if self._batches == 3:
            self.server.kill()
            if self._back_after is not None:
                threading.Timer(self._back_after, self.server.start).start()
        return super().files(*arguments, **options)


@pytest.mark.slow
@pytest.mark.parametrize("back_after", [2.0, None])
def test_nothing_is_lost_or_doubled_when_the_server_is_killed_while_indexing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back_after: float | None
) -> None:
    """One that comes back is waited for; for one that does not, the next run does what is missing."""
    folder = tmp_path / "server"
    folder.mkdir()
    # A killed server waits until its own session has ended: 30 seconds unless told otherwise.
    server = RealServer(folder, **{"common.session.ttl": 10})
    images = list_images(noise(tmp_path / "photos", 60))
    uri = f"{server.address}/photos"
    try:
        describer = _KillsAt(server, back_after)
        if back_after is None:
            with monkeypatch.context() as patch:
                patch.setattr(module, "WRITE_TIMEOUT", 3.0)
                with pytest.raises(StoreUnavailable, match="Milvus at"):
                    index_images(describer, images, uri, batch=10)
            server.start()
        else:
            assert index_images(describer, images, uri, batch=10).total == 60
        second = HistogramDescriber()
        report = index_images(second, images, uri, batch=10)
        assert report.total == 60
        assert len(second.described) == (40 if back_after is None else 0)
        rows = open_store(uri).rows_by_path()
        assert sorted(rows) == sorted(images.paths)
        assert open_store(uri).count() == 60
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
