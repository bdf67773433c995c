"""From descriptors to results: leave-one-out over a labels file, or a public protocol."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from insclr.arrays import Descriptors, Ids
from insclr.data.decode import Box
from insclr.data.formats import on_disk
from insclr.data.images import ImageList
from insclr.data.labels import Labels
from insclr.errors import UserError
from insclr.evaluation.calibration import measure_calibration
from insclr.evaluation.distractors import Distractors, rank_among
from insclr.evaluation.metrics import Ranks, mean_precision, ranks_in_scores
from insclr.evaluation.protocol import RetrievalProtocol
from insclr.evaluation.results import SHOWN, LabelResult, ProtocolResult
from insclr.neighbours.exact import largest, score_blocks
from insclr.progress import progress_bar
from insclr.retrieval.rerank import Reranker, rank

RANKED_VALUES = 2**24  # ranked results held at once: a few hundred MiB
LISTED = 20  # missing images named in an error
RERANK_DEPTH = 1000  # results given to a re-ranker where the benchmark itself looks at fewer

Describe = Callable[
    [ImageList, Sequence[Box | None] | None], Tensor | Descriptors
]  # unit rows, zero: unreadable


def evaluate_labels(
    descriptors: Tensor | Descriptors,
    labels: Labels,
    reranker: Reranker | None = None,
    *,
    allow_missing: bool = False,
    calibration: bool = False,
) -> LabelResult:
    """Rank the index images for every query by cosine; a query never finds itself.

    `descriptors` are unit rows (N, D) in the order of the labels; a row of zeros is an image that is missing or
    unreadable, refused unless `allow_missing`. Queries without a positive are left out. With `calibration` the score
    is measured too.
    """
    rows, kept = readable_rows(descriptors, labels, allow_missing=allow_missing)
    labels = labels.subset(kept) if len(kept) < len(labels) else labels
    index = labels.role_ids("index")
    queries = queries_with_positives(labels, index)
    task = _Task(rows, rows[index], labels.instance_ids(), queries, index)
    ap = np.empty(len(queries))
    first = np.empty(len(queries), dtype=np.int64)
    top = np.full((len(queries), SHOWN), -1, dtype=np.int64)
    ranks = _by_score(task, top) if reranker is None else _by_reranking(task, top, reranker)
    with progress_bar("ranking", len(queries)) as bar:
        for query, of_query in enumerate(ranks):
            ap[query], first[query] = mean_precision(of_query, len(of_query)), of_query[0]
            bar.advance()
    score, answered = measure_calibration(rows, labels) if calibration else (None, None)
    return LabelResult(labels, queries, ap, first, top, len(index), score, answered)


def readable_rows(
    descriptors: Tensor | Descriptors, labels: Labels, *, allow_missing: bool
) -> tuple[Descriptors, Ids]:
    """The descriptors that are there, and their rows; zero rows are refused unless `allow_missing`."""
    rows = as_descriptors(descriptors)
    if len(rows) != len(labels):
        raise ValueError(f"{len(rows)} vectors for {len(labels)} labels")
    there = rows.any(axis=1)
    absent = np.flatnonzero(~there)
    if len(absent):
        _refuse("the labels", [labels.paths[i] for i in absent], len(labels), allow_missing)
    return rows[there], np.flatnonzero(there)


def require_images(labels: Labels, *, allow_missing: bool = False) -> None:
    """Refuse labels whose files are not all on disk, before any of them is described."""
    missing = [path for i, path in enumerate(labels.paths) if not on_disk(labels.images.file(i)).is_file()]
    if missing:
        _refuse("the labels", missing, len(labels), allow_missing)


def evaluate_protocol(
    protocol: RetrievalProtocol,
    describe: Describe,
    reranker: Reranker | None = None,
    *,
    distractors: Distractors | None = None,
    allow_missing: bool = False,
) -> ProtocolResult:
    """Describe queries (cropped to their boxes) and database with `describe`, rank, and score every setting.

    `distractors` are unit rows behind the database, such as R1M's; only a re-ranker needs them all at once.
    Missing or unreadable images make the number worthless: they are refused, or with `allow_missing` taken out of the
    benchmark.
    """
    total = len(protocol.queries) + len(protocol.database)
    protocol, missing = present(protocol, allow_missing=allow_missing)
    queries = as_descriptors(describe(protocol.queries, protocol.boxes))
    database = as_descriptors(describe(protocol.database, None))
    asked, there = queries.any(axis=1), database.any(axis=1)
    protocol, unreadable = _take_out(
        protocol, np.flatnonzero(~asked), np.flatnonzero(~there), allow_missing, total
    )
    queries, database = queries[asked], database[there]
    ranking, count = _whole_ranking(queries, database, reranker, protocol.depth, distractors)
    scores = {name: protocol.metric(ranking, truth) for name, truth in protocol.settings.items()}
    return ProtocolResult(protocol.name, scores, len(queries), len(database) + count, missing + unreadable)


def present(
    protocol: RetrievalProtocol, *, allow_missing: bool = False
) -> tuple[RetrievalProtocol, tuple[str, ...]]:
    """The benchmark without the images that are not on disk, and their paths; refused unless allowed."""
    total = len(protocol.queries) + len(protocol.database)
    return _take_out(protocol, *protocol.missing(), allow_missing, total)


def as_descriptors(descriptors: Tensor | Descriptors) -> Descriptors:
    """Descriptors as a float32 array; values that are not finite are refused."""
    rows = np.asarray(
        descriptors.detach().cpu() if isinstance(descriptors, Tensor) else descriptors, dtype=np.float32
    )
    if not np.isfinite(rows).all():
        raise UserError(
            "the descriptors hold values that are not finite: the model is broken, train it again."
        )
    return rows


def _take_out(
    protocol: RetrievalProtocol, queries: Ids, rows: Ids, allowed: bool, total: int
) -> tuple[RetrievalProtocol, tuple[str, ...]]:
    """The benchmark without these queries and database rows, and their paths; refused unless allowed."""
    paths = tuple(str(protocol.queries.file(int(i))) for i in queries)
    paths += tuple(str(protocol.database.file(int(i))) for i in rows)
    if not paths:
        return protocol, ()
    _refuse(protocol.name, paths, total, allowed)
    if len(queries) == len(protocol.queries):
        raise UserError(f"{protocol.name}: none of the {len(queries)} query images is there. Check --root.")
    return protocol.without(queries, rows), paths


def _refuse(name: str, paths: Sequence[str], total: int, allowed: bool) -> None:
    if allowed:
        return
    listed = "\n".join(f"  {path}" for path in paths[:LISTED])
    more = f"\n  ... and {len(paths) - LISTED} more" if len(paths) > LISTED else ""
    raise UserError(
        f"{name}: {len(paths)} of {total} images are missing or unreadable:\n{listed}{more}\n"
        "Put them in place, or pass --allow-missing to leave them out; the number is then not comparable."
    )


def _whole_ranking(
    queries: Descriptors,
    database: Descriptors,
    reranker: Reranker | None,
    depth: int | None,
    distractors: Distractors | None,
) -> tuple[Iterable[Ids], int]:
    """Ranked database rows of each query, as deep as the benchmark looks, and the number of distractors."""
    if reranker is None:
        found = rank(queries, database, depth=depth)
        if distractors is None:
            return found.ids, 0
        return rank_among(queries, found.ids, found.scores, distractors, depth)
    own = len(database)
    if distractors is not None:
        database = np.concatenate([database, *distractors.blocks()])
    deeper = None if depth is None else max(depth, RERANK_DEPTH)
    rows = max(1, RANKED_VALUES // len(database))
    parts = []
    for start in range(0, len(queries), rows):
        block = queries[start : start + rows]
        parts.append(reranker(block, database, rank(block, database, depth=deeper)).ids[:, :depth])
    return np.concatenate(parts), len(database) - own


def queries_with_positives(labels: Labels, index: Ids) -> Ids:
    """The query rows that have something to find among the index rows; UserError when none has."""
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

    descriptors: Descriptors  # (N, D)
    database: Descriptors  # (index, D)
    instances: Ids  # (N,)
    queries: Ids  # (Q,) rows of descriptors
    index: Ids  # (index,) rows of descriptors

    def own(self) -> Ids:
        """The database row of each query, -1 for a query outside the index."""
        place = np.full(len(self.descriptors), -1)
        place[self.index] = np.arange(len(self.index))
        return place[self.queries]  # (Q,)


def _by_score(task: _Task, top: Ids) -> Iterator[Ranks]:
    """The ranks of each query's positives, in the order of the queries; fills `top` on the way."""
    own, found = task.own(), task.instances[task.index]
    members = {int(i): np.flatnonzero(found == i) for i in np.unique(task.instances[task.queries])}
    shown = min(top.shape[1], len(task.index) - int((own >= 0).any()))
    queries, database = torch.from_numpy(task.descriptors[task.queries]), torch.from_numpy(task.database)
    for block, products in score_blocks(queries, database, own=torch.from_numpy(own)):
        top[block, :shown] = task.index[largest(products, shown)[1].numpy()]
        scores, positives = products.numpy(), []
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
        queries = task.descriptors[task.queries[block]]
        ranking = reranker(queries, task.database, rank(queries, task.database, own[block]))
        shown = min(top.shape[1], ranking.ids.shape[1])
        top[block, :shown] = task.index[ranking.ids[:, :shown]]
        right = found[ranking.ids] == task.instances[task.queries[block]][:, None]
        yield from (np.flatnonzero(row) for row in right)
