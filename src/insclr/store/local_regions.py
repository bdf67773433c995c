"""The regions of a local store: their table beside the rows, and the search among them in memory."""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Boxes, Descriptors, Ids, Regions
from insclr.store.nearest import NearestRows, Part
from insclr.store.rows import NearestRegions, check_descriptors
from insclr.store.segment import in_memory

# The triggers see to it that nobody who writes rows has to know of regions: those of a row go with it, and those of a
# row that was described anew go too.
SCHEMA = """
CREATE TABLE IF NOT EXISTS regions (
    picture INTEGER PRIMARY KEY,
    boxes BLOB NOT NULL,   -- (regions, 4) float32, fractions of the picture
    vectors BLOB NOT NULL  -- (regions, dim) half precision
);
CREATE TRIGGER IF NOT EXISTS regions_deleted AFTER DELETE ON pictures
    BEGIN DELETE FROM regions WHERE picture = OLD.id; END;
CREATE TRIGGER IF NOT EXISTS regions_stale AFTER UPDATE OF vector ON pictures
    BEGIN DELETE FROM regions WHERE picture = OLD.id; END;
"""


def write_regions(
    rows: sqlite3.Connection, paths: Sequence[str], regions: Sequence[Regions], dim: int
) -> None:
    """Keep the regions of the rows of these paths, within the transaction at hand."""
    for one in regions:
        check_descriptors(one.descriptors, len(one.boxes), dim)
    rows.executemany(
        "INSERT OR REPLACE INTO regions SELECT id, ?, ? FROM pictures WHERE path = ?",
        [
            (one.boxes.astype("<f4").tobytes(), one.descriptors.astype("<f2").tobytes(), path)
            for path, one in zip(paths, regions, strict=True)
        ],
    )


def read_regions(boxes: bytes, vectors: bytes, dim: int) -> Regions:
    """One row's regions as they are kept; ValueError when their lengths do not fit."""
    return Regions(
        np.frombuffer(boxes, dtype="<f4").reshape(-1, 4),
        np.frombuffer(vectors, dtype="<f2").reshape(-1, dim).astype(np.float32),
    )


class RegionRows:
    """All regions of a store in memory, searched by cosine."""

    def __init__(
        self, found: Iterable[tuple[int, bytes, bytes]], dim: int, coarse_file: Path | None = None
    ) -> None:
        """`found` are row id, boxes and vectors of every row that has regions."""
        ids, boxes, vectors = [], [], []
        for id_, of_boxes, of_vectors in found:
            boxes.append(np.frombuffer(of_boxes, dtype="<f4").reshape(-1, 4))
            vectors.append(np.frombuffer(of_vectors, dtype="<f2").reshape(-1, dim))
            if len(boxes[-1]) != len(vectors[-1]):
                raise ValueError("boxes and descriptors of regions differ in number")
            ids += [id_] * len(boxes[-1])
        self.ids = np.array(ids, dtype=np.int64)  # (regions,) the row of each
        self.boxes: Boxes = np.concatenate(boxes) if boxes else np.zeros((0, 4), np.float32)
        halves = np.concatenate(vectors) if vectors else np.zeros((0, dim), np.float16)
        segment = in_memory(halves, coarse_file)
        self._nearest = NearestRows([Part(segment, np.arange(len(self.ids)))], dim)

    def search(self, queries: Descriptors, top: int, allowed: Ids | None) -> NearestRegions:
        """The `top` nearest regions of each query, among those of the `allowed` rows."""
        flags: NDArray[np.bool_] | None = None if allowed is None else np.isin(self.ids, allowed)
        found = self._nearest.search(queries, top, flags)
        none = found.ids < 0
        if not len(self.ids):
            return NearestRegions(found.ids, found.similarities, np.zeros((*found.ids.shape, 4), np.float32))
        return NearestRegions(
            np.where(none, -1, self.ids[found.ids]), found.similarities, self.boxes[found.ids]
        )
