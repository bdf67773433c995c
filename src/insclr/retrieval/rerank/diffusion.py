"""Diffusion on the neighbour graph (Iscen et al. 2017, "Efficient diffusion on region manifolds")."""

import numpy as np
from scipy import sparse

from insclr.arrays import Descriptors, Ids, Scores
from insclr.retrieval.rerank.neighbour_graph import neighbour_graph, once_per_database
from insclr.retrieval.rerank.ranking import Ranking, reorder

_BLOCK = 2**22  # values of one solver matrix (nodes, queries) held at once
_ALPHA = 0.9
_STEPS = 20  # of the conjugate gradients


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
    """Score by solving (1 - alpha S) f = y, with y the query's `query_k` first results.

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
        rows = max(1, _BLOCK // len(database))
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
