"""k-reciprocal encoding (Zhong et al. 2017): images described by the neighbours that have them as neighbours."""

import numpy as np
import torch
from numpy.typing import NDArray

from insclr.arrays import Descriptors, Ids, Scores
from insclr.neighbours.exact import nearest_rows

_ROWS = 512  # rows encoded at once
Mask = NDArray[np.bool_]


class ReciprocalEncoder:
    """Reciprocal encodings of database rows, sparse, filled as rows are asked for."""

    def __init__(self, count: int, k1: int, k2: int) -> None:
        self.k1, self.k2 = k1, k2
        self._near: Ids | None = None
        self._single = dict[int, tuple[Ids, Scores]]()  # before the mean over k2 neighbours
        # The means lie end to end: where each row's entries start, and how many there are (0: not yet made).
        self._start = np.zeros(count, dtype=np.int64)
        self._length = np.zeros(count, dtype=np.int64)
        self._columns = np.empty(0, dtype=np.int64)
        self._values = np.empty(0, dtype=np.float32)

    def rows(self, rows: Ids) -> tuple[Ids, Ids, Scores]:
        """Encodings of filled rows, end to end: how many entries each has, their columns, their values."""
        lengths = self._length[rows]
        before = np.cumsum(lengths) - lengths
        entries = np.arange(lengths.sum()) + np.repeat(self._start[rows] - before, lengths)
        return lengths, self._columns[entries], self._values[entries]

    def fill(self, database: Descriptors, ids: Ids) -> None:
        """Make sure that the encodings of the rows `ids` are there."""
        rows = np.unique(ids[self._length[ids] == 0])
        near = self._graph(database)[rows, : self.k2 - 1]
        groups = np.column_stack([rows, near])  # (rows, k2)
        self._encode(database, np.unique(groups))
        made = [_mean([self._single[row] for row in group]) for group in groups.tolist()]
        self._length[rows] = [len(columns) for columns, _ in made]
        self._start[rows] = len(self._columns) + np.cumsum(self._length[rows]) - self._length[rows]
        self._columns = np.concatenate([self._columns, *(columns for columns, _ in made)])
        self._values = np.concatenate([self._values, *(values for _, values in made)])

    def _graph(self, database: Descriptors) -> Ids:
        """The k1 nearest rows of each row (count, k1), itself left out, nearest first."""
        if self._near is None:
            count = len(database)
            found = nearest_rows(torch.from_numpy(database), torch.arange(count), min(self.k1, count - 1))
            self._near = found[1].numpy()
        return self._near

    def _encode(self, database: Descriptors, rows: Ids) -> None:
        graph = self._graph(database)
        missing = np.array([row for row in rows.tolist() if row not in self._single], dtype=np.int64)
        for start in range(0, len(missing), _ROWS):
            block = missing[start : start + _ROWS]
            near, mutual = _reciprocal(graph, block, self.k1)
            for row, ids, kept in zip(block.tolist(), near, mutual, strict=True):
                columns = _expand(graph, np.append(ids[kept], row), self.k1)
                self._single[row] = (columns, _fractions(database[columns] @ database[row]))


def _reciprocal(graph: Ids, rows: Ids, k: int) -> tuple[Ids, Mask]:
    """The k nearest (rows, k) of each row, and which of them have the row among their own k nearest."""
    near = graph[rows, :k]
    back = graph[near, :k]  # (rows, k, k)
    return near, (back == rows[:, None, None]).any(axis=2)


def _expand(graph: Ids, members: Ids, k1: int) -> Ids:
    """R*: the reciprocal set joined by each member's half-size set that overlaps it by 2/3."""
    near, mutual = _reciprocal(graph, members, max(1, round(k1 / 2)))
    near = np.column_stack([members, near])  # a set holds its own image
    mutual = np.column_stack([np.ones(len(members), dtype=bool), mutual])
    inside = (np.isin(near, members) & mutual).sum(axis=1)
    joined = inside > 2 / 3 * mutual.sum(axis=1)
    return np.union1d(members, near[joined][mutual[joined]])


def _fractions(similar: Scores) -> Scores:
    """Weights exp(-squared distance) of unit descriptors with these inner products, summing to one."""
    weights = np.exp(2 * similar - 2)
    return np.asarray(weights / max(float(weights.sum()), 1e-12), dtype=np.float32)


def _mean(encodings: list[tuple[Ids, Scores]]) -> tuple[Ids, Scores]:
    columns = np.concatenate([c for c, _ in encodings])
    values = np.concatenate([v for _, v in encodings])
    merged, where = np.unique(columns, return_inverse=True)
    sums = np.bincount(where, values, minlength=len(merged))
    return merged, (sums / len(encodings)).astype(np.float32)
