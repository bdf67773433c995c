"""Database-side augmentation, DBA (Turcot & Lowe 2009; Arandjelovic & Zisserman 2012)."""

import numpy as np

from insclr.arrays import Descriptors, Ids
from insclr.engine.protocol import unit_rows
from insclr.retrieval.rerank.graph import neighbour_graph, once_per_database
from insclr.retrieval.rerank.ranking import Ranking, reorder, rescore

_ROWS = 1024  # rows averaged at once


class _Averaged:
    """Database rows averaged with their neighbours; filled as rows are asked for."""

    def __init__(self, count: int, dim: int, neighbours: int, alpha: float) -> None:
        self.neighbours, self.alpha = neighbours, alpha
        self.rows = np.zeros((count, dim), dtype=np.float32)
        self._known = np.zeros(count, dtype=bool)

    def fill(self, database: Descriptors, ids: Ids) -> None:
        """Make sure that the rows `ids` are there."""
        missing = np.unique(ids[~self._known[ids]])
        for start in range(0, len(missing), _ROWS):
            rows = missing[start : start + _ROWS]
            self.rows[rows] = self.average(database, rows, own=-1)
            self._known[rows] = True

    def average(self, database: Descriptors, rows: Ids, own: int) -> Descriptors:
        """These rows averaged with their neighbours as if row `own` were not in the database."""
        # One neighbour more than needed: it steps in where `own` is left out.
        graph = neighbour_graph(database, self.neighbours + 1)
        ids, scores = graph.rows(database, rows)  # (rows, neighbours + 1)
        weights = np.maximum(scores, 0) ** self.alpha
        weights[ids == own] = 0
        counted = np.cumsum(ids != own, axis=1)
        weights[counted > self.neighbours] = 0
        return unit_rows(database[rows] + np.einsum("rn,rnd->rd", weights, database[ids]))


@once_per_database
def _averaged(database: Descriptors, neighbours: int, alpha: float) -> _Averaged:
    return _Averaged(len(database), database.shape[1], neighbours, alpha)


def dba(
    queries: Descriptors, database: Descriptors, ranking: Ranking, *, neighbours: int = 10, alpha: float = 3.0
) -> Ranking:
    """Compare the query with every database row averaged with its neighbours (similarity ** alpha)."""
    averaged = _averaged(database, neighbours, alpha)
    averaged.fill(database, ranking.ids)
    scores = rescore(queries, averaged.rows, ranking)
    # A row whose average holds the query itself would be found by that alone: score it without.
    places, holders = _reverse_neighbours(database, neighbours, ranking)
    for query, (place, rows) in enumerate(zip(places, holders, strict=True)):
        if len(rows):
            fair = averaged.average(database, rows, own=int(ranking.own_rows[query]))
            scores[query, place] = fair @ queries[query]
    return reorder(ranking, scores)


def _reverse_neighbours(
    database: Descriptors, neighbours: int, ranking: Ranking
) -> tuple[list[Ids], list[Ids]]:
    """For each query its results that have the query's own row among their neighbours: places and rows."""
    ids = np.unique(ranking.ids)
    near = neighbour_graph(database, neighbours + 1).rows(database, ids)[0][:, :neighbours]
    order = np.argsort(near, axis=None, kind="stable")
    flat = near.ravel()[order]
    places, holders = list[Ids](), list[Ids]()
    for own, results in zip(ranking.own_rows, ranking.ids, strict=True):
        low, high = np.searchsorted(flat, [own, own + 1])
        rows = ids[order[low:high] // near.shape[1]]
        place = np.flatnonzero(np.isin(results, rows)) if len(rows) else np.empty(0, dtype=np.int64)
        places.append(place)
        holders.append(results[place])
    return places, holders
