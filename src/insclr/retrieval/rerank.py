"""Re-ranking: functions from rankings to rankings, all with one signature.

    better = RERANKERS["diffusion"](queries, database, rank(queries, database))

A re-ranker gives back the ids it was given, each row in a better order.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse

from insclr.arrays import Descriptors, Ids, Scores
from insclr.neighbours.exact import nearest, nearest_rows

_SOLVER_VALUES = 2**22  # values of one solver matrix (nodes, queries) held at once
_ALPHA = 0.9  # of the diffusion
_STEPS = 20  # of the conjugate gradients


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


def diffusion(
    queries: Descriptors,
    database: Descriptors,
    ranking: Ranking,
    *,
    k: int = 20,
    query_k: int = 3,
    gamma: float = 3.0,
    truncate: int = 5000,
) -> Ranking:
    """Score by solving (1 - alpha S) f = y, with y the query's `query_k` first results (Iscen et al. 2017).

    S is the graph of mutual neighbours, weighted by similarity ** gamma and normalised. A database beyond
    4 x `truncate` rows is cut, for each query, to its first `truncate` results. What is not reached keeps
    its order behind the rest.
    """
    if len(database) > 4 * truncate:
        return _diffuse_truncated(queries, database, ranking, k, query_k, gamma, truncate)
    first = ranking.ids[:, :query_k]
    near = np.einsum("qd,qnd->qn", queries, database[first])
    seeds = np.maximum(near, 0) ** gamma  # (queries, query_k)
    scores = np.full(ranking.ids.shape, -np.inf, dtype=np.float32)
    own = ranking.own_rows
    graph = diffusion_graph(database, k, gamma)
    rows = max(1, _SOLVER_VALUES // len(database))
    for start in range(0, len(queries), rows):
        block = slice(start, start + rows)
        reached = solve_diffusion(graph, first[block], seeds[block], own[block])
        scores[block] = np.take_along_axis(reached, ranking.ids[block], axis=1)
    scores[scores <= 0] = -np.inf
    return reorder(ranking, scores)


def _diffuse_truncated(
    queries: Descriptors,
    database: Descriptors,
    ranking: Ranking,
    k: int,
    query_k: int,
    gamma: float,
    truncate: int,
) -> Ranking:
    """Diffusion among the first `truncate` results of each query."""
    scores = np.full(ranking.ids.shape, -np.inf, dtype=np.float32)
    for row, results in enumerate(ranking.ids[:, :truncate]):
        part = Ranking(np.arange(len(results))[None], ranking.scores[row : row + 1, :truncate])
        query = queries[row : row + 1]
        found = diffusion(
            query, database[results], part, k=k, query_k=query_k, gamma=gamma, truncate=truncate
        )
        scores[row, found.ids[0]] = found.scores[0]
    return reorder(ranking, scores)


def solve_diffusion(
    graph: sparse.csr_array, first: Ids, seeds: Scores, own: Ids, alpha: float = _ALPHA
) -> Scores:
    """Solve (1 - alpha S) f = y for all queries at once by conjugate gradients: (queries, nodes).

    y has the `seeds` (queries, n) at the nodes `first`; each query's `own` node (-1: none) is taken out of the graph.
    """
    nodes, queries = graph.shape[0], len(first)
    columns = np.arange(queries)
    y = np.zeros((nodes, queries), dtype=np.float32)
    y[first, columns[:, None]] = seeds
    inside = own >= 0
    f, r = np.zeros_like(y), y
    p, energy = y.copy(), (y * y).sum(axis=0)
    start = np.maximum(energy, 1e-30)
    for _ in range(_STEPS):
        if (energy <= 1e-12 * start).all():
            break
        step = p - alpha * (graph @ p)
        step[own[inside], columns[inside]] = 0
        length = energy / np.maximum((p * step).sum(axis=0), 1e-30)
        f, r = f + length * p, r - length * step
        before, energy = energy, (r * r).sum(axis=0)
        p = r + (energy / np.maximum(before, 1e-30)) * p
    return np.ascontiguousarray(f.T)  # (queries, nodes)


_graphs: dict[tuple[int, int, float], sparse.csr_array] = {}  # by the id of an array, while it lives


def diffusion_graph(database: Descriptors, k: int, gamma: float) -> sparse.csr_array:
    """The graph of mutual neighbours, weighted by similarity ** gamma and normalised by the degrees.

    It is kept as long as the array lives: a measurement ranks many queries against one array.
    """
    key = (id(database), k, gamma)
    if key not in _graphs:
        count = len(database)
        rows = torch.from_numpy(database)
        scores, near = nearest_rows(rows, torch.arange(count), min(k, count - 1))  # (count, k)
        weights = np.maximum(scores.numpy().ravel(), 0) ** gamma
        ends = (np.repeat(np.arange(count), near.shape[1]), near.numpy().ravel())
        directed = sparse.csr_array((weights, ends), shape=(count, count))
        mutual = directed.minimum(directed.T).tocsr()
        degree = np.maximum(mutual.sum(axis=1), 1e-12) ** -0.5
        scale = sparse.dia_array((degree[None], [0]), shape=(count, count))
        _graphs[key] = (scale @ mutual @ scale).tocsr().astype(np.float32)
        weakref.finalize(database, _graphs.pop, key, None)
    return _graphs[key]


Reranker = Callable[[Descriptors, Descriptors, Ranking], Ranking]

RERANKERS: dict[str, Reranker] = {"diffusion": diffusion}
