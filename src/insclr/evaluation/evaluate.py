"""From descriptors to results: leave-one-out over a labels file, or a public protocol."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from insclr.errors import UserError
from insclr.evaluation.labels import Labels
from insclr.evaluation.metrics import Ids, Ranks, Vectors, mean_precision, ranks_in_scores
from insclr.progress import progress_bar
from insclr.retrieval.rerank import Reranker, rank
from insclr.retrieval.rerank.ranking import hide, score_blocks

RECALL_AT = (1, 5, 10)
SHOWN = 10  # results kept for each query, and worst queries reported
RANKED_VALUES = 2**24  # ranked results held at once: a few hundred MiB


class QueryResult(NamedTuple):
    """One query: its AP in percent and the 1-based rank of the first right result."""

    path: str
    instance: str
    ap: float
    first: int


@dataclass(frozen=True)
class LabelResult:
    """Leave-one-out retrieval over a labels file, query by query. Numbers in percent."""

    labels: Labels
    queries: Ids  # (Q,) rows of the labels that were asked; those without a positive are left out
    ap: NDArray[np.float64]  # (Q,) average precision of each query, a fraction
    first: Ranks  # (Q,) 0-based rank of the first positive
    top: Ids  # (Q, shown) rows of the labels found first, -1 where there are no more
    images: int  # size of the database

    @property
    def map(self) -> float:
        """Mean average precision."""
        return 100 * float(self.ap.mean())

    def recall(self, k: int) -> float:
        """Share of the queries with a positive among their first k results."""
        return 100 * float((self.first < k).mean())

    def per_instance(self) -> dict[str, float]:
        """Mean AP of each instance's queries, lowest first."""
        instances = np.array(self.labels.instances)[self.queries]
        names, which = np.unique(instances, return_inverse=True)
        means = 100 * np.bincount(which, weights=self.ap) / np.bincount(which)
        order = np.argsort(means, kind="stable")
        return {str(names[i]): float(means[i]) for i in order}

    def worst(self, count: int = SHOWN) -> list[QueryResult]:
        """The queries with the lowest AP."""
        order = np.argsort(self.ap, kind="stable")[:count]
        paths, instances = self.labels.paths, self.labels.instances
        return [
            QueryResult(paths[row], instances[row], 100 * float(ap), int(first) + 1)
            for row, ap, first in zip(self.queries[order], self.ap[order], self.first[order], strict=True)
        ]

    def to_json(self) -> dict[str, object]:
        """Everything a program wants, ready for json.dumps."""
        return {
            "map": self.map,
            **{f"r@{k}": self.recall(k) for k in RECALL_AT},
            "queries": len(self.queries),
            "images": self.images,
            "instances": self.per_instance(),
            "worst": [query._asdict() for query in self.worst()],
        }

    def table(self) -> str:
        """What a person wants: the numbers, the weakest instances, the worst queries."""
        head = "".join(f"{name:>9}" for name in ("mAP", *(f"R@{k}" for k in RECALL_AT), "queries", "images"))
        values = "".join(f"{value:9.2f}" for value in (self.map, *(self.recall(k) for k in RECALL_AT)))
        lines = [
            head,
            f"{values}{len(self.queries):9d}{self.images:9d}",
            "",
            "mAP per instance, lowest first",
        ]
        lines += [f"{value:9.2f}  {name}" for name, value in self.per_instance().items()]
        lines += ["", "worst queries (AP, rank of the first right result)"]
        lines += [f"{query.ap:9.2f} {query.first:8d}  {query.path}" for query in self.worst()]
        return "\n".join(lines)


