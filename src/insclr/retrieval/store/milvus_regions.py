"""The regions of a Milvus store: a collection of their own beside that of the rows."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Descriptors, Ids
from insclr.retrieval.store.regions import no_regions
from insclr.retrieval.store.rows import MAX_REGIONS, NearestRegions, Regions

_PART, _PAGE = 1000, 10_000  # regions in one message: with vectors, and without
_ANSWER = 60.0  # seconds
_COPIED = ("path", "columns", "numbers")  # of the row, so that filters work on regions too
_PATH_BYTES = 4096


class MilvusRegions:
    """The collection `name`, made when the first regions come; `speaking` turns the client's errors into ours."""

    def __init__(
        self, client: Any, name: str, dim: int, speaking: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._client = client
        self._name = name
        self._dim = dim
        self._speaking = speaking
        self._loaded = False

    def there(self) -> bool:
        """Whether the store has regions at all."""
        with self._speaking():
            there = bool(self._client.has_collection(self._name))
            if there and not self._loaded:
                self._client.load_collection(self._name)
            self._loaded = there
        return there

    def replace(self, rows: Sequence[Mapping[str, Any]], regions: Sequence[Regions] | None) -> None:
        """Write the regions of rows in place of those they had; without `regions` they have none any more."""
        self.delete([row["id"] for row in rows])
        if regions is None or not any(len(one.boxes) for one in regions):
            return
        if not self.there():
            with self._speaking():
                _create(self._client, self._name, self._dim)
        entities = [
            {name: row[name] for name in _COPIED}
            | {
                "id": region_id(row["id"], number),
                "picture": row["id"],
                "box": [round(float(side), 4) for side in box],
                "vector": vector,
            }
            for row, found in zip(rows, regions, strict=True)
            for number, (box, vector) in enumerate(zip(found.boxes, found.descriptors, strict=True))
        ]
        with self._speaking():
            for start in range(0, len(entities), _PART):
                self._client.upsert(self._name, entities[start : start + _PART])

    def delete(self, rows: Sequence[int]) -> None:
        """Remove the regions of rows."""
        if not rows or not self.there():
            return
        ids = [region_id(row, number) for row in rows for number in range(MAX_REGIONS)]
        with self._speaking():
            for start in range(0, len(ids), _PART):
                self._client.delete(self._name, ids=ids[start : start + _PART])

    def ids(self) -> Ids:
        """The ids of the rows that have regions, ascending."""
        if not self.there():
            return np.zeros(0, np.int64)
        rows: list[int] = []
        with self._speaking():
            pages = self._client.query_iterator(self._name, batch_size=_PAGE, output_fields=["picture"])
            while page := pages.next():
                rows += [int(one["picture"]) for one in page]
            pages.close()
        return np.unique(np.array(rows, dtype=np.int64))

    def of(self, rows: Sequence[int] | Ids) -> list[Regions]:
        """The regions of rows in this order; empty for a row that has none."""
        found: dict[int, list[dict[str, Any]]] = {int(row): [] for row in rows}
        if self.there():
            for entity in self._get([region_id(row, n) for row in found for n in range(MAX_REGIONS)]):
                found[int(entity["picture"])].append(entity)
        return [_regions(found[int(row)], self._dim) for row in rows]

    def search(self, queries: Descriptors, top: int, expression: str) -> NearestRegions:
        """The `top` nearest regions of every query, among those that meet the filter."""
        ids = np.full((len(queries), top), -1, dtype=np.int64)
        similarities = np.full((len(queries), top), -1.0, dtype=np.float32)
        boxes = np.zeros((len(queries), top, 4), dtype=np.float32)
        if not self.there():
            return NearestRegions(ids, similarities, boxes)
        with self._speaking():
            answers = self._client.search(
                self._name,
                data=[query.tolist() for query in np.asarray(queries, dtype=np.float32)],
                limit=top,
                filter=expression,
                search_params={"metric_type": "COSINE", "params": {"ef": max(512, 4 * top)}},
                output_fields=["picture", "box"],
                consistency_level="Strong",
                timeout=_ANSWER,
            )
        for place, hits in enumerate(answers):
            ids[place, : len(hits)] = [hit["entity"]["picture"] for hit in hits]
            similarities[place, : len(hits)] = [hit["distance"] for hit in hits]
            boxes[place, : len(hits)] = _boxes([hit["entity"]["box"] for hit in hits])
        return NearestRegions(ids, similarities, boxes)

    def flush(self, timeout: float) -> None:
        """Seal what was written, so that searches use the index."""
        if self.there():
            with self._speaking():
                self._client.flush(self._name, timeout=timeout)

    def _get(self, ids: Sequence[int]) -> Iterator[dict[str, Any]]:
        with self._speaking():
            for start in range(0, len(ids), _PART):
                yield from self._client.get(
                    self._name,
                    ids=ids[start : start + _PART],
                    output_fields=["picture", "box", "vector"],
                    timeout=_ANSWER,
                )


def region_id(row: int, number: int) -> int:
    """The id of a row's region of this number: 63 bits of a hash."""
    return int.from_bytes(hashlib.blake2b(f"{row}/{number}".encode(), digest_size=8).digest(), "big") >> 1


def _regions(entities: Sequence[Mapping[str, Any]], dim: int) -> Regions:
    if not entities:
        return no_regions(dim)
    vectors = np.array([one["vector"] for one in entities], dtype=np.float32)
    return Regions(_boxes([one["box"] for one in entities]), vectors)


def _boxes(kept: Sequence[Any]) -> NDArray[np.float32]:
    boxes = [json.loads(one) if isinstance(one, str) else list(one) for one in kept]
    return np.array(boxes, dtype=np.float32).reshape(-1, 4)


def _create(client: Any, name: str, dim: int) -> None:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("picture", DataType.INT64)
    schema.add_field("path", DataType.VARCHAR, max_length=_PATH_BYTES)
    schema.add_field("columns", DataType.JSON)
    schema.add_field("numbers", DataType.JSON)
    schema.add_field("box", DataType.JSON)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
    index = client.prepare_index_params()
    parameters = {"M": 32, "efConstruction": 200}
    index.add_index("vector", index_type="HNSW", metric_type="COSINE", params=parameters)
    client.create_collection(name, schema=schema, index_params=index)
