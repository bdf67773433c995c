"""The embedded store: a folder with a SQLite database of rows and descriptors, and mapped segments to search them."""

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Descriptors, Ids, Regions, no_regions
from insclr.data.formats import what_is
from insclr.errors import UserError
from insclr.files import only_writer, sync_folder
from insclr.store.database import UPSERT, Database, report_damage, whole
from insclr.store.rows import (
    Entry,
    IndexedImage,
    NearestRegions,
    Neighbours,
    Row,
    StoreInfo,
    check_descriptors,
)
from insclr.store.segment import DamagedSegment, NearestRows, RegionRows
from insclr.store.segments import Segments, select_by_id
from insclr.store.store_models import rows_folder, split_model
from insclr.store.where import Condition, meets

_log = logging.getLogger(__name__)
Found = TypeVar("Found")
_ROWS = "rows.sqlite"
_PARTS = "parts.sqlite"
_OWN_FILES = {
    *(f"{name}{ending}" for name in (_ROWS, _PARTS) for ending in ("", "-wal", "-shm")),
    *("writer.lock", "cache"),
}
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
            raise _no_store(folder)
        self.uri = str(folder)
        self.cache = self.folder / "cache"
        self.parts = self.folder / _PARTS
        self._nearest: NearestRows | None = None
        self._loaded_version = ""
        self._load_again_at = 0.0
        self._filters: dict[Condition, NDArray[np.bool_]] = {}
        self._region_rows: tuple[str, RegionRows] | None = None  # and the version they are of
        self._database = self._home = Database(own / _ROWS)
        self._lock = self._database.lock
        try:
            if self.model_number > 1:  # the first model's database has the journal of all models
                self._home = Database(self.folder / _ROWS)
            self._database.warn_of_structure()
            with self._report_damage():
                self.info = StoreInfo.from_json(self.note("info") or "")
        except BaseException:
            self.close()
            raise
        if (run := own / "run").is_dir() and self.model_number > 1:  # also where the store has moved
            self.info = replace(self.info, model=str(run.absolute()))
        self._segments = Segments(own / "cache" / "segments", self.info.dim, self._database)

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether there is a store in this folder."""
        return (folder / _ROWS).is_file()

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
        Database(own / _ROWS, info.to_json()).close()
        sync_folder(own)
        return cls(folder)

    @contextmanager
    def writing(self, wait: float = 30.0) -> Iterator[None]:
        with only_writer(self.folder / "writer.lock", wait):
            self._database.drop_damaged()
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
                UPSERT, [(*_values(one), half.tobytes()) for one, half in zip(images, halves, strict=True)]
            )
            paths = [one.path for one in images]
            self._database.fill("pictures", "path = ?", paths)
            if regions is not None:
                _write_regions(self._database, paths, regions, self.info.dim)

    def update(self, images: Sequence[IndexedImage]) -> None:
        statement = (
            "UPDATE pictures SET hash = ?, size = ?, mtime = ?, columns = ?, numbers = ? WHERE path = ?"
        )
        with self._transaction(images) as rows:
            rows.executemany(statement, [(*_values(one)[1:], one.path) for one in images])
            self._database.fill("pictures", "path = ?", [one.path for one in images], only="row_check")

    def delete(self, paths: Sequence[str]) -> None:
        with self._transaction() as rows:
            rows.executemany("DELETE FROM pictures WHERE path = ?", [(path,) for path in paths])

    def damage(self) -> list[str]:
        """Read everything that is kept, and name what is damaged; segments are made again."""
        found = [*self._database.find_damage(), *self._home.find_journal_damage()]
        return found + [f"segment {one}, which is made again now" for one in self._segments.read_all()]

    def rows_by_path(self) -> dict[str, Row]:
        return {row.image.path: row for row in self._read_rows()}

    def rows(self, ids: Sequence[int]) -> list[Row]:
        statement, values = select_by_id("WHERE id", ids)
        found = {row.id: row for row in self._read_rows(statement, values)}
        return [found[int(one)] for one in ids if int(one) in found]

    def ids(self) -> Ids:
        return self._load().ids

    def descriptors(self, ids: Sequence[int] | Ids) -> Descriptors:
        wanted = np.asarray(ids, dtype=np.int64)
        try:
            return self._read(lambda nearest: nearest.descriptors(wanted))
        except KeyError:
            if self.version() == self._loaded_version:
                raise
            self._load_again_at = 0.0  # a row that a writer has just added: reloading cannot be put off
            return self._read(lambda nearest: nearest.descriptors(wanted))

    def count(self) -> int:
        return int(self._database.select("SELECT count(*) FROM pictures")[0][0])

    def columns(self) -> list[str]:
        names: list[str] = json.loads(self.note("columns") or "[]")
        return names

    def search(self, queries: Descriptors, top: int, where: Condition | None = None) -> Neighbours:
        def search(nearest: NearestRows) -> Neighbours:
            return nearest.search(queries, top, None if where is None else self._filter(nearest, where))

        return self._read(search)

    def _read(self, work: Callable[[NearestRows], Found]) -> Found:
        """The result of some work on the rows, which is repeated where a segment turns out to be damaged."""
        try:
            return work(self._load())
        except DamagedSegment as error:
            _log.warning("a segment of %s is made again (%s)", self.cache, error)
            with self._lock:
                self._nearest = None
                self._segments.drop_damaged()
            return work(self._load())

    def has_regions(self) -> bool:
        return bool(self._database.select("SELECT 1 FROM regions LIMIT 1"))

    def region_ids(self) -> Ids:
        found = self._database.select("SELECT picture FROM regions ORDER BY picture")
        return np.array([row[0] for row in found], dtype=np.int64)

    def regions(self, ids: Sequence[int] | Ids) -> list[Regions]:
        dim = self.info.dim
        kept = self._select_regions(*select_by_id("WHERE picture", ids))
        found = {row: _read_regions(boxes, vectors, dim) for row, boxes, vectors in kept}
        return [found.get(int(one)) or no_regions(dim) for one in ids]

    def _select_regions(self, which: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        statement = f"SELECT picture, boxes, vectors, {whole('regions')} FROM regions {which}"
        return self._database.keep_whole("regions", self._database.select(statement, values))

    def search_regions(
        self, queries: Descriptors, top: int, where: Condition | None = None
    ) -> NearestRegions:
        nearest = self._load()
        with self._lock, self._report_damage():
            version = self._loaded_version
            if self._region_rows is None or self._region_rows[0] != version:
                found = self._select_regions("ORDER BY picture")
                self._region_rows = version, RegionRows(found, self.info.dim)
            regions = self._region_rows[1]
        allowed = None if where is None else nearest.ids[self._filter(nearest, where)]
        return regions.search(queries, top, allowed)

    def note(self, name: str) -> str | None:
        return self._database.note(name)

    def set_note(self, name: str, text: str) -> None:
        self._database.set_note(name, text)

    def append(self, entries: Sequence[Entry]) -> None:
        self._home.append(entries)

    def journal(self) -> list[Entry]:
        return self._home.journal()

    def version(self) -> str:
        return self.note("version") or "0"

    def settle(self) -> None:
        pass  # the next search sees all rows

    def close(self) -> None:
        self._database.close()
        self._home.close()

    def _read_rows(self, which: str = "", values: Sequence[object] = ()) -> list[Row]:
        """The rows that an SQL condition selects, the damaged ones left out."""
        check = whole("pictures", "row_check")
        statement = f"SELECT id, path, hash, size, mtime, columns, {check} FROM pictures {which}"
        every = self._database.select(statement, values)
        found = self._database.keep_whole("rows", every)
        with self._report_damage():
            if every and not found:
                raise ValueError("no row can be read")
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
            raise report_damage(self._database.file, error) from error

    @contextmanager
    def _transaction(self, images: Sequence[IndexedImage] = ()) -> Iterator[sqlite3.Connection]:
        with self._database.transaction() as rows:
            yield rows
            known = self.columns()
            names = sorted({*known, *(name for one in images for name in one.columns)})
            if names != known:
                self._database.write_note("columns", json.dumps(names))
            rows.execute("UPDATE notes SET text = CAST(text AS INTEGER) + 1 WHERE name = 'version'")
            self._database.fill("notes", "name = ?", ["version"])
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
                    if not len(self._nearest.ids) and self.count():
                        raise ValueError("no row can be read")
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
            self._database.rows.create_function(
                "met", 2, lambda *row: meets(where, row[0], json.loads(row[1]))
            )
            check = whole("pictures", "row_check")
            statement = (
                f"SELECT id, {check} FROM pictures WHERE CASE WHEN {check} THEN met(path, columns) ELSE 1 END"
            )
            met = [row[0] for row in self._database.keep_whole("rows", self._database.select(statement))]
            allowed = np.isin(nearest.ids, np.array(met, dtype=np.int64))
            if nearest is self._nearest:
                self._filters[where] = allowed
                if len(self._filters) > _KEPT_FILTERS:
                    self._filters.pop(next(iter(self._filters)))
            return allowed


def _no_store(folder: Path) -> UserError:
    match what_is(folder):
        case "a photo":
            return UserError(f"{folder} is a photo, not a store: name the store first, then the photo.")
        case "a folder of photos":
            command = f"insclr index MODEL {folder} --store STORE"
            return UserError(f"{folder} is a folder of photos, not a store: make one with `{command}`.")
        case "":
            command = f"insclr index MODEL IMAGES --store {folder}"
            return UserError(f"no store at {folder}: make one with `{command}`")
        case kind:
            command = f"insclr index {folder} PHOTOS --store STORE"
            return UserError(f"{folder} is {kind}, not a store: make one with `{command}`.")


def _values(image: IndexedImage) -> tuple[str, str, int, int, str, str]:
    columns = json.dumps(dict(image.columns), ensure_ascii=False)
    return image.path, image.hash, image.size, image.mtime, columns, "{}"


def _write_regions(database: Database, paths: Sequence[str], regions: Sequence[Regions], dim: int) -> None:
    """Keep the regions of the rows of these paths, within the transaction at hand."""
    for one in regions:
        check_descriptors(one.descriptors, len(one.boxes), dim)
    database.rows.executemany(
        "INSERT OR REPLACE INTO regions (picture, boxes, vectors) SELECT id, ?, ? FROM pictures WHERE path = ?",
        [
            (one.boxes.astype("<f4").tobytes(), one.descriptors.astype("<f2").tobytes(), path)
            for path, one in zip(paths, regions, strict=True)
        ],
    )
    database.fill("regions", "picture = (SELECT id FROM pictures WHERE path = ?)", paths)


def _read_regions(boxes: bytes, vectors: bytes, dim: int) -> Regions:
    """One row's regions as they are kept; ValueError when their lengths do not fit."""
    return Regions(
        np.frombuffer(boxes, dtype="<f4").reshape(-1, 4),
        np.frombuffer(vectors, dtype="<f2").reshape(-1, dim).astype(np.float32),
    )
