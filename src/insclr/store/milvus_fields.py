"""The collections of a Milvus store: their fields, and rows, regions and notes as Milvus holds them."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymilvus import DataType

from insclr.arrays import Descriptors, Regions, no_regions
from insclr.errors import UserError
from insclr.store.rows import IndexedImage, Row
from insclr.store.where import numbers_of

Fields = Mapping[str, Mapping[str, Any]]  # what pymilvus' `add_field` takes, by the fields' names
Entity = Mapping[str, Any]

ROW_FIELDS = ["id", "path", "hash", "size", "mtime", "columns"]
UNUSED = "unused"  # the vector field that Milvus requires in a collection of texts
_PATH_BYTES, _COLUMNS_BYTES = 4096, 65_000  # what Milvus holds in one field
_FILTERED = (
    "path",
    "columns",
    "numbers",
)  # of the row, copied to its regions so that filters work on them too

_FILTERED_FIELDS: Fields = {
    "path": {"datatype": DataType.VARCHAR, "max_length": _PATH_BYTES},
    "columns": {"datatype": DataType.JSON},
    "numbers": {"datatype": DataType.JSON},
}
TEXT_FIELDS: Fields = {
    "name": {"datatype": DataType.VARCHAR, "is_primary": True, "max_length": 64},
    "text": {"datatype": DataType.VARCHAR, "max_length": 65535},
    UNUSED: {"datatype": DataType.FLOAT_VECTOR, "dim": 2},
}


def row_fields(dim: int) -> Fields:
    """The fields of the collection of rows."""
    return {
        "id": {"datatype": DataType.INT64, "is_primary": True},
        **_FILTERED_FIELDS,
        "hash": {"datatype": DataType.VARCHAR, "max_length": 128},
        "size": {"datatype": DataType.INT64},
        "mtime": {"datatype": DataType.INT64},
        "vector": {"datatype": DataType.FLOAT_VECTOR, "dim": dim},
    }


def region_fields(dim: int) -> Fields:
    """The fields of the collection of regions."""
    return {
        "id": {"datatype": DataType.INT64, "is_primary": True},
        "picture": {"datatype": DataType.INT64},
        **_FILTERED_FIELDS,
        "box": {"datatype": DataType.JSON},
        "vector": {"datatype": DataType.FLOAT_VECTOR, "dim": dim},
    }


def row_id(path: str) -> int:
    """The id of the row of a path: 63 bits of a hash (a clash among ten million paths: 1 in 180,000)."""
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "big") >> 1


def region_id(row: int, number: int) -> int:
    """The id of a row's region of this number."""
    return row_id(f"{row}/{number}")


def text_entity(name: str, text: str) -> Entity:
    """A note or an entry of the journal."""
    return {"name": name, "text": text, UNUSED: [0.0, 0.0]}


def row_entity(image: IndexedImage, descriptor: Descriptors) -> Entity:
    """A row; UserError when it is too large for Milvus."""
    if len(image.path.encode()) > _PATH_BYTES:
        raise UserError(
            f"path longer than {_PATH_BYTES} bytes, which Milvus cannot hold: {image.path[:80]}..."
        )
    if len(json.dumps(dict(image.columns)).encode()) > _COLUMNS_BYTES:
        raise UserError(
            f"{image.path}: columns longer than {_COLUMNS_BYTES} bytes, which Milvus cannot hold: shorten them"
        )
    return {
        "id": row_id(image.path),
        "path": image.path,
        "hash": image.hash,
        "size": image.size,
        "mtime": image.mtime,
        "columns": dict(image.columns),
        "numbers": numbers_of(image.columns),
        "vector": descriptor,
    }


def region_entities(row: Entity, regions: Regions) -> Iterable[Entity]:
    """The regions of a row."""
    for number, (box, vector) in enumerate(zip(regions.boxes, regions.descriptors, strict=True)):
        yield {name: row[name] for name in _FILTERED} | {
            "id": region_id(row["id"], number),
            "picture": row["id"],
            "box": {"sides": [round(float(side), 4) for side in box]},  # a server takes objects alone
            "vector": vector,
        }


def read_row(entity: Entity) -> Row:
    """What `row_entity` wrote."""
    columns = entity["columns"]
    image = IndexedImage(
        entity["path"],
        entity["hash"],
        int(entity["size"]),
        int(entity["mtime"]),
        json.loads(columns) if isinstance(columns, str) else columns,
    )
    return Row(int(entity["id"]), image)


def read_regions(entities: Sequence[Entity], dim: int) -> Regions:
    """The regions of one row."""
    if not entities:
        return no_regions(dim)
    vectors = np.array([one["vector"] for one in entities], dtype=np.float32)
    return Regions(read_boxes([one["box"] for one in entities]), vectors)


def read_boxes(values: Sequence[Any]) -> NDArray[np.float32]:
    """Boxes (regions, 4) as regions hold them."""
    boxes = [json.loads(one) if isinstance(one, str) else one for one in values]
    return np.array([one["sides"] for one in boxes], dtype=np.float32).reshape(-1, 4)
