"""The cluster store: the same rows in a Milvus server, reached by its address."""

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from insclr.arrays import Descriptors, Ids
from insclr.errors import UserError
from insclr.retrieval.store.journal import Entry, parse_entry
from insclr.retrieval.store.milvus_regions import MilvusRegions
from insclr.retrieval.store.rows import (
    IndexedImage,
    NearestRegions,
    Neighbours,
    Regions,
    Row,
    StoreInfo,
    StoreUnavailable,
    check_descriptors,
)
from insclr.retrieval.store.where import Compare, Condition, Contains, Every, Not, number_of

_ROW_FIELDS = ["id", "path", "hash", "size", "mtime", "columns"]
_PATH_BYTES = 4096
_PART, _PAGE = 1000, 10_000  # rows in one message: with descriptors (64 MB is the limit), and without
_CONNECT, _ANSWER, _BUILD = 10.0, 60.0, 900.0  # seconds


class MilvusStore:
    """Rows in the collection named by the address (`http://host:19530/NAME`, NAME is `insclr` when left out).

    The id of a row is made from its path, so writing a row twice, or from two machines, leaves one row.
    """

    def __init__(self, uri: str) -> None:
        """Open an existing store; UserError when the server or the collection cannot be reached."""
        self.uri = uri
        self._wrote = False
        self._client, self._name = _connect(uri)
        with _speaking(uri):
            if not self._client.has_collection(self._name) or not self._client.has_collection(self._notes):
                raise UserError(f"no store at {uri}: make one with `insclr index MODEL IMAGES --store {uri}`")
            self._client.load_collection(self._name)
            self._client.load_collection(self._notes)
        found = self.note("info")
        if found is None:
            raise UserError(f"the store at {uri} was left half made: run `insclr index` again")
        self.info = StoreInfo.from_json(found)
        self._regions = MilvusRegions(
            self._client, f"{self._name}_regions", self.info.dim, lambda: _speaking(uri)
        )
        self.cache = Path.home() / ".cache" / "insclr" / hashlib.sha256(uri.encode()).hexdigest()[:16]
        self.parts = self.cache / "parts.sqlite"

    @classmethod
    def create(cls, uri: str, info: StoreInfo) -> "MilvusStore":
        """Open the store at `uri`, making its collections first where there are none."""
        client, name = _connect(uri)
        with _speaking(uri):
            if not client.has_collection(name):
                _create_rows(client, name, info.dim)
            if not client.has_collection(f"{name}_notes"):
                _create_notes(client, f"{name}_notes")
            if not client.get(f"{name}_notes", ids=["info"], output_fields=["text"]):
                client.upsert(
                    f"{name}_notes", [{"name": "info", "text": info.to_json(), "unused": [0.0, 0.0]}]
                )
        client.close()
        return cls(uri)

    @property
    def _notes(self) -> str:
        return f"{self._name}_notes"

    @property
    def _journal(self) -> str:
        return f"{self._name}_journal"

    def writing(self, wait: float = 30.0) -> AbstractContextManager[None]:  # noqa: ARG002
        """Nothing to hold: writes of the same row are the same write, from wherever they come."""
        return nullcontext()

    def upsert(
        self,
        images: Sequence[IndexedImage],
        descriptors: Descriptors,
        regions: Sequence[Regions] | None = None,
    ) -> None:
        """Add rows (unit descriptors), or replace those of the same paths, keeping their ids."""
        descriptors = check_descriptors(descriptors, len(images), self.info.dim)
        rows = [
            _entity(one) | {"vector": descriptor} for one, descriptor in zip(images, descriptors, strict=True)
        ]
        # Regions first: a run that is killed in between leaves the rows as they were, and the next run writes both.
        self._regions.replace(rows, regions)
        with _speaking(self.uri):
            for start in range(0, len(rows), _PART):
                self._client.upsert(self._name, rows[start : start + _PART])
        self._changed(images)

    def update(self, images: Sequence[IndexedImage]) -> None:
        """Change everything but the descriptor of rows that exist."""
        existing = {row.id for row in self.rows([id_of(one.path) for one in images])}
        images = [one for one in images if id_of(one.path) in existing]
        if images:
            ids = [id_of(one.path) for one in images]
            self.upsert(images, self.descriptors(ids), self.regions(ids))

    def delete(self, paths: Sequence[str]) -> None:
        """Remove the rows of these paths; paths that have none are ignored."""
        self._regions.delete([id_of(path) for path in paths])
        with _speaking(self.uri):
            for start in range(0, len(paths), _PART):
                self._client.delete(self._name, ids=[id_of(path) for path in paths[start : start + _PART]])
        self._changed([])

    def rows_by_path(self) -> dict[str, Row]:
        """Every row by its path."""
        return {row.image.path: row for row in map(_row, self._every(_ROW_FIELDS))}

    def rows(self, ids: Sequence[int]) -> list[Row]:
        """The rows of these ids in this order; ids that are gone are left out."""
        found = {row.id: row for row in map(_row, self._get(ids, _ROW_FIELDS))}
        return [found[int(one)] for one in ids if int(one) in found]

    def ids(self) -> Ids:
        """Every id, ascending."""
        return np.sort(np.array([row["id"] for row in self._every(["id"])], dtype=np.int64))

    def descriptors(self, ids: Sequence[int] | Ids) -> Descriptors:
        """The descriptors of these ids in this order; KeyError when one is gone."""
        found = {row["id"]: row["vector"] for row in self._get(ids, ["id", "vector"])}
        return np.array([found[int(one)] for one in ids], dtype=np.float32).reshape(len(ids), self.info.dim)

    def count(self) -> int:
        """How many rows there are."""
        with _speaking(self.uri):
            found = self._client.query(
                self._name,
                filter="",
                output_fields=["count(*)"],
                consistency_level="Strong",
                timeout=_ANSWER,
            )
        return int(found[0]["count(*)"])

    def columns(self) -> list[str]:
        """The names of the user's own columns, sorted."""
        names: list[str] = json.loads(self.note("columns") or "[]")
        return names

    def search(self, queries: Descriptors, top: int, where: Condition | None = None) -> Neighbours:
        """The `top` nearest rows of every query, among those that meet `where`."""
        ids = np.full((len(queries), top), -1, dtype=np.int64)
        similarities = np.full((len(queries), top), -1.0, dtype=np.float32)
        with _speaking(self.uri):
            answers = self._client.search(
                self._name,
                data=[query.tolist() for query in np.asarray(queries, dtype=np.float32)],
                limit=top,
                filter="" if where is None else to_expression(where),
                search_params={"metric_type": "COSINE", "params": {"ef": max(512, 4 * top)}},
                consistency_level="Strong",
                timeout=_ANSWER,
            )
        for place, hits in enumerate(answers):
            ids[place, : len(hits)] = [hit["id"] for hit in hits]
            similarities[place, : len(hits)] = [hit["distance"] for hit in hits]
        return Neighbours(ids, similarities)

    def has_regions(self) -> bool:
        """Whether any row has regions."""
        return self._regions.there()

    def region_ids(self) -> Ids:
        """The ids of the rows that have regions, ascending."""
        return self._regions.ids()

    def regions(self, ids: Sequence[int] | Ids) -> list[Regions]:
        """The regions of these ids in this order; empty for a row that has none."""
        return self._regions.of(ids)

    def search_regions(
        self, queries: Descriptors, top: int, where: Condition | None = None
    ) -> NearestRegions:
        """The `top` nearest regions of every query, among those of rows that meet `where`."""
        return self._regions.search(queries, top, "" if where is None else to_expression(where))

    def note(self, name: str) -> str | None:
        """A text kept with the rows."""
        with _speaking(self.uri):
            found = self._client.get(self._notes, ids=[name], output_fields=["text"], timeout=_ANSWER)
        return str(found[0]["text"]) if found else None

    def set_note(self, name: str, text: str) -> None:
        """Keep a text under this name."""
        with _speaking(self.uri):
            self._client.upsert(self._notes, [{"name": name, "text": text, "unused": [0.0, 0.0]}])

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries to the journal; one that it holds already is written as it was."""
        rows = [{"name": one.id, "text": one.text(), "unused": [0.0, 0.0]} for one in entries]
        with _speaking(self.uri):
            if not self._client.has_collection(self._journal):
                _create_notes(self._client, self._journal)
            # One message holds them all where people write; only a copied journal is longer.
            for start in range(0, len(rows), _PART):
                self._client.upsert(self._journal, rows[start : start + _PART])

    def journal(self) -> list[Entry]:
        """What people said, in the order of time."""
        with _speaking(self.uri):
            if not self._client.has_collection(self._journal):
                return []
            self._client.load_collection(self._journal)
            pages = self._client.query_iterator(
                self._journal,
                batch_size=_PART,
                output_fields=["name", "text"],
                consistency_level="Strong",
            )
            found: list[dict[str, Any]] = []
            while page := pages.next():
                found += page
            pages.close()
        return sorted(parse_entry(row["name"], row["text"]) for row in found)

    def version(self) -> str:
        """Changes whenever the rows change."""
        return self.note("version") or "0"

    def close(self) -> None:
        """Leave the server; what was written is sealed first, so that searches use the index."""
        try:
            if self._wrote:
                with _speaking(self.uri):
                    self._client.flush(self._name, timeout=_BUILD)
                self._regions.flush(_BUILD)
        finally:
            self._client.close()

    def _changed(self, images: Sequence[IndexedImage]) -> None:
        self._wrote = True
        known = self.columns()
        names = sorted({*known, *(name for one in images for name in one.columns)})
        if names != known:
            self.set_note("columns", json.dumps(names))
        self.set_note("version", str(int(self.version()) + 1))

    def _get(self, ids: Sequence[int] | Ids, fields: list[str]) -> Iterator[dict[str, Any]]:
        with _speaking(self.uri):
            for start in range(0, len(ids), _PART):
                part = [int(one) for one in ids[start : start + _PART]]
                yield from self._client.get(self._name, ids=part, output_fields=fields, timeout=_ANSWER)

    def _every(self, fields: list[str]) -> Iterator[dict[str, Any]]:
        with _speaking(self.uri):
            pages = self._client.query_iterator(self._name, batch_size=_PAGE, output_fields=fields)
            while page := pages.next():
                yield from page
            pages.close()


def id_of(path: str) -> int:
    """The id of the row of a path: 63 bits of a hash (a clash among ten million paths: 1 in 180,000)."""
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "big") >> 1


def to_expression(where: Condition) -> str:
    """A condition in Milvus' filter language; every name and value goes through JSON quoting.

    Milvus cannot quote % and _ in a pattern: `contains` takes them for "anything" and "any letter" here.
    """
    if isinstance(where, Compare):
        number = isinstance(where.value, float)
        if where.column == "path" and number:
            return "id < 0"
        sign = "==" if where.sign == "=" else where.sign
        return _present("numbers" if number else "columns", where.column, f"{sign} {json.dumps(where.value)}")
    if isinstance(where, Contains):
        return _present("columns", where.column, f"like {json.dumps(f'%{where.text}%')}")
    if isinstance(where, Not):
        return f"not ({to_expression(where.condition)})"
    joint = " and " if isinstance(where, Every) else " or "
    return joint.join(f"({to_expression(one)})" for one in where.conditions)


def _present(source: str, name: str, test: str) -> str:
    if name == "path":
        return f"path {test}"
    # Without `exists` a missing value makes the test neither true nor false, and `not` of that is not true.
    column = f"{source}[{json.dumps(name)}]"
    return f"(exists {column} and {column} {test})"


def _entity(image: IndexedImage) -> dict[str, Any]:
    if len(image.path.encode()) > _PATH_BYTES:
        raise UserError(
            f"path longer than {_PATH_BYTES} bytes, which Milvus cannot hold: {image.path[:80]}..."
        )
    numbers = {
        name: number for name, text in image.columns.items() if (number := number_of(text)) is not None
    }
    return {
        "id": id_of(image.path),
        "path": image.path,
        "hash": image.hash,
        "size": image.size,
        "mtime": image.mtime,
        "columns": dict(image.columns),
        "numbers": numbers,
    }


def _row(entity: dict[str, Any]) -> Row:
    columns = entity["columns"]
    image = IndexedImage(
        entity["path"],
        entity["hash"],
        int(entity["size"]),
        int(entity["mtime"]),
        json.loads(columns) if isinstance(columns, str) else columns,
    )
    return Row(int(entity["id"]), image)


def _connect(uri: str) -> tuple[Any, str]:
    try:
        from pymilvus import MilvusClient
        from pymilvus.exceptions import MilvusException
    except ImportError:
        raise UserError("a Milvus store needs pymilvus: pip install 'insclr[milvus]'") from None
    # Its own log repeats, with a traceback, every error that is raised to us anyway.
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    server, name = uri, "insclr"
    if "://" in uri:
        parts = urlsplit(uri)
        server, name = f"{parts.scheme}://{parts.netloc}", parts.path.strip("/") or "insclr"
    if not name.isidentifier():
        raise UserError(f"{name!r} cannot name a Milvus collection: letters, digits and _ only")
    began = time.monotonic()
    with _speaking(uri):
        try:
            return MilvusClient(uri=server, timeout=_CONNECT), name
        except MilvusException:
            if time.monotonic() - began > _CONNECT / 2:
                raise
            # A server closes connections that were idle ("too many pings"): a second attempt opens a new one.
            return MilvusClient(uri=server, timeout=_CONNECT), name


@contextmanager
def _speaking(uri: str) -> Iterator[None]:
    import grpc  # type: ignore[import-untyped]
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except MilvusException as error:
        raise StoreUnavailable(f"Milvus at {uri} does not answer as it should: {error.message}") from error
    except grpc.RpcError as error:  # pymilvus lets some through: a deadline, a server that went away
        reason = error.details() if hasattr(error, "details") else type(error).__name__
        raise StoreUnavailable(f"Milvus at {uri} does not answer: {reason}") from error


def _create_rows(client: Any, name: str, dim: int) -> None:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("path", DataType.VARCHAR, max_length=_PATH_BYTES)
    schema.add_field("hash", DataType.VARCHAR, max_length=128)
    schema.add_field("size", DataType.INT64)
    schema.add_field("mtime", DataType.INT64)
    schema.add_field("columns", DataType.JSON)
    schema.add_field("numbers", DataType.JSON)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
    index = client.prepare_index_params()
    parameters = {"M": 32, "efConstruction": 200}
    index.add_index("vector", index_type="HNSW", metric_type="COSINE", params=parameters)
    client.create_collection(name, schema=schema, index_params=index)


def _create_notes(client: Any, name: str) -> None:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("name", DataType.VARCHAR, is_primary=True, max_length=64)
    schema.add_field("text", DataType.VARCHAR, max_length=65535)
    schema.add_field("unused", DataType.FLOAT_VECTOR, dim=2)  # a collection must have a vector
    index = client.prepare_index_params()
    index.add_index("unused", index_type="FLAT", metric_type="L2")
    client.create_collection(name, schema=schema, index_params=index)
