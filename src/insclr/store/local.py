"""The embedded store: a folder with a SQLite database of rows and descriptors, and mapped segments to search them."""

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Descriptors, Ids, Regions, no_regions
from insclr.errors import UserError
from insclr.files import sync_folder
from insclr.lock import only_writer
from insclr.store.database import connect, explain_errors, report_damage
from insclr.store.journal import Entry, parse_entry
from insclr.store.local_regions import SCHEMA as REGIONS_SCHEMA
from insclr.store.local_regions import RegionRows, read_regions, write_regions
from insclr.store.nearest import NearestRows
from insclr.store.rows import (
    IndexedImage,
    NearestRegions,
    Neighbours,
    Row,
    StoreInfo,
    check_descriptors,
)
from insclr.store.segments import SCHEMA as SEGMENTS_SCHEMA
from insclr.store.segments import Segments
from insclr.store.sql_filter import to_sql
from insclr.store.where import Condition, number_of

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
_SELECT_ROW = "SELECT id, path, hash, size, mtime, columns FROM pictures"
_KEPT_FILTERS = 32
# A reader beside a busy writer spends at most about this share of its time on reloading the rows.
RELOAD_SHARE = 0.2


class LocalStore:
    """Rows in `folder/rows.sqlite` (write-ahead log: readers beside one writer), searched by `Segments`."""

    def __init__(self, folder: Path) -> None:
        """Open an existing store; UserError when there is none."""
        if not (folder / _ROWS).is_file():
            raise UserError(
                f"no store at {folder}: make one with `insclr index MODEL IMAGES --store {folder}`"
            )
        self.uri = str(folder)
        self.folder = folder
        self.cache = folder / "cache"
        self.parts = folder / _PARTS
        self._file = folder / _ROWS
        self._lock = threading.RLock()
        self._nearest: NearestRows | None = None
        self._loaded_version = ""
        self._load_again_at = 0.0
        self._filters: dict[Condition, NDArray[np.bool_]] = {}
        self._region_rows: tuple[str, RegionRows] | None = None  # and the version they are of
        self._rows = connect(self._file)
        try:
            self.info = self._read_info()
        except BaseException:
            self._rows.close()
            raise
        self._segments = Segments(self.cache / "segments", self.info.dim, self._select)

    @classmethod
    def create(cls, folder: Path, info: StoreInfo) -> "LocalStore":
        """Open the store in `folder`, making it first where there is none."""
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file: a store is a folder")
        if not (folder / _ROWS).exists() and folder.exists():
            foreign = [path.name for path in folder.iterdir() if path.name not in _OWN_FILES]
            if foreign:
                raise UserError(
                    f"{folder} is not a store and not empty ({foreign[0]}): give another folder to --store"
                )
        folder.mkdir(parents=True, exist_ok=True)
        rows = connect(folder / _ROWS)
        with explain_errors(folder / _ROWS), contextlib.closing(rows):
            rows.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {REGIONS_SCHEMA} {SEGMENTS_SCHEMA} COMMIT;")
            rows.execute("INSERT OR IGNORE INTO notes VALUES ('info', ?)", (info.to_json(),))
        sync_folder(folder)
        return cls(folder)

    @contextmanager
    def writing(self, wait: float = 30.0) -> Iterator[None]:
        """Be the only writer; UserError when another one is still busy after `wait` seconds."""
        with only_writer(self.folder / "writer.lock", wait):
            yield
            self._segments.pack()  # now, so that the next search need not wait for it

    def upsert(
        self,
        images: Sequence[IndexedImage],
        descriptors: Descriptors,
        regions: Sequence[Regions] | None = None,
    ) -> None:
        """Add rows (unit descriptors), or replace those of the same paths, keeping their ids."""
        halves = check_descriptors(descriptors, len(images), self.info.dim).astype("<f2")
        with self._transaction(images) as rows:
            rows.executemany(
                _UPSERT, [(*_values(one), half.tobytes()) for one, half in zip(images, halves, strict=True)]
            )
            if regions is not None:
                write_regions(rows, [one.path for one in images], regions, self.info.dim)

    def update(self, images: Sequence[IndexedImage]) -> None:
        """Change everything but the descriptor of rows that exist."""
        statement = (
            "UPDATE pictures SET hash = ?, size = ?, mtime = ?, columns = ?, numbers = ? WHERE path = ?"
        )
        with self._transaction(images) as rows:
            rows.executemany(statement, [(*_values(one)[1:], one.path) for one in images])

    def delete(self, paths: Sequence[str]) -> None:
        """Remove the rows of these paths; paths that have none are ignored."""
        with self._transaction() as rows:
            rows.executemany("DELETE FROM pictures WHERE path = ?", [(path,) for path in paths])

    def rows_by_path(self) -> dict[str, Row]:
        """Every row by its path."""
        return {row.image.path: row for row in map(self._row, self._select(_SELECT_ROW))}

    def rows(self, ids: Sequence[int]) -> list[Row]:
        """The rows of these ids in this order; ids that are gone are left out."""
        found: dict[int, Row] = {}
        for start in range(0, len(ids), 500):
            part = [int(one) for one in ids[start : start + 500]]
            places = ",".join("?" * len(part))
            found |= {
                row.id: row
                for row in map(self._row, self._select(f"{_SELECT_ROW} WHERE id IN ({places})", part))
            }
        return [found[int(one)] for one in ids if int(one) in found]

    def ids(self) -> Ids:
        """Every id, ascending."""
        return self._load_rows().ids

    def descriptors(self, ids: Sequence[int] | Ids) -> Descriptors:
        """The descriptors of these ids in this order; KeyError when one is gone."""
        wanted = np.asarray(ids, dtype=np.int64)
        try:
            return self._load_rows().descriptors(wanted)
        except KeyError:
            if self.version() == self._loaded_version:
                raise
            self._load_again_at = 0.0  # a row that a writer has just added: reloading cannot be put off
            return self._load_rows().descriptors(wanted)

    def count(self) -> int:
        """How many rows there are."""
        return int(self._select("SELECT count(*) FROM pictures")[0][0])

    def columns(self) -> list[str]:
        """The names of the user's own columns, sorted."""
        names: list[str] = json.loads(self.note("columns") or "[]")
        return names

    def search(self, queries: Descriptors, top: int, where: Condition | None = None) -> Neighbours:
        """The `top` nearest rows of every query, among those that meet `where`."""
        nearest = self._load_rows()
        return nearest.search(queries, top, None if where is None else self._find_allowed(nearest, where))

    def has_regions(self) -> bool:
        """Whether any row has regions."""
        # A database made by an older version has no table of them.
        table = self._select("SELECT 1 FROM sqlite_master WHERE name = 'regions'")
        return bool(table and self._select("SELECT 1 FROM regions LIMIT 1"))

    def region_ids(self) -> Ids:
        """The ids of the rows that have regions, ascending."""
        if not self.has_regions():
            return np.zeros(0, np.int64)
        found = self._select("SELECT picture FROM regions ORDER BY picture")
        return np.array([row[0] for row in found], dtype=np.int64)

    def regions(self, ids: Sequence[int] | Ids) -> list[Regions]:
        """The regions of these ids in this order; empty for a row that has none."""
        found: dict[int, Regions] = {}
        for start in range(0, len(ids) if self.has_regions() else 0, 500):
            part = [int(one) for one in ids[start : start + 500]]
            places = ",".join("?" * len(part))
            for id_, boxes, vectors in self._select(
                f"SELECT picture, boxes, vectors FROM regions WHERE picture IN ({places})", part
            ):
                found[id_] = read_regions(boxes, vectors, self.info.dim)
        return [found.get(int(one)) or no_regions(self.info.dim) for one in ids]

    def search_regions(
        self, queries: Descriptors, top: int, where: Condition | None = None
    ) -> NearestRegions:
        """The `top` nearest regions of every query, among those of rows that meet `where`."""
        nearest = self._load_rows()
        with self._lock:
            version = self._loaded_version
            if self._region_rows is None or self._region_rows[0] != version:
                found = self._select("SELECT * FROM regions ORDER BY picture") if self.has_regions() else []
                try:
                    kept = RegionRows(found, self.info.dim, self.cache / f"regions-{version}.faiss")
                except ValueError as error:
                    raise report_damage(self._file, error) from error
                self._region_rows = version, kept
            regions = self._region_rows[1]
        allowed = None if where is None else nearest.ids[self._find_allowed(nearest, where)]
        return regions.search(queries, top, allowed)

    def note(self, name: str) -> str | None:
        """A text kept with the rows."""
        found = self._select("SELECT text FROM notes WHERE name = ?", [name])
        return str(found[0][0]) if found else None

    def set_note(self, name: str, text: str) -> None:
        """Keep a text under this name."""
        with self._lock, explain_errors(self._file), self._rows:
            self._rows.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, text))

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries to the journal, all or none; those that it holds already are left as they are."""
        with self._lock, explain_errors(self._file), self._rows:
            self._rows.execute("BEGIN IMMEDIATE")
            self._rows.execute(_JOURNAL)
            self._rows.executemany(
                "INSERT OR IGNORE INTO journal VALUES (?, ?)", [(one.id, one.text()) for one in entries]
            )

    def journal(self) -> list[Entry]:
        """What people said, in the order of time."""
        if not self._select("SELECT 1 FROM sqlite_master WHERE name = 'journal'"):
            return []
        try:
            return [parse_entry(*row) for row in self._select("SELECT id, entry FROM journal ORDER BY id")]
        except ValueError as error:
            raise report_damage(self._file, error) from error

    def version(self) -> str:
        """Changes whenever the rows change."""
        return self.note("version") or "0"

    def settle(self) -> None:
        """Nothing to do: the next search sees all rows."""

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._rows.close()

    def _select(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock, explain_errors(self._file):
            return self._rows.execute(statement, values).fetchall()

    def _row(self, values: tuple[Any, ...]) -> Row:
        id_, path, hash_, size, mtime, columns = values
        try:
            return Row(id_, IndexedImage(path, hash_, size, mtime, dict(json.loads(columns))))
        except (ValueError, TypeError) as error:
            raise report_damage(self._file, error) from error

    @contextmanager
    def _transaction(self, images: Sequence[IndexedImage] = ()) -> Iterator[sqlite3.Connection]:
        with self._lock, explain_errors(self._file), self._rows:
            self._rows.execute("BEGIN IMMEDIATE")
            yield self._rows
            self._keep_column_names(images)
            self._rows.execute("UPDATE notes SET text = CAST(text AS INTEGER) + 1 WHERE name = 'version'")
        self._load_again_at = 0.0

    def _keep_column_names(self, images: Sequence[IndexedImage]) -> None:
        known = self.columns()
        names = sorted({*known, *(name for one in images for name in one.columns)})
        if names != known:
            self._rows.execute("INSERT OR REPLACE INTO notes VALUES ('columns', ?)", (json.dumps(names),))

    def _read_info(self) -> StoreInfo:
        try:
            return StoreInfo.from_json(self.note("info") or "")
        except (ValueError, TypeError, KeyError) as error:
            raise report_damage(self._file, error) from error

    def _load_rows(self) -> NearestRows:
        version = self.version()
        if self._nearest is not None and version == self._loaded_version:
            return self._nearest
        with self._lock:
            if self._nearest is None or time.monotonic() >= self._load_again_at:
                began = time.monotonic()
                version = self.version()
                try:
                    self._nearest = self._segments.load()
                except ValueError as error:
                    raise report_damage(self._file, error) from error
                self._loaded_version = version
                self._filters.clear()
                took = time.monotonic() - began
                self._load_again_at = time.monotonic() + took / RELOAD_SHARE
            return self._nearest

    def _find_allowed(self, nearest: NearestRows, where: Condition) -> NDArray[np.bool_]:
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
    columns: Mapping[str, str] = image.columns
    numbers = {name: number for name, text in columns.items() if (number := number_of(text)) is not None}
    return (
        image.path,
        image.hash,
        image.size,
        image.mtime,
        json.dumps(dict(columns), ensure_ascii=False),
        json.dumps(numbers),
    )
