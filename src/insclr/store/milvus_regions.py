"""The regions of a Milvus store: a collection of their own beside that of the rows."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import MAX_REGIONS, Descriptors, Ids, Regions, no_regions
from insclr.store.milvus_server import Fields, MilvusServer
from insclr.store.rows import NearestRegions

_COPIED = ("path", "columns", "numbers")  # of the row, so that filters work on regions too
_PATH_BYTES = 4096


class MilvusRegions:
    """The collection `name`, made when the first regions come."""

    def __init__(self, server: MilvusServer, name: str, dim: int) -> None:
        self._server = server
        self.name = name
        self._dim = dim
        self._loaded = False

    def there(self) -> bool:
        """Whether the store has regions at all."""
        if not self._loaded and self._server.has(self.name):
            self._server.load(self.name)
            self._loaded = True
        return self._loaded

    def replace(self, rows: Sequence[Mapping[str, Any]], regions: Sequence[Regions] | None) -> None:
        """Write the regions of rows in place of those they had; without `regions` they have none any more."""
        self.delete([row["id"] for row in rows])
        if regions is None or not any(len(one.boxes) for one in regions):
            return
        if not self.there():
            self._server.create(self.name, _fields(self._dim))
        entities = [
            {name: row[name] for name in _COPIED}
            | {
                "id": region_id(row["id"], number),
                "picture": row["id"],
                "box": {"sides": [round(float(side), 4) for side in box]},  # a server takes objects alone
                "vector": vector,
            }
            for row, found in zip(rows, regions, strict=True)
            for number, (box, vector) in enumerate(zip(found.boxes, found.descriptors, strict=True))
        ]
        self._server.upsert(self.name, entities)

    def delete(self, rows: Sequence[int]) -> None:
        """Remove the regions of rows."""
        if not rows or not self.there():
            return
        ids = [region_id(row, number) for row in rows for number in range(MAX_REGIONS)]
        self._server.delete(self.name, ids)

    def ids(self) -> Ids:
        """The ids of the rows that have regions, ascending."""
        if not self.there():
            return np.zeros(0, np.int64)
        found = self._server.every(self.name, "id", ["id", "picture"])
        return np.unique(np.array([int(one["picture"]) for one in found], dtype=np.int64))

    def of(self, rows: Sequence[int] | Ids) -> list[Regions]:
        """The regions of rows in this order; empty for a row that has none."""
        found: dict[int, list[dict[str, Any]]] = {int(row): [] for row in rows}
        if self.there():
            ids = [region_id(row, number) for row in found for number in range(MAX_REGIONS)]
            for entity in self._server.get(self.name, ids, ["picture", "box", "vector"]):
                found[int(entity["picture"])].append(entity)
        return [_regions(found[int(row)], self._dim) for row in rows]

    def search(self, queries: Descriptors, top: int, expression: str) -> NearestRegions:
        """The `top` nearest regions of every query, among those that meet the filter."""
        ids = np.full((len(queries), top), -1, dtype=np.int64)
        similarities = np.full((len(queries), top), -1.0, dtype=np.float32)
        boxes = np.zeros((len(queries), top, 4), dtype=np.float32)
        if not self.there():
            return NearestRegions(ids, similarities, boxes)
        answers = self._server.search(self.name, queries, top, expression, ["picture", "box"])
        for place, hits in enumerate(answers):
            ids[place, : len(hits)] = [hit["entity"]["picture"] for hit in hits]
            similarities[place, : len(hits)] = [hit["distance"] for hit in hits]
            boxes[place, : len(hits)] = _boxes([hit["entity"]["box"] for hit in hits])
        return NearestRegions(ids, similarities, boxes)


def region_id(row: int, number: int) -> int:
    """The id of a row's region of this number: 63 bits of a hash."""
    return int.from_bytes(hashlib.blake2b(f"{row}/{number}".encode(), digest_size=8).digest(), "big") >> 1


def _regions(entities: Sequence[Mapping[str, Any]], dim: int) -> Regions:
    if not entities:
        return no_regions(dim)
    vectors = np.array([one["vector"] for one in entities], dtype=np.float32)
    return Regions(_boxes([one["box"] for one in entities]), vectors)


def _boxes(kept: Sequence[Any]) -> NDArray[np.float32]:
    boxes = [json.loads(one) if isinstance(one, str) else one for one in kept]
    # Milvus Lite took bare lists, and older stores hold them.
    sides = [one["sides"] if isinstance(one, dict) else list(one) for one in boxes]
    return np.array(sides, dtype=np.float32).reshape(-1, 4)


def _fields(dim: int) -> Fields:
    from pymilvus import DataType

    return {
        "id": {"datatype": DataType.INT64, "is_primary": True},
        "picture": {"datatype": DataType.INT64},
        "path": {"datatype": DataType.VARCHAR, "max_length": _PATH_BYTES},
        "columns": {"datatype": DataType.JSON},
        "numbers": {"datatype": DataType.JSON},
        "box": {"datatype": DataType.JSON},
        "vector": {"datatype": DataType.FLOAT_VECTOR, "dim": dim},
    }
