"""Search the nearest rows and regions: an exact half-precision scan, and a coarse scan before it where it pays.

The coarse scan (4 bits for every 2 dimensions, faiss) ranks all rows, and the best of them are scored exactly. Random
vectors are its hardest case and inverted lists or graphs fail there, for want of any structure.
docs/research/performance.md has its recall and time on random and on real descriptors.
"""

import io
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Boxes, Descriptors, Ids, Scores
from insclr.store.database import array_bytes, checksum, seal, unseal
from insclr.store.rows import NearestRegions, Neighbours

faiss: Any = import_module("faiss")  # its type stubs lack the Python layer

EXACT_UP_TO = 20_000  # rows; below, the exact scan is as fast (1.5 ms)
RESCORED = 256  # rows scored exactly for a query at least, in a store of one segment
_TRAINING_ROWS = 16_384  # a codebook has 16 entries of 2 numbers
_BLOCK = 16_384  # rows encoded together
_FEW_QUERIES = 8
_NO_ID = np.iinfo(np.int64).min
FEWEST_RESCORED = 64  # in each of many segments, which have few of the nearest rows each
_THREADS: int = faiss.omp_get_max_threads()

Halves = NDArray[np.float16]  # (rows, dim)
Flags = NDArray[np.bool_]


class DamagedSegment(ValueError):
    """A row of a segment is not what was written."""


class Segment:
    """Unit rows in half precision, in memory or mapped from a file, searched by cosine."""

    damaged = False  # a row is not what was written

    def __init__(
        self, exact: Any, coarse: Any = None, ids: Ids | None = None, checks: NDArray[np.int64] | None = None
    ) -> None:
        """Rows in a file have `checks`, their checksums, which are of their `ids` too."""
        self._exact = exact
        self._ids = ids
        self._checks = checks
        self._verified: Flags = np.zeros(exact.ntotal, np.bool_)
        self._coarse = coarse  # the refined index does not keep it alive
        self._refined = None if coarse is None else faiss.IndexRefine(coarse, exact)
        count, dim = exact.ntotal, exact.d
        # The same memory seen as an array: rows are read back without a second copy.
        self.rows: Halves = (
            faiss.rev_swig_ptr(exact.codes.data(), count * dim * 2).view(np.float16).reshape(count, dim)
            if count
            else np.zeros((0, dim), np.float16)
        )

    def __len__(self) -> int:
        return int(self._exact.ntotal)

    def search(
        self, queries: Descriptors, top: int, allowed: Flags | None = None, rescored: int = RESCORED
    ) -> tuple[Scores, Ids]:
        """Similarities and places of the `top` nearest rows, or as many as there are, best first.

        `allowed` has one flag a row. At least `rescored` of the rows that the coarse scan ranks first are scored.
        """
        usable = len(self) if allowed is None else int(np.count_nonzero(allowed))
        top = min(top, usable)
        if not top:
            return np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
        rescored = max(rescored, 4 * top) * len(self) // usable
        if self._refined is not None and rescored < len(self) // 4:
            found = self._coarse_then_exact(queries, top, rescored, allowed)
            if found is not None:
                return found
        near, places = self._exact.search(queries, top, params=_only(allowed))
        self.verify(places)
        return near, places

    def read(self, places: Ids) -> Halves:
        """The rows at these places; DamagedSegment where one is not what was written."""
        self.verify(places)
        return self.rows[places]

    def verify(self, places: Ids) -> None:
        """Raise DamagedSegment where a row at one of these places is not what was written."""
        if self._checks is None or self._ids is None:
            return
        for place in np.unique(places[(places >= 0) & ~self._verified[places]]).tolist():
            if checksum(int(self._ids[place]), self.rows[place].tobytes()) != self._checks[place]:
                self.damaged = True
                raise DamagedSegment(f"the row with id {self._ids[place]} is damaged")
            self._verified[place] = True

    def _coarse_then_exact(
        self, queries: Descriptors, top: int, rescored: int, allowed: Flags | None
    ) -> tuple[Scores, Ids] | None:
        """The nearest of the rows that the coarse scan ranks first; None where too few of those are allowed."""
        wanted = top if allowed is None else rescored
        chosen = faiss.IndexRefineSearchParameters(k_factor=rescored / wanted)
        near, places = self._refined.search(queries, wanted, params=chosen)  # type: ignore[union-attr]
        self.verify(places)
        if allowed is None:
            return near, places
        kept = allowed[places] & (places >= 0)  # (queries, rescored)
        if (np.count_nonzero(kept, axis=1) < top).any():
            return None
        order = np.argsort(~kept, axis=1, kind="stable")[:, :top]
        return np.take_along_axis(near, order, 1), np.take_along_axis(places, order, 1)