def evaluate_labels(
    vectors: Tensor | Vectors, labels: Labels, reranker: Reranker | None = None
) -> LabelResult:
    """Rank the index images for every query by cosine; a query never finds itself.

    `vectors` are unit rows (N, D) in the order of the labels. Queries without a positive are left out.
    """
    rows = as_vectors(vectors)
    if len(rows) != len(labels):
        raise ValueError(f"{len(rows)} vectors for {len(labels)} labels")
    index = labels.role_ids("index")
    queries = _queries_with_positives(labels, index)
    task = _Task(rows, rows[index], labels.instance_ids(), queries, index)
    ap = np.empty(len(queries))
    first = np.empty(len(queries), dtype=np.int64)
    top = np.full((len(queries), SHOWN), -1, dtype=np.int64)
    ranks = _by_score(task, top) if reranker is None else _by_reranking(task, top, reranker)
    with progress_bar("ranking", len(queries)) as bar:
        for query, of_query in enumerate(ranks):
            ap[query], first[query] = mean_precision(of_query, len(of_query)), of_query[0]
            bar.advance()
    return LabelResult(labels, queries, ap, first, top, images=len(index))


def as_vectors(vectors: Tensor | Vectors) -> Vectors:
    """Descriptors as a float32 array; values that are not finite are refused."""
    rows = np.asarray(vectors.detach().cpu() if isinstance(vectors, Tensor) else vectors, dtype=np.float32)
    if not np.isfinite(rows).all():
        raise UserError(
            "the descriptors hold values that are not finite: the model is broken, train it again."
        )
    return rows


def _queries_with_positives(labels: Labels, index: Ids) -> Ids:
    instances, queries = labels.instance_ids(), labels.role_ids("query")
    in_index = np.bincount(instances[index], minlength=instances.max() + 1)
    own = np.isin(queries, index)  # the query's own row is no positive
    kept = queries[in_index[instances[queries]] - own > 0]
    if len(kept) == 0:
        raise UserError(
            "no query has a positive: every instance has one image only. Nothing can be measured."
        )
    return kept


@dataclass(frozen=True)
class _Task:
    """What leave-one-out works on."""

    vectors: Vectors  # (N, D)
    database: Vectors  # (index, D)
    instances: Ids  # (N,)
    queries: Ids  # (Q,) rows of vectors
    index: Ids  # (index,) rows of vectors

    def own(self) -> Ids:
        """The database row of each query, -1 for a query outside the index."""
        place = np.full(len(self.vectors), -1)
        place[self.index] = np.arange(len(self.index))
        return place[self.queries]  # (Q,)


def _by_score(task: _Task, top: Ids) -> Iterator[Ranks]:
    """The ranks of each query's positives, in the order of the queries; fills `top` on the way."""
    own, found = task.own(), task.instances[task.index]
    members = {int(i): np.flatnonzero(found == i) for i in np.unique(task.instances[task.queries])}
    shown = min(top.shape[1], len(task.index) - int((own >= 0).any()))
    for block, scores in score_blocks(task.vectors[task.queries], task.database):
        hide(scores, own[block])
        top[block, :shown] = task.index[torch.from_numpy(scores).topk(shown).indices.numpy()]
        positives = []
        for row, query in enumerate(task.queries[block]):
            columns = members[int(task.instances[query])]
            columns = columns[columns != own[block][row]]
            positives.append(scores[row, columns])
            scores[row, columns] = -np.inf
        scores.sort(axis=1)  # what is left are the negatives; -inf stands below any score
        for row, of_query in enumerate(positives):
            yield ranks_in_scores(of_query, scores[row])


def _by_reranking(task: _Task, top: Ids, reranker: Reranker) -> Iterator[Ranks]:
    """As `_by_score`, from whole rankings put in a new order by the re-ranker."""
    own, found = task.own(), task.instances[task.index]
    rows = max(1, RANKED_VALUES // len(task.index))
    for start in range(0, len(task.queries), rows):
        block = slice(start, start + rows)
        queries = task.vectors[task.queries[block]]
        ranking = reranker(queries, task.database, rank(queries, task.database, own[block]))
        shown = min(top.shape[1], ranking.ids.shape[1])
        top[block, :shown] = task.index[ranking.ids[:, :shown]]
        right = found[ranking.ids] == task.instances[task.queries[block]][:, None]
        yield from (np.flatnonzero(row) for row in right)
