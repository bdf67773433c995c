"""Search the nearest rows and regions of a whole store: in its segments, and in rows without a segment."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Boxes, Descriptors, Ids, Regions, Scores
from insclr.store.database import Database
from insclr.store.rows import NearestRegions, Neighbours, check_descriptors
from insclr.store.segment import RESCORED, Flags, Segment, exact_index, faiss

_FEW_QUERIES = 8
_NO_ID = np.iinfo(np.int64).min
_FEWEST_RESCORED = 64  # in each of many segments, which have few of the nearest rows each
_THREADS: int = faiss.omp_get_max_threads()


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
        rescored = max(_FEWEST_RESCORED, min(RESCORED, 2 * RESCORED // max(1, len(self._parts))))

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


def write_regions(database: Database, paths: Sequence[str], regions: Sequence[Regions], dim: int) -> None:
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


def read_regions(boxes: bytes, vectors: bytes, dim: int) -> Regions:
    """One row's regions as they are kept; ValueError when their lengths do not fit."""
    return Regions(
        np.frombuffer(boxes, dtype="<f4").reshape(-1, 4),
        np.frombuffer(vectors, dtype="<f2").reshape(-1, dim).astype(np.float32),
    )


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
        flags: NDArray[np.bool_] | None = None if allowed is None else np.isin(self.ids, allowed)
        found = self._nearest.search(queries, top, flags)
        none = found.ids < 0
        if not len(self.ids):
            return NearestRegions(found.ids, found.similarities, np.zeros((*found.ids.shape, 4), np.float32))
        return NearestRegions(
            np.where(none, -1, self.ids[found.ids]), found.similarities, self.boxes[found.ids]
        )