def exact_index(halves: Halves) -> Any:
    """A copy of the rows that scans them exactly."""
    exact = faiss.IndexScalarQuantizer(
        halves.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    )
    exact.add_sa_codes(np.ascontiguousarray(halves).view(np.uint8))
    return exact


def coarse_index(halves: Halves) -> Any:
    """The coarse scan of the rows; None where they are so few, or of such a length, that there is none."""
    count, dim = halves.shape
    if count <= EXACT_UP_TO or dim % 2:
        return None
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # two numbers at a time: too little work for a team
    coarse = faiss.IndexPQFastScan(dim, dim // 2, 4, faiss.METRIC_INNER_PRODUCT)
    sample = np.random.default_rng(0).choice(count, min(_TRAINING_ROWS, count), replace=False)
    coarse.train(halves[np.sort(sample)].astype(np.float32))
    faiss.omp_set_num_threads(threads)
    for start in range(0, count, _BLOCK):
        coarse.add(halves[start : start + _BLOCK].astype(np.float32))
    return coarse


def write_segment(folder: Path, halves: Halves, ids: Ids) -> None:
    """Keep the rows, their checksums and their coarse scan in a folder that is there already."""
    file = folder / "rows.faiss"
    faiss.write_index(exact_index(halves), str(file))
    checks = [checksum(id_, row.tobytes()) for id_, row in zip(ids.tolist(), halves, strict=True)]
    written = np.array([checksum(_head(file, halves.nbytes)), *checks], np.int64)
    (folder / "checks.npy").write_bytes(array_bytes(written))
    coarse = coarse_index(halves)
    if coarse is not None:
        (folder / "coarse.faiss").write_bytes(seal(faiss.serialize_index(coarse).tobytes()))


def open_segment(folder: Path, dim: int, ids: Ids) -> Segment:
    """What `write_segment` kept, its rows mapped; OSError or ValueError when it is gone or damaged."""
    file, coarse_file = folder / "rows.faiss", folder / "coarse.faiss"
    checks = np.load(io.BytesIO(unseal((folder / "checks.npy").read_bytes())))
    if len(checks) != len(ids) + 1 or checks[0] != checksum(_head(file, 2 * dim * len(ids))):
        raise ValueError(f"{folder} is damaged")
    try:
        exact = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        coarse = _read_coarse(coarse_file) if coarse_file.exists() else None
    except RuntimeError as error:
        raise ValueError(f"{folder} cannot be read ({error})") from error
    if exact.d != dim or (coarse is not None and (coarse.ntotal, coarse.d) != (exact.ntotal, dim)):
        raise ValueError(f"{folder} holds other rows")
    return Segment(exact, coarse, ids, checks[1:])


def _head(file: Path, rows: int) -> bytes:
    """What stands in a file of faiss before its rows, which have so many bytes."""
    with file.open("rb") as opened:
        return opened.read(max(0, file.stat().st_size - rows))


def _read_coarse(file: Path) -> Any:
    return faiss.deserialize_index(np.frombuffer(unseal(file.read_bytes()), np.uint8))


def _only(allowed: Flags | None) -> Any:
    if allowed is None:
        return None
    return faiss.SearchParameters(sel=faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little")))


@dataclass(frozen=True, eq=False)
class Part:
    """A segment, the ids of its rows, and which of them still stand for their image."""

    segment: Segment
    ids: Ids  # (rows,) ascending
    alive: Flags | None = None  # None: all

    @cached_property
    def places(self) -> Ids:
        """Where the rows that are alive stand in the segment."""
        return np.arange(len(self.ids)) if self.alive is None else np.flatnonzero(self.alive)


class NearestRows:
    """The rows of several parts, searched by cosine."""

    def __init__(self, parts: Sequence[Part], dim: int) -> None:
        self._parts = [part for part in parts if len(part.segment)]
        self._dim = dim
        ids = [part.ids[part.places] for part in self._parts]
        joined = np.concatenate([np.zeros(0, np.int64), *ids])
        order = np.argsort(joined, kind="stable")
        self.ids: Ids = joined[order]  # (rows,) ascending
        owner = np.repeat(np.arange(len(ids), dtype=np.int32), [len(one) for one in ids])
        self._owner = owner[order]  # the part of each row
        self._place = np.concatenate([np.zeros(0, np.int64), *(part.places for part in self._parts)])[
            order
        ]  # and its place there

    def positions(self, ids: Ids) -> Ids:
        """Where these ids stand in `ids`; KeyError when one is not there."""
        found = np.searchsorted(self.ids, ids)
        gone = np.append(self.ids, _NO_ID)[found] != ids
        if gone.any():
            raise KeyError(int(ids[gone][0]))
        return found

    def descriptors(self, ids: Ids) -> Descriptors:
        """The descriptors of these ids in this order."""
        found = self.positions(ids)
        owner, place = self._owner[found], self._place[found]
        rows = np.empty((len(ids), self._dim), np.float32)
        for number, part in enumerate(self._parts):
            own = owner == number
            rows[own] = part.segment.read(place[own])
        return rows

    def search(self, queries: Descriptors, top: int, allowed: Flags | None = None) -> Neighbours:
        """The `top` nearest rows of each query, among the `allowed` ones (one flag for each of `ids`)."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        rescored = max(FEWEST_RESCORED, min(RESCORED, 2 * RESCORED // max(1, len(self._parts))))

        def search_part(number: int) -> tuple[Scores, Ids]:
            part = self._parts[number]
            flags = part.alive if allowed is None else self._flags(number, allowed)
            near, places = part.segment.search(queries, top, flags, rescored)
            return near, np.where(places < 0, -1, part.ids[places])  # -1: a query that is no number

        numbers = range(len(self._parts))
        if len(queries) <= _FEW_QUERIES:
            # One query is one thread's work in faiss, a team would only wait (the setting is per thread).
            faiss.omp_set_num_threads(1)
            several = _THREADS > 1 and len(self._parts) > 1
            found = list((_searchers().map if several else map)(search_part, numbers))
        else:
            faiss.omp_set_num_threads(_THREADS)
            found = [search_part(number) for number in numbers]
        return _merge(found, len(queries), top)

    def _flags(self, number: int, allowed: Flags) -> Flags:
        """Which rows of a part are alive and allowed."""
        flags = np.zeros(len(self._parts[number].segment), np.bool_)
        own = self._owner == number
        flags[self._place[own]] = allowed[own]
        return flags


def _merge(found: list[tuple[Scores, Ids]], queries: int, top: int) -> Neighbours:
    none = np.full((queries, top), -1.0, np.float32), np.full((queries, top), -1, np.int64)
    similarities = np.concatenate([*(near for near, _ in found), none[0]], axis=1)
    ids = np.concatenate([*(places for _, places in found), none[1]], axis=1)
    # What is missing comes last, even after a similarity of -1.
    order = np.argsort(np.where(ids < 0, np.inf, -similarities), axis=1, kind="stable")[:, :top]
    return Neighbours(np.take_along_axis(ids, order, 1), np.take_along_axis(similarities, order, 1))


@cache
def _searchers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "search", initializer=faiss.omp_set_num_threads, initargs=(1,))


os.register_at_fork(after_in_child=_searchers.cache_clear)  # threads do not survive a fork


class RegionRows:
    """All regions of a store in memory, searched by cosine."""

    def __init__(self, found: Iterable[tuple[int, bytes, bytes]], dim: int) -> None:
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
        self._nearest = NearestRows([Part(Segment(exact_index(halves)), np.arange(len(self.ids)))], dim)

    def search(self, queries: Descriptors, top: int, allowed: Ids | None) -> NearestRegions:
        """The `top` nearest regions of each query, among those of the `allowed` rows."""
        flags: Flags | None = None if allowed is None else np.isin(self.ids, allowed)
        found = self._nearest.search(queries, top, flags)
        none = found.ids < 0
        if not len(self.ids):
            return NearestRegions(found.ids, found.similarities, np.zeros((*found.ids.shape, 4), np.float32))
        return NearestRegions(
            np.where(none, -1, self.ids[found.ids]), found.similarities, self.boxes[found.ids]
        )
