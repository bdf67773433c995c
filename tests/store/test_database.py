"""A flipped bit in any file of a store: found, named and mended, never silently part of an answer."""

import random
import resource
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.called import call
from helpers.histogram_describer import HistogramDescriber, draw_things
from insclr.data.images import list_images
from insclr.errors import UserError
from insclr.retrieval.index import index_images
from insclr.store import IndexedImage, Regions, StoreInfo, new_entry, open_store, parse_where
from insclr.store import segment as segment_module
from insclr.store.database import Database
from insclr.store.local import LocalStore

DIM = 32
INFO = StoreInfo(model="run/model.safetensors", fingerprint="f" * 64, dim=DIM, root=Path("/pictures"))


def unit_vectors(count: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make(folder: Path, count: int, *, regions: bool = False) -> Path:
    store = LocalStore.create(folder, INFO)
    images = [IndexedImage(f"{i}.jpg", f"{i:032x}", i, i, {"year": str(1900 + i)}) for i in range(count)]
    boxes = np.array([[0, 0, 1, 1]], np.float32)
    given = [Regions(boxes, one[None]) for one in unit_vectors(count, seed=5)] if regions else None
    with store.writing():
        store.upsert(images, unit_vectors(count), given)
    store.append([new_entry("name", {"name": f"thing {i}"}) for i in range(9)])
    store.set_note("calibration", "[1, 2, 3]")
    store.close()
    return folder


def answers(folder: Path) -> tuple[Any, ...]:
    """Everything that a store gives."""
    queries = unit_vectors(5, seed=1)
    store = open_store(folder)
    try:
        found = store.search(queries, 10)
        old = store.search(queries, 10, parse_where("year < 1930", ["year"]))
        boxes = store.search_regions(queries, 5)
        rows = store.rows(found.ids.ravel().tolist())
        ids = store.ids()
        vectors = store.descriptors(ids).tobytes()
        return (
            *(found.ids.tolist(), found.similarities.tolist(), old.ids.tolist(), rows, ids.tolist(), vectors),
            *(boxes.ids.tolist(), store.journal(), store.note("calibration"), store.columns(), store.count()),
        )
    finally:
        store.close()


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def test_a_flipped_bit_of_the_database_never_changes_an_answer_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / "whole", 60, regions=True)
    expected = answers(tmp_path / "whole")
    assert not caplog.records
    dice, reported = random.Random(0), 0
    for _ in range(150):
        shutil.rmtree(tmp_path / "s", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "s")
        file = tmp_path / "s" / "rows.sqlite"
        bit = dice.randrange(8 * file.stat().st_size)
        flip(file, bit)
        caplog.clear()
        try:
            same = answers(tmp_path / "s") == expected
        except (UserError, OSError):
            reported += 1
            continue
        assert same or caplog.records, f"bit {bit} changed an answer"
        reported += bool(caplog.records)
    assert reported > 20


@pytest.mark.parametrize("name", ["ids.npy", "rows.faiss", "coarse.faiss", "checks.npy"])
def test_a_damaged_segment_is_made_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(segment_module, "EXACT_UP_TO", 700)
    make(tmp_path / "s", 800)
    expected = answers(tmp_path / "s")
    dice = random.Random(1)
    for _ in range(5):
        (file,) = (tmp_path / "s" / "cache" / "segments").glob(f"*/{name}")
        flip(file, dice.randrange(8 * file.stat().st_size))
        caplog.clear()
        assert answers(tmp_path / "s")[4:] == expected[4:]
        assert "made again" in caplog.text
    caplog.clear()
    answers(tmp_path / "s")
    assert not caplog.records


def test_a_damaged_row_is_named_and_described_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    draw_things(tmp_path / "images", 3, 4)
    images = list_images(tmp_path / "images")
    index_images(HistogramDescriber(), images, tmp_path / "s")
    with closing(open_store(tmp_path / "s")) as store:
        rows = store.rows_by_path()
        expected = {path: store.descriptors([row.id])[0] for path, row in rows.items()}
    path, row = sorted(rows.items())[5]
    change = sqlite3.connect(tmp_path / "s" / "rows.sqlite")
    with change:
        vector = bytearray(change.execute("SELECT vector FROM pictures WHERE id = ?", [row.id]).fetchone()[0])
        vector[7] ^= 16
        change.execute("UPDATE pictures SET vector = ? WHERE id = ?", [bytes(vector), row.id])
    change.close()
    status, _, said = call(capsys, "check", tmp_path / "s")
    assert (status, f"row of {path}" in said) == (2, True)
    assert "insclr index" in said
    describer = HistogramDescriber()
    index_images(describer, images, tmp_path / "s")
    assert describer.described == [path]
    assert path in caplog.text
    with closing(open_store(tmp_path / "s")) as store:
        for path, row in store.rows_by_path().items():
            np.testing.assert_array_equal(store.descriptors([row.id])[0], expected[path])
    assert call(capsys, "check", tmp_path / "s")[0] == 0


def test_a_store_of_an_earlier_version_is_completed_when_it_is_opened(tmp_path: Path) -> None:
    make(tmp_path / "s", 20, regions=True)
    expected = answers(tmp_path / "s")
    old = sqlite3.connect(tmp_path / "s" / "rows.sqlite")
    with old:
        for table, column in (
            *(("pictures", "row_check"), ("pictures", "vector_check")),
            *((table, "checksum") for table in ("notes", "journal", "regions")),
        ):
            old.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        old.executescript("DROP TRIGGER outdated_deleted; DROP TRIGGER outdated_changed; DROP TABLE outdated")
        old.execute("PRAGMA user_version = 0")
    old.close()
    assert answers(tmp_path / "s") == expected
    store = open_store(tmp_path / "s")
    store.append([new_entry("name", {"name": "late"})])
    store.close()
    count = sqlite3.connect(tmp_path / "s" / "rows.sqlite")
    for table, column in (("pictures", "vector_check"), ("journal", "checksum"), ("regions", "checksum")):
        total, checked = count.execute(f"SELECT count(*), count({column}) FROM {table}").fetchone()
        assert total == checked > 0
    count.close()
    assert LocalStore(tmp_path / "s").damage() == []


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "s", 20)
    newer = sqlite3.connect(tmp_path / "s" / "rows.sqlite")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    before = (tmp_path / "s" / "rows.sqlite").read_bytes()
    status, _, said = call(capsys, "names", "list", tmp_path / "s")
    assert (status, "newer version" in said) == (2, True)
    with pytest.raises(UserError, match="newer version"):
        LocalStore.create(tmp_path / "s", INFO)
    assert (tmp_path / "s" / "rows.sqlite").read_bytes() == before


def test_a_failing_disk_is_no_damage(tmp_path: Path) -> None:
    """The system takes no bytes beyond a limit, so that a write of SQLite fails."""
    make(tmp_path / "s", 20)
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(open_store(tmp_path / "s")) as store:
        before, entry = store.journal(), new_entry("name", {"name": "late"})
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
        try:
            with pytest.raises(OSError, match="the disk fails"):
                store.append([entry])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
        assert store.journal() == before
        store.append([entry])
        assert store.journal() == [*before, entry]


def test_one_failed_read_at_the_opening_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / "s", 20)
    expected, real, failed = answers(tmp_path / "s"), Database._structure, []

    def structure(database: Database, check: str) -> list[str]:
        failed.append("database disk image is malformed")
        return failed if len(failed) == 1 else real(database, check)

    monkeypatch.setattr(Database, "_structure", structure)
    assert answers(tmp_path / "s") == expected
    assert len(failed) == 2
    assert not caplog.records
