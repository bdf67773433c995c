"""The nearest neighbours of database rows, computed in blocks and only for requested rows."""

import weakref
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import torch

from insclr.arrays import Descriptors, Ids, Scores
from insclr.neighbours.exact import nearest_rows

P = ParamSpec("P")
T = TypeVar("T")


def once_per_database(
    build: Callable[Concatenate[Descriptors, P], T],
) -> Callable[Concatenate[Descriptors, P], T]:
    """Remember what `build` made for a database array as long as that array lives.

    So a measurement, which ranks many queries against one array, pays for a graph once; a search, whose shortlist is
    an array of its own, pays each time. What is built must not hold the array itself, and the array must not be
    changed in place.
    """
    built: dict[tuple[object, ...], T] = {}

    def build_once(database: Descriptors, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (id(database), args, tuple(sorted(kwargs.items())))
        if key not in built:
            built[key] = build(database, *args, **kwargs)
            weakref.finalize(database, built.pop, key, None)
        return built[key]

    return build_once


class NeighbourGraph:
    """The k nearest rows of each row, itself left out, nearest first; filled as rows are asked for."""

    def __init__(self, count: int, k: int) -> None:
        self.k = min(k, count - 1)
        self._ids = np.empty((count, self.k), dtype=np.int32)
        self._scores = np.empty((count, self.k), dtype=np.float32)
        self._known = np.zeros(count, dtype=bool)

    def rows(self, database: Descriptors, ids: Ids) -> tuple[Ids, Scores]:
        """Neighbours (rows, k) of the rows `ids` and their inner products (rows, k)."""
        missing = np.unique(ids[~self._known[ids]])
        if len(missing):
            found = nearest_rows(torch.from_numpy(database), torch.from_numpy(missing), self.k)
            self._scores[missing], self._ids[missing] = (part.numpy() for part in found)
            self._known[missing] = True
        return self._ids[ids].astype(np.int64), self._scores[ids]


@once_per_database
def neighbour_graph(database: Descriptors, k: int) -> NeighbourGraph:
    """The database's graph of k neighbours, empty at first and kept while the array lives."""
    return NeighbourGraph(len(database), k)
