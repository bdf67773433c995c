"""Weighted query expansion, alphaQE (Radenovic 2018)."""

import numpy as np

from insclr.arrays import Descriptors
from insclr.engine.engine import unit_rows
from insclr.retrieval.rerank.ranking import BLOCK_VALUES, Ranking, reorder, rescore


def alpha_qe(
    queries: Descriptors, database: Descriptors, ranking: Ranking, *, neighbours: int = 5, alpha: float = 3.0
) -> Ranking:
    """Search again with the mean of the query and its first results, each weighted by its similarity ** alpha."""
    first = ranking.ids[:, :neighbours]  # (queries, neighbours)
    expanded = np.empty_like(queries)
    rows = max(1, BLOCK_VALUES // max(1, neighbours * queries.shape[1]))
    for start in range(0, len(queries), rows):
        block = slice(start, start + rows)
        found = database[first[block]]  # (rows, neighbours, dim)
        similar = np.einsum("qd,qnd->qn", queries[block], found)
        weights = np.maximum(similar, 0) ** alpha
        expanded[block] = queries[block] + np.einsum("qn,qnd->qd", weights, found)
    return reorder(ranking, rescore(unit_rows(expanded), database, ranking))
