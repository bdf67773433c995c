"""The cluster store: the same rows in a Milvus server, reached by its address."""

import hashlib
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from insclr.arrays import MAX_REGIONS, Descriptors, Ids, Regions, Scores
from insclr.errors import UserError
from insclr.store.milvus_fields import (
    ROW_FIELDS,
    TEXT_FIELDS,
    Entity,
    read_boxes,
    read_regions,
    read_row,
    region_entities,
    region_fields,
    region_id,
    row_entity,
    row_fields,
    row_id,
    text_entity,
)
from insclr.store.milvus_server import HALF_MADE, MilvusServer
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
from insclr.store.where import Condition, has_contains, to_milvus

_log = logging.getLogger(__name__)

_COLUMN = "column:"  # notes with this beginning are the names of columns
ENTRIES_PER_MESSAGE = 1000  # of the journal in one message: each may have 60 kB
_CONTAINS_FROM = (2, 4)  # Milvus versions that look for a text inside of values
SEALED_FROM_ROWS = 10_000  # rows written: fewer are left to Milvus, which seals segments by itself


class MilvusStore:
    """Rows in the collection named by the address (`http://host:19530/NAME`, NAME is `insclr` when left out).

    The id of a row is made from its path, so writing a row twice, or from two machines, leaves one row. Several
    processes may write at once: nothing that is written depends on what was read before.
    """

    folder = None

    def __init__(self, uri: str, server: MilvusServer | None = None) -> None:
        """Open an existing store; UserError when the server or the collection cannot be reached."""
        self.uri = uri
        self.server = server = server or MilvusServer(uri)
        self._name = server.name
        self._notes, self._journal, self._regions = (
            f"{self._name}_{part}" for part in ("notes", "journal", "regions")
        )
        self._regions_loaded = False
        self._written = 0
        try:
            self.info = self._read_info()
        except BaseException:
            server.close()
            raise
        self._columns: set[str] = set()  # names that this process has written
        self.cache = Path.home() / ".cache" / "insclr" / hashlib.sha256(uri.encode()).hexdigest()[:16]
        self.parts = self.cache / "parts.sqlite"

    @classmethod
    def create(cls, uri: str, info: StoreInfo) -> "MilvusStore":
        """Open the store at `uri`, making its collections first, or what a killed process left out of them."""
        server = MilvusServer(uri)
        if server.has(server.name):
            _refuse_others(server)
        server.create(server.name, row_fields(info.dim), info.to_json())
        server.create(f"{server.name}_notes", TEXT_FIELDS)
        if not server.describe(server.name)[0] and not list(
            server.get(f"{server.name}_notes", ["info"], ["name"])
        ):
            server.upsert(f"{server.name}_notes", [text_entity("info", info.to_json())])
        return cls(uri, server)

    def _read_info(self) -> StoreInfo:
        """Have the server hold the rows and notes ready, and say what the store is about."""
        server, uri = self.server, self.uri
        if not server.has(self._name):
            raise UserError(f"no store at {uri}: make one with `insclr index MODEL IMAGES --store {uri}`")
        _refuse_others(server)
        if not server.has(self._notes):
            raise UserError(HALF_MADE.format(uri=uri))
        server.load(self._name)
        server.load(self._notes)
        # Milvus Lite keeps no descriptions, and stores of older versions have none.
        found = server.describe(self._name)[0] or self.note("info")
        if found is None:
            raise UserError(HALF_MADE.format(uri=uri))
        try:
            return StoreInfo.from_json(found)
        except (ValueError, TypeError, KeyError) as error:
            raise _report_damage(uri, error) from error

    def writing(self, wait: float = 30.0) -> AbstractContextManager[None]:  # noqa: ARG002
        """Nothing to hold: writes of the same row are the same write, from wherever they come."""
        return nullcontext()

    def upsert(
        self,
        images: Sequence[IndexedImage],
        descriptors: Descriptors,
        regions: Sequence[Regions] | None = None,
    ) -> None:
        descriptors = check_descriptors(descriptors, len(images), self.info.dim)
        rows = [row_entity(one, descriptor) for one, descriptor in zip(images, descriptors, strict=True)]
        # Regions first: a run that is killed in between leaves the rows as they were, and the next run writes both.
        self._delete_regions([row["id"] for row in rows])
        if regions is not None and any(len(one.boxes) for one in regions):
            if not self.has_regions():
                self.server.create(self._regions, region_fields(self.info.dim))
            pairs = zip(rows, regions, strict=True)
            self.server.upsert(self._regions, [entity for pair in pairs for entity in region_entities(*pair)])
        self.server.upsert(self._name, rows)
        self._written += len(rows)
        self._note_change({name for one in images for name in one.columns})

    def update(self, images: Sequence[IndexedImage]) -> None:
        existing = {row.id for row in self.rows([row_id(one.path) for one in images])}
        images = [one for one in images if row_id(one.path) in existing]
        if images:
            ids = [row_id(one.path) for one in images]
            self.upsert(images, self.descriptors(ids), self.regions(ids))

    def delete(self, paths: Sequence[str]) -> None:
        ids = [row_id(path) for path in paths]
        self._delete_regions(ids)
        self.server.delete(self._name, ids)
        self._note_change(set())

    def rows_by_path(self) -> dict[str, Row]:
        found = map(read_row, self.server.every(self._name, "id", ROW_FIELDS))
        return {row.image.path: row for row in found}

    def rows(self, ids: Sequence[int]) -> list[Row]:
        found = {row.id: row for row in map(read_row, self._get(ids, ROW_FIELDS))}
        return [found[int(one)] for one in ids if int(one) in found]

    def ids(self) -> Ids:
        found = self.server.every(self._name, "id", ["id"])
        return np.array([row["id"] for row in found], dtype=np.int64)

    def descriptors(self, ids: Sequence[int] | Ids) -> Descriptors:
        found = {row["id"]: row["vector"] for row in self._get(ids, ["id", "vector"])}
        return np.array([found[int(one)] for one in ids], dtype=np.float32).reshape(len(ids), self.info.dim)

    def count(self) -> int:
        return self.server.count(self._name)

    def columns(self) -> list[str]:
        notes = self.server.every(self._notes, "name", ["name", "text"], ENTRIES_PER_MESSAGE)
        return sorted({str(note["text"]) for note in notes if note["name"].startswith(_COLUMN)})

    def search(self, queries: Descriptors, top: int, where: Condition | None = None) -> Neighbours:
        """The `top` nearest rows of every query, among those that meet `where`; Milvus gives at most 16,384."""
        return Neighbours(*self._search(self._name, queries, top, where, [])[:2])

    def has_regions(self) -> bool:
        if not self._regions_loaded and self.server.has(self._regions):
            self.server.load(self._regions)
            self._regions_loaded = True
        return self._regions_loaded

    def region_ids(self) -> Ids:
        if not self.has_regions():
            return np.zeros(0, np.int64)
        found = self.server.every(self._regions, "id", ["id", "picture"])
        return np.unique(np.array([int(one["picture"]) for one in found], dtype=np.int64))

    def regions(self, ids: Sequence[int] | Ids) -> list[Regions]:
        found: dict[int, list[Entity]] = {int(row): [] for row in ids}
        if self.has_regions():
            fields = ["picture", "box", "vector"]
            for entity in self.server.get(self._regions, _region_ids(list(found)), fields):
                found[int(entity["picture"])].append(entity)
        return [read_regions(found[int(row)], self.info.dim) for row in ids]

    def search_regions(
        self, queries: Descriptors, top: int, where: Condition | None = None
    ) -> NearestRegions:
        ids, similarities, entities = self._search(self._regions, queries, top, where, ["picture", "box"])
        boxes = np.zeros((len(queries), top, 4), dtype=np.float32)
        for place, found in enumerate(entities):
            ids[place, : len(found)] = [one["picture"] for one in found]
            boxes[place, : len(found)] = read_boxes([one["box"] for one in found])
        return NearestRegions(ids, similarities, boxes)

    def note(self, name: str) -> str | None:
        found = list(self.server.get(self._notes, [name], ["text"]))
        return str(found[0]["text"]) if found else None

    def set_note(self, name: str, text: str) -> None:
        self.server.upsert(self._notes, [text_entity(name, text)])

    def append(self, entries: Sequence[Entry]) -> None:
        self.server.create(self._journal, TEXT_FIELDS)
        # One message holds them all where people write; only a copied journal is longer.
        self.server.upsert(self._journal, [text_entity(one.id, one.text()) for one in entries])

    def journal(self) -> list[Entry]:
        if not self.server.has(self._journal):
            return []
        self.server.load(self._journal)
        found = self.server.every(self._journal, "name", ["name", "text"], ENTRIES_PER_MESSAGE)
        try:
            return sorted(parse_entry(row["name"], row["text"]) for row in found)
        except ValueError as error:
            raise _report_damage(self.uri, error) from error

    def version(self) -> str:
        return self.note("version") or "0"

    def settle(self) -> None:
        """After 10,000 rows or more: have Milvus index them, and wait for it, at most 15 minutes.

        Until then it searches them by a coarse index of its own, which misses neighbours.
        """
        if self._written >= SEALED_FROM_ROWS:
            for collection in (self._name, *([self._regions] if self.has_regions() else [])):
                if not self.server.settle(collection):
                    _log.warning(
                        "Milvus at %s is still indexing: searches miss some photos until then", self.uri
                    )
            self._written = 0

    def close(self) -> None:
        self.server.close()

    def _search(
        self, collection: str, queries: Descriptors, top: int, where: Condition | None, fields: list[str]
    ) -> tuple[Ids, Scores, list[list[Entity]]]:
        """Ids and similarities (queries, top), and the fields of what was found; empty without the collection."""
        if where is not None and has_contains(where) and self.server.version < _CONTAINS_FROM:
            raise UserError(
                f"`contains` needs Milvus 2.4 or newer, {self.uri} is older: compare with = instead"
            )
        ids = np.full((len(queries), top), -1, dtype=np.int64)
        similarities = np.full((len(queries), top), -1.0, dtype=np.float32)
        entities: list[list[Entity]] = []
        if collection == self._name or self.has_regions():
            expression = "" if where is None else to_milvus(where)
            found = self.server.search(collection, queries, top, expression, fields)
            for place, hits in enumerate(found):
                ids[place, : len(hits)] = [hit["id"] for hit in hits]
                similarities[place, : len(hits)] = [hit["distance"] for hit in hits]
                entities.append([hit["entity"] for hit in hits] if fields else [])
        return ids, similarities, entities

    def _delete_regions(self, rows: Sequence[int]) -> None:
        if rows and self.has_regions():
            self.server.delete(self._regions, _region_ids(rows))

    def _note_change(self, columns: set[str]) -> None:
        # Random, and a note for each column: what two processes write at once must not undo each other.
        notes = [text_entity("version", f"{time.time_ns()}-{secrets.token_hex(4)}")]
        notes += [text_entity(_column_note(name), name) for name in sorted(columns - self._columns)]
        self.server.upsert(self._notes, notes)
        self._columns |= columns

    def _get(self, ids: Sequence[int] | Ids, fields: list[str]) -> Iterator[dict[str, Any]]:
        return self.server.get(self._name, [int(one) for one in ids], fields)


def _region_ids(rows: Sequence[int]) -> list[int]:
    """All ids that the regions of rows may have."""
    return [region_id(row, number) for row in rows for number in range(MAX_REGIONS)]


def _column_note(column: str) -> str:
    return _COLUMN + hashlib.blake2b(column.encode(), digest_size=16).hexdigest()


def _report_damage(uri: str, error: Exception) -> UserError:
    return UserError(f"the store at {uri} is damaged ({error}): index into a new one, under another name")


def _refuse_others(server: MilvusServer) -> None:
    """Raise UserError when the collection of this name was made by another program."""
    if not set(ROW_FIELDS) <= server.describe(server.name)[1]:
        raise UserError(
            f"the collection {server.name} at {server.uri} is not a store of insclr: give another name in the address"
        )
