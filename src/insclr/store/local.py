"""The embedded store: a folder with a SQLite database of rows and descriptors, and mapped segments to search them."""

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Descriptors, Ids, Regions, no_regions
from insclr.errors import UserError
from insclr.files import only_writer, sync_folder
from insclr.store.database import connect, explain_errors, report_damage
from insclr.store.nearest import SCHEMA as REGIONS_SCHEMA
from insclr.store.nearest import NearestRows, RegionRows, read_regions, write_regions
from insclr.store.rows import (
    Entry,
    IndexedImage,
    NearestRegions,
    Neighbours,
    Row,
    StoreInfo,
    check_descriptors,
    parse_entry,
)
from insclr.store.segments import SCHEMA as SEGMENTS_SCHEMA
from insclr.store.segments import Segments, select_by_id
from insclr.store.store_models import rows_folder, split_model
from insclr.store.where import Condition, numbers_of, to_sql

_ROWS = "rows.sqlite"
_PARTS = "parts.sqlite"
_OWN_FILES = {
    *(f"{name}{ending}" for name in (_ROWS, _PARTS) for ending in ("", "-wal", "-shm")),
    *("writer.lock", "cache"),
}
_SCHEMA = """
CREATE TABLE IF NOT EXISTS pictures (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL UNIQUE,
    hash TEXT NOT NULL,
    size INTEGER NOT NULL,
    mtime INTEGER NOT NULL,
    columns TEXT NOT NULL,  -- JSON, the values as the CSV has them
    numbers TEXT NOT NULL,  -- JSON, those of them that are numbers
    vector BLOB NOT NULL    -- half precision
);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, text TEXT NOT NULL);
INSERT OR IGNORE INTO notes VALUES ('version', '0');
"""
_UPSERT = """
INSERT INTO pictures (path, hash, size, mtime, columns, numbers, vector) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (path) DO UPDATE SET hash = excluded.hash, size = excluded.size, mtime = excluded.mtime,
    columns = excluded.columns, numbers = excluded.numbers, vector = excluded.vector
"""
# Made when the first entry is written: stores of earlier versions have none.
_JOURNAL = "CREATE TABLE IF NOT EXISTS journal (id TEXT PRIMARY KEY, entry TEXT NOT NULL)"
_TABLE = "SELECT 1 FROM sqlite_master WHERE name = ?"
_SELECT_ROW = "SELECT id, path, hash, size, mtime, columns FROM pictures"
_KEPT_FILTERS = 32
# A reader beside a busy writer spends at most about this share of its time on reloading the rows.
RELOAD_SHARE = 0.2


