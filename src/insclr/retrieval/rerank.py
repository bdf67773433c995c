"""Re-ranking: functions from rankings to rankings, all with one signature.

    better = RERANKERS["alphaqe"](queries, database, rank(queries, database))

A re-ranker gives back the ids it was given, each row in a better order.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from scipy import sparse

from insclr.arrays import Descriptors, Ids, Scores
from insclr.engine.engine import unit_rows
from insclr.neighbours.exact import nearest, nearest_rows, score_blocks

BLOCK_VALUES = 2**25  # values held at once by blocked functions: 128 MiB of float32
_SOLVER_VALUES = 2**22  # values of one solver matrix (nodes, queries) held at once
_ALPHA = 0.9  # of the diffusion
_STEPS = 20  # of the conjugate gradients

P = ParamSpec("P")
T = TypeVar("T")


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


def alpha_qe(
    queries: Descriptors, database: Descriptors, ranking: Ranking, *, neighbours: int = 5, alpha: float = 3.0
) -> Ranking:
    """Search again with the mean of the query and its first results, each weighted by its similarity ** alpha.

    Weighted query expansion, alphaQE (Radenovic 2018).
    """
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
    first = ranking.ids[:, :query_k]
    near = np.einsum("qd,qnd->qn", queries, database[first])
    seeds = np.maximum(near, 0) ** gamma  # (queries, query_k)
    scores = np.full(ranking.ids.shape, -np.inf, dtype=np.float32)
    own = ranking.own_rows
    if len(database) <= 4 * truncate:
        graph = _whole_graph(database, k, gamma)
        rows = max(1, _SOLVER_VALUES // len(database))
        for start in range(0, len(queries), rows):
            block = slice(start, start + rows)
            reached = _solve(graph, first[block], seeds[block], own[block])
            scores[block] = np.take_along_axis(reached, ranking.ids[block], axis=1)
    else:
        place = np.full(len(database), -1)
        for query, results in enumerate(ranking.ids[:, :truncate]):
            graph, place[results] = _cut_graph(database, results, k, gamma, place)
            here = place[first[query]][None]
            scores[query, : len(results)] = _solve(graph, here, seeds[query][None], np.array([-1]))
            place[results] = -1
    scores[scores <= 0] = -np.inf
    return reorder(ranking, scores)


def _solve(graph: sparse.csr_array, first: Ids, seeds: Scores, own: Ids) -> Scores:
    """Conjugate gradients for all queries at once; each query's own node is taken out of the graph for it."""
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
        step = p - _ALPHA * (graph @ p)
        step[own[inside], columns[inside]] = 0
        length = energy / np.maximum((p * step).sum(axis=0), 1e-30)
        f, r = f + length * p, r - length * step
        before, energy = energy, (r * r).sum(axis=0)
        p = r + (energy / np.maximum(before, 1e-30)) * p
    return np.ascontiguousarray(f.T)  # (queries, nodes)


@once_per_database
def _whole_graph(database: Descriptors, k: int, gamma: float) -> sparse.csr_array:
    near, scores = neighbour_graph(database, k).rows(database, np.arange(len(database)))
    return _normalise(near, scores, gamma)


def _cut_graph(
    database: Descriptors, rows: Ids, k: int, gamma: float, place: Ids
) -> tuple[sparse.csr_array, Ids]:
    """The graph among `rows` alone and the rows' places in it; `place` is a scratch map full of -1."""
    near, scores = neighbour_graph(database, k).rows(database, rows)
    places = np.arange(len(rows))
    place[rows] = places
    return _normalise(place[near], scores, gamma), places


def _normalise(near: Ids, scores: Scores, gamma: float) -> sparse.csr_array:
    """Mutual neighbours weighted by similarity ** gamma, normalised by the degrees; -1 is no neighbour."""
    count, k = near.shape
    kept = near.ravel() >= 0
    weights = np.maximum(scores.ravel()[kept], 0) ** gamma
    ends = (np.repeat(np.arange(count), k)[kept], near.ravel()[kept])
    directed = sparse.csr_array((weights, ends), shape=(count, count))
    mutual = directed.minimum(directed.T).tocsr()
    degree = np.maximum(mutual.sum(axis=1), 1e-12) ** -0.5
    scale = sparse.dia_array((degree[None], [0]), shape=(count, count))
    return (scale @ mutual @ scale).tocsr().astype(np.float32)


Reranker = Callable[[Descriptors, Descriptors, Ranking], Ranking]

RERANKERS: dict[str, Reranker] = {"alphaqe": alpha_qe, "diffusion": diffusion}
