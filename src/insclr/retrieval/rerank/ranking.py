"""A ranking: what a search gives, what a re-ranker takes and gives back."""

from dataclasses import dataclass

import numpy as np
import torch

from insclr.arrays import Descriptors, Ids, Scores
from insclr.neighbours.exact import nearest, score_blocks

BLOCK_VALUES = 2**25  # values held at once by blocked functions: 128 MiB of float32


@dataclass(frozen=True)
class Ranking:
    """For each query the database rows found, best first.

    `own` is the row that is the query itself, -1 where the query is not in the database. That row must not
    stand in `ids`, and re-rankers take care that it does not help its own query.
    """

    ids: Ids  # (queries, results)
    scores: Scores  # (queries, results), falling along each row
    own: Ids | None = None  # (queries,); None: no query is in the database

    @property
    def own_rows(self) -> Ids:
        """`own` with -1 for every query where it is not given."""
        return np.full(len(self.ids), -1) if self.own is None else self.own


def rank(
    queries: Descriptors, database: Descriptors, own: Ids | None = None, depth: int | None = None
) -> Ranking:
    """Rank the database by inner product; ties are settled by the lower row.

    Without `depth` every row is ranked but a query's own.
    """
    results = len(database) - int(own is not None and bool((own >= 0).any()))
    results = results if depth is None else min(depth, results)
    rows = None if own is None else torch.from_numpy(own)
    scores, ids = nearest(torch.from_numpy(queries), torch.from_numpy(database), results, own=rows)
    return Ranking(ids.numpy(), scores.numpy(), own)


def rescore(queries: Descriptors, database: Descriptors, ranking: Ranking) -> Scores:
    """Inner products of the queries with the rows they have found, in the order of the ranking."""
    results, dim = ranking.ids.shape[1], queries.shape[1]
    scores = np.empty(ranking.ids.shape, dtype=np.float32)
    if results * 4 > len(database):
        blocks = score_blocks(
            torch.from_numpy(queries), torch.from_numpy(database), block_bytes=4 * BLOCK_VALUES
        )
        for block, products in blocks:
            scores[block] = np.take_along_axis(products.numpy(), ranking.ids[block], axis=1)
        return scores
    rows = max(1, BLOCK_VALUES // max(1, results * dim))
    for start in range(0, len(queries), rows):
        block = slice(start, start + rows)
        scores[block] = np.einsum("qd,qkd->qk", queries[block], database[ranking.ids[block]])
    return scores


def reorder(ranking: Ranking, scores: Scores) -> Ranking:
    """Sort the results by new scores (queries, results); -inf marks a result that was not scored anew.

    Those keep their order behind all others, with scores that go on falling.
    """
    order = np.argsort(-scores, axis=1, kind="stable")
    new = np.take_along_axis(scores, order, axis=1)
    old = np.take_along_axis(ranking.scores, order, axis=1)
    behind = np.isneginf(new)
    lowest = np.where(behind, np.inf, new).min(axis=1, keepdims=True, initial=np.inf)
    lowest[np.isinf(lowest)] = 0
    best_behind = np.where(behind, old, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    falling = np.where(behind, old, 0) - np.where(np.isinf(best_behind), 0, best_behind) + lowest
    new = np.where(behind, falling, new).astype(np.float32)
    return Ranking(np.take_along_axis(ranking.ids, order, axis=1), new, ranking.own)