class LocalStore:
    """Rows in a `rows.sqlite` (write-ahead log: readers beside one writer), searched by `Segments`.

    `folder` is that of the store, or `STORE/models/N` for one of its models that need not be the current one.
    """

    def __init__(self, folder: Path) -> None:
        """Open an existing store; UserError when there is none."""
        self.folder, self.model_number = split_model(folder, _ROWS)
        own = rows_folder(self.folder, self.model_number)
        if not (own / _ROWS).is_file():
            raise UserError(
                f"no store at {folder}: make one with `insclr index MODEL IMAGES --store {folder}`"
            )
        self.uri = str(folder)
        self.cache = self.folder / "cache"
        self.parts = self.folder / _PARTS
        self._file, self._cache = own / _ROWS, own / "cache"
        self._lock = threading.RLock()
        self._nearest: NearestRows | None = None
        self._loaded_version = ""
        self._load_again_at = 0.0
        self._filters: dict[Condition, NDArray[np.bool_]] = {}
        self._region_rows: tuple[str, RegionRows] | None = None  # and the version they are of
        self._rows = connect(self._file)
        # The first model's database has the journal of all models.
        self._journal = self._rows if self.model_number == 1 else connect(self.folder / _ROWS)
        try:
            with self._report_damage():
                self.info = StoreInfo.from_json(self.note("info") or "")
        except BaseException:
            self.close()
            raise
        if (run := own / "run").is_dir() and self.model_number > 1:  # also where the store has moved
            self.info = replace(self.info, model=str(run.absolute()))
        self._segments = Segments(self._cache / "segments", self.info.dim, self._select)

    @classmethod
    def create(cls, folder: Path, info: StoreInfo) -> "LocalStore":
        """Open the store in `folder`, making it first where there is none."""
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file: a store is a folder")
        home, number = split_model(folder, _ROWS)
        own = rows_folder(home, number)
        if number == 1 and not (folder / _ROWS).exists() and folder.exists():
            foreign = [path.name for path in folder.iterdir() if path.name not in _OWN_FILES]
            if foreign:
                raise UserError(
                    f"{folder} is not a store and not empty ({foreign[0]}): give another folder to --store"
                )
        own.mkdir(parents=True, exist_ok=True)
        rows = connect(own / _ROWS)
        with explain_errors(own / _ROWS), contextlib.closing(rows):
            rows.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {REGIONS_SCHEMA} {SEGMENTS_SCHEMA} COMMIT;")
            rows.execute("INSERT OR IGNORE INTO notes VALUES ('info', ?)", (info.to_json(),))
        sync_folder(own)
        return cls(folder)

    @contextmanager
    def writing(self, wait: float = 30.0) -> Iterator[None]:
        with only_writer(self.folder / "writer.lock", wait):
            yield
            self._segments.pack()  # now, so that the next search need not wait for it

    def upsert(
        self,
        images: Sequence[IndexedImage],
        descriptors: Descriptors,
        regions: Sequence[Regions] | None = None,
    ) -> None:
        halves = check_descriptors(descriptors, len(images), self.info.dim).astype("<f2")
        with self._transaction(images) as rows:
            rows.executemany(
                _UPSERT, [(*_values(one), half.tobytes()) for one, half in zip(images, halves, strict=True)]
            )
            if regions is not None:
                write_regions(rows, [one.path for one in images], regions, self.info.dim)

    def update(self, images: Sequence[IndexedImage]) -> None:
        statement = (
            "UPDATE pictures SET hash = ?, size = ?, mtime = ?, columns = ?, numbers = ? WHERE path = ?"
        )
        with self._transaction(images) as rows:
            rows.executemany(statement, [(*_values(one)[1:], one.path) for one in images])

    def delete(self, paths: Sequence[str]) -> None:
        with self._transaction() as rows:
            rows.executemany("DELETE FROM pictures WHERE path = ?", [(path,) for path in paths])

    def rows_by_path(self) -> dict[str, Row]:
        return {row.image.path: row for row in self._read_rows(_SELECT_ROW)}

    def rows(self, ids: Sequence[int]) -> list[Row]:
        statement, values = select_by_id(f"{_SELECT_ROW} WHERE id", ids)
        found = {row.id: row for row in self._read_rows(statement, values)}
        return [found[int(one)] for one in ids if int(one) in found]

    def ids(self) -> Ids:
        return self._load().ids

    def descriptors(self, ids: Sequence[int] | Ids) -> Descriptors:
        wanted = np.asarray(ids, dtype=np.int64)
        try:
            return self._load().descriptors(wanted)
        except KeyError:
            if self.version() == self._loaded_version:
                raise
            self._load_again_at = 0.0  # a row that a writer has just added: reloading cannot be put off
            return self._load().descriptors(wanted)

    def count(self) -> int:
        return int(self._select("SELECT count(*) FROM pictures")[0][0])

    def columns(self) -> list[str]:
        names: list[str] = json.loads(self.note("columns") or "[]")
        return names

    def search(self, queries: Descriptors, top: int, where: Condition | None = None) -> Neighbours:
        nearest = self._load()
        return nearest.search(queries, top, None if where is None else self._filter(nearest, where))

    def has_regions(self) -> bool:
        return self._has_table("regions") and bool(self._select("SELECT 1 FROM regions LIMIT 1"))

    def region_ids(self) -> Ids:
        if not self.has_regions():
            return np.zeros(0, np.int64)
        found = self._select("SELECT picture FROM regions ORDER BY picture")
        return np.array([row[0] for row in found], dtype=np.int64)

    def regions(self, ids: Sequence[int] | Ids) -> list[Regions]:
        dim = self.info.dim
        if not self.has_regions():
            return [no_regions(dim)] * len(ids)
        statement, values = select_by_id("SELECT picture, boxes, vectors FROM regions WHERE picture", ids)
        found = {
            row: read_regions(boxes, vectors, dim) for row, boxes, vectors in self._select(statement, values)
        }
        return [found.get(int(one)) or no_regions(dim) for one in ids]

    def search_regions(
        self, queries: Descriptors, top: int, where: Condition | None = None
    ) -> NearestRegions:
        nearest = self._load()
        with self._lock, self._report_damage():
            version = self._loaded_version
            if self._region_rows is None or self._region_rows[0] != version:
                found = self._select("SELECT * FROM regions ORDER BY picture") if self.has_regions() else []
                file = self._cache / f"regions-{version}.faiss"
                self._region_rows = version, RegionRows(found, self.info.dim, file)
            regions = self._region_rows[1]
        allowed = None if where is None else nearest.ids[self._filter(nearest, where)]
        return regions.search(queries, top, allowed)

    def note(self, name: str) -> str | None:
        found = self._select("SELECT text FROM notes WHERE name = ?", [name])
        return str(found[0][0]) if found else None

    def set_note(self, name: str, text: str) -> None:
        with self._lock, explain_errors(self._file), self._rows:
            self._rows.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, text))

    def append(self, entries: Sequence[Entry]) -> None:
        with self._lock, explain_errors(self._file), self._journal:
            self._journal.execute("BEGIN IMMEDIATE")
            self._journal.execute(_JOURNAL)
            self._journal.executemany(
                "INSERT OR IGNORE INTO journal VALUES (?, ?)", [(one.id, one.text()) for one in entries]
            )

    def journal(self) -> list[Entry]:
        with self._lock, explain_errors(self._file):
            if not self._journal.execute(_TABLE, ["journal"]).fetchall():
                return []
            found = self._journal.execute("SELECT id, entry FROM journal ORDER BY id").fetchall()
        with self._report_damage():
            return [parse_entry(*row) for row in found]

    def version(self) -> str:
        return self.note("version") or "0"

    def settle(self) -> None:
        pass  # the next search sees all rows

    def close(self) -> None:
        with self._lock:
            self._rows.close()
            self._journal.close()

    def _select(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock, explain_errors(self._file):
            return self._rows.execute(statement, values).fetchall()

    def _has_table(self, name: str) -> bool:
        """Whether there is a table, which a database of an older version may lack."""
        return bool(self._select(_TABLE, [name]))

    def _read_rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        found = self._select(statement, values)
        with self._report_damage():
            return [
                Row(id_, IndexedImage(path, hash_, size, mtime, dict(json.loads(columns))))
                for id_, path, hash_, size, mtime, columns in found
            ]

    @contextmanager
    def _report_damage(self) -> Iterator[None]:
        """Make a UserError of what is raised by values that no store of ours holds."""
        try:
            yield
        except (ValueError, TypeError, KeyError) as error:
            raise report_damage(self._file, error) from error

    @contextmanager
    def _transaction(self, images: Sequence[IndexedImage] = ()) -> Iterator[sqlite3.Connection]:
        with self._lock, explain_errors(self._file), self._rows:
            self._rows.execute("BEGIN IMMEDIATE")
            yield self._rows
            known = self.columns()
            names = sorted({*known, *(name for one in images for name in one.columns)})
            if names != known:
                self._rows.execute("INSERT OR REPLACE INTO notes VALUES ('columns', ?)", (json.dumps(names),))
            self._rows.execute("UPDATE notes SET text = CAST(text AS INTEGER) + 1 WHERE name = 'version'")
        self._load_again_at = 0.0

    def _load(self) -> NearestRows:
        """The rows as they are now, or were a moment ago where reloading them takes long."""
        if self._nearest is not None and self.version() == self._loaded_version:
            return self._nearest
        with self._lock:
            if self._nearest is None or time.monotonic() >= self._load_again_at:
                began, version = time.monotonic(), self.version()
                with self._report_damage():
                    self._nearest = self._segments.load()
                self._loaded_version = version
                self._filters.clear()
                ended = time.monotonic()
                self._load_again_at = ended + (ended - began) / RELOAD_SHARE
            return self._nearest

    def _filter(self, nearest: NearestRows, where: Condition) -> NDArray[np.bool_]:
        """Which of the rows meet the condition."""
        with self._lock:
            if nearest is self._nearest and where in self._filters:
                return self._filters[where]
            statement, values = to_sql(where)
            met = [row[0] for row in self._select(f"SELECT id FROM pictures WHERE {statement}", values)]
            allowed = np.isin(nearest.ids, np.array(met, dtype=np.int64))
            if nearest is self._nearest:
                self._filters[where] = allowed
                if len(self._filters) > _KEPT_FILTERS:
                    self._filters.pop(next(iter(self._filters)))
            return allowed


def _values(image: IndexedImage) -> tuple[str, str, int, int, str, str]:
    columns = json.dumps(dict(image.columns), ensure_ascii=False)
    return image.path, image.hash, image.size, image.mtime, columns, json.dumps(numbers_of(image.columns))
