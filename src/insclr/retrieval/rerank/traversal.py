"""Explore-exploit graph traversal, EGT (Chang et al. 2019)."""

import heapq

import numpy as np

from insclr.arrays import Descriptors
from insclr.retrieval.rerank.graph import NeighbourGraph, neighbour_graph
from insclr.retrieval.rerank.ranking import Ranking, reorder


def egt(
    queries: Descriptors,
    database: Descriptors,
    ranking: Ranking,
    *,
    k: int = 5,
    threshold: float = 0.6,
    depth: int = 50,
) -> Ranking:
    """Walk the neighbour graph from the query.

    Exploit: take the image at the strongest edge seen, and go on while edges are above `threshold`.
    Explore: look at the neighbours of what was taken. The `depth` images taken come first, in the order of
    taking; the others keep theirs behind.
    """
    graph = neighbour_graph(database, k + 1)
    graph.rows(database, ranking.ids[:, :depth])  # most of what will be walked through, at one go
    scores = np.full(ranking.ids.shape, -np.inf, dtype=np.float32)
    first = np.einsum("qd,qnd->qn", queries, database[ranking.ids[:, :k]])
    for query, own in enumerate(ranking.own_rows):
        edges = list(zip(ranking.ids[query, :k].tolist(), first[query].tolist(), strict=True))
        taken = _walk(graph, database, edges, int(own), k, threshold, depth)
        place = np.full(len(database), -1)
        place[ranking.ids[query]] = np.arange(ranking.ids.shape[1])
        found = place[np.array(taken, dtype=np.int64)]
        found = found[found >= 0]
        scores[query, found] = 1 - np.arange(len(found)) / (depth + 1)
    return reorder(ranking, scores)


def _walk(
    graph: NeighbourGraph,
    database: Descriptors,
    edges: list[tuple[int, float]],
    own: int,
    k: int,
    threshold: float,
    depth: int,
) -> list[int]:
    """The rows taken, in order. `edges` lead from the query to its first results."""
    best = dict[int, float]()  # the strongest edge seen to each row that is not taken yet
    heap = list[tuple[float, int]]()  # (-strength, row); outdated entries are skipped when they come up
    taken, done = list[int](), {own}

    def explore(found: list[tuple[int, float]]) -> None:
        for row, strength in found:
            if row not in done and strength > best.get(row, -2.0):
                best[row] = strength
                heapq.heappush(heap, (-strength, row))

    explore(edges)
    while heap and len(taken) < depth:
        fresh = list[int]()
        while heap and len(taken) < depth and (not fresh or -heap[0][0] > threshold):
            _, row = heapq.heappop(heap)
            if row in done:
                continue
            done.add(row)
            taken.append(row)
            fresh.append(row)
        ids, scores = graph.rows(database, np.array(fresh, dtype=np.int64))
        for near, strengths in zip(ids.tolist(), scores.tolist(), strict=True):
            # The graph holds k + 1 neighbours: without the query's own row there are still k.
            explore([edge for edge in zip(near, strengths, strict=True) if edge[0] != own][:k])
    return taken
