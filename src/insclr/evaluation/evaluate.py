"""Evaluate descriptors: leave-one-out over a labels file, or by a public protocol."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from insclr.arrays import Descriptors, Ids
from insclr.data.decode import Box
from insclr.data.formats import on_disk
from insclr.data.images import ImageList
from insclr.data.labels import Labels
from insclr.errors import UserError
from insclr.evaluation.distractors import Distractors, rank_among
from insclr.evaluation.protocol import Ranks, RetrievalProtocol, iou, mean_precision, ranks_in_scores
from insclr.evaluation.results import SHOWN, LabelResult, ProtocolResult
from insclr.neighbours.exact import largest, score_blocks
from insclr.progress import progress_bar
from insclr.retrieval.rerank import Reranker, rank

RANKED_VALUES = 2**24  # ranked results held at once: a few hundred MiB
LISTED = 20  # missing images named in an error
RERANK_DEPTH = 1000  # results given to a re-ranker where the benchmark itself counts fewer

Describe = Callable[
    [ImageList, Sequence[Box | None] | None], Tensor | Descriptors
]  # unit rows, zero: unreadable


class RankedQuery(NamedTuple):
    """What a ranking finds for one query."""

    ranks: Ranks  # of its positives
    first: Ids  # the rows of the labels found first, at most SHOWN
    boxes: Sequence[Box | None] = ()  # where the instance is in each of them, as fractions


class LeaveOneOut:
    """The queries of a labels file, each of which ranks the index images but itself."""

    def __init__(self, labels: Labels) -> None:
        """UserError when no query has anything to find."""
        self.labels = labels
        self.instances = labels.instance_ids()  # (rows of the labels,)
        self.index = labels.role_ids("index")
        self.place = np.full(len(labels), -1)  # of each row of the labels in the index
        self.place[self.index] = np.arange(len(self.index))
        queries = labels.role_ids("query")
        in_index = np.bincount(self.instances[self.index], minlength=self.instances.max() + 1)
        positives = in_index[self.instances[queries]] - (self.place[queries] >= 0)  # its own row is none
        self.queries = queries[positives > 0]
        if len(self.queries) == 0:
            raise UserError(
                "no query has a positive: every instance has one image only. Nothing can be measured."
            )

    def measure(
        self, ranked: Iterable[RankedQuery], true_boxes: Mapping[int, Box] | None = None
    ) -> LabelResult:
        """The result of a ranking of every query, in their order.

        `true_boxes` are those of index rows, as fractions: the result has the mean IoU of the boxes found in right
        ones among the first results.
        """
        ap, first = np.empty(len(self.queries)), np.empty(len(self.queries), dtype=np.int64)
        top, ious = np.full((len(self.queries), SHOWN), -1, dtype=np.int64), list[float]()
        with progress_bar("ranking", len(self.queries)) as bar:
            for i, one in enumerate(ranked):
                ap[i], first[i] = mean_precision(one.ranks, len(one.ranks)), one.ranks[0]
                top[i, : len(one.first)] = one.first
                right = self.instances[one.first] == self.instances[self.queries[i]]
                ious += [
                    iou(box, true_boxes[row])
                    for box, row, good in zip(one.boxes, one.first.tolist(), right, strict=False)
                    if good and box is not None and true_boxes and row in true_boxes
                ]
                bar.advance()
        mean = float(np.mean(ious)) if ious else None
        images = len(self.index)
        return LabelResult(self.labels, self.queries, ap, first, top, images, box_iou=mean, boxes=len(ious))


def evaluate_labels(
    descriptors: Tensor | Descriptors,
    labels: Labels,
    reranker: Reranker | None = None,
    *,
    allow_missing: bool = False,
    most_queries: int = 0,
) -> LabelResult:
    """Rank the index images for every query by cosine; a query never finds itself.

    Of more than `most_queries` some are asked, drawn at random but always the same; 0 = all.

    `descriptors` are unit rows (N, D) in the order of the labels; a row of zeros is an image that is missing or
    unreadable, refused unless `allow_missing`. Queries without a positive are left out.
    """
    rows, labels = readable_rows(descriptors, labels, allow_missing=allow_missing)
    task = LeaveOneOut(labels)
    if 0 < most_queries < len(task.queries):
        drawn = np.random.default_rng(0).permutation(len(task.queries))[:most_queries]
        task.queries = task.queries[np.sort(drawn)]
    return task.measure(_rank(task, rows) if reranker is None else _rerank(task, rows, reranker))


def _rank(task: LeaveOneOut, rows: Descriptors) -> Iterator[RankedQuery]:
    """Rankings by cosine, in blocks of queries."""
    own, found = task.place[task.queries], task.instances[task.index]
    members = {int(i): np.flatnonzero(found == i) for i in np.unique(task.instances[task.queries])}
    shown = min(SHOWN, len(task.index) - int((own >= 0).any()))
    queries, database = torch.from_numpy(rows[task.queries]), torch.from_numpy(rows[task.index])
    for block, products in score_blocks(queries, database, own=torch.from_numpy(own)):
        first = task.index[largest(products, shown)[1].numpy()]  # (block, shown)
        scores, positives = products.numpy(), []
        for row, query in enumerate(task.queries[block]):
            columns = members[int(task.instances[query])]
            columns = columns[columns != own[block][row]]
            positives.append(scores[row, columns])
            scores[row, columns] = -np.inf
        scores.sort(axis=1)  # what is left are the negatives; -inf stands below any score
        for row, of_query in enumerate(positives):
            yield RankedQuery(ranks_in_scores(of_query, scores[row]), first[row])


def _rerank(task: LeaveOneOut, rows: Descriptors, reranker: Reranker) -> Iterator[RankedQuery]:
    """Whole rankings by cosine, put in a new order by the re-ranker."""
    own, database = task.place[task.queries], rows[task.index]
    step = max(1, RANKED_VALUES // len(task.index))
    for start in range(0, len(task.queries), step):
        block = task.queries[start : start + step]
        ranking = reranker(rows[block], database, rank(rows[block], database, own[start : start + step]))
        for query, ids in zip(block, ranking.ids, strict=True):
            found = task.index[ids]
            right = np.flatnonzero(task.instances[found] == task.instances[query])
            yield RankedQuery(right, found[:SHOWN])


def readable_rows(
    descriptors: Tensor | Descriptors, labels: Labels, *, allow_missing: bool
) -> tuple[Descriptors, Labels]:
    """The descriptors that are not zero, and their labels; zero rows are refused unless `allow_missing`."""
    rows = as_descriptors(descriptors)
    if len(rows) != len(labels):
        raise ValueError(f"{len(rows)} vectors for {len(labels)} labels")
    there = rows.any(axis=1)
    if there.all():
        return rows, labels
    missing = [labels.paths[i] for i in np.flatnonzero(~there)]
    _refuse_missing("the labels", missing, len(labels), allow_missing)
    return rows[there], labels.subset(np.flatnonzero(there))


def require_images(labels: Labels, *, allow_missing: bool = False) -> None:
    """Refuse labels whose files are not all on disk, before any of them is described."""
    missing = [path for i, path in enumerate(labels.paths) if not on_disk(labels.images.file(i)).is_file()]
    if missing:
        _refuse_missing("the labels", missing, len(labels), allow_missing)


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
    protocol, missing = leave_out_absent(protocol, allow_missing=allow_missing)
    queries = as_descriptors(describe(protocol.queries, protocol.boxes))
    database = as_descriptors(describe(protocol.database, None))
    asked, there = queries.any(axis=1), database.any(axis=1)
    protocol, unreadable = _leave_out(
        protocol, np.flatnonzero(~asked), np.flatnonzero(~there), allow_missing, total
    )
    queries, database = queries[asked], database[there]
    ranking, count = _rank_database(queries, database, reranker, protocol.depth, distractors)
    scores = {name: protocol.metric(ranking, truth) for name, truth in protocol.settings.items()}
    return ProtocolResult(protocol.name, scores, len(queries), len(database) + count, missing + unreadable)


def leave_out_absent(
    protocol: RetrievalProtocol, *, allow_missing: bool = False
) -> tuple[RetrievalProtocol, tuple[str, ...]]:
    """The benchmark without the images that are not on disk, and their paths; refused unless allowed."""
    total = len(protocol.queries) + len(protocol.database)
    return _leave_out(protocol, *protocol.missing(), allow_missing, total)


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


def _leave_out(
    protocol: RetrievalProtocol, queries: Ids, rows: Ids, allowed: bool, total: int
) -> tuple[RetrievalProtocol, tuple[str, ...]]:
    """The benchmark without these queries and database rows, and their paths; refused unless allowed."""
    paths = tuple(str(protocol.queries.file(int(i))) for i in queries)
    paths += tuple(str(protocol.database.file(int(i))) for i in rows)
    if not paths:
        return protocol, ()
    _refuse_missing(protocol.name, paths, total, allowed)
    if len(queries) == len(protocol.queries):
        raise UserError(f"{protocol.name}: none of the {len(queries)} query images is there. Check --root.")
    return protocol.without(queries, rows), paths


def _refuse_missing(name: str, paths: Sequence[str], total: int, allowed: bool) -> None:
    if allowed:
        return
    listed = "\n".join(f"  {path}" for path in paths[:LISTED])
    more = f"\n  ... and {len(paths) - LISTED} more" if len(paths) > LISTED else ""
    raise UserError(
        f"{name}: {len(paths)} of {total} images are missing or unreadable:\n{listed}{more}\n"
        "Put them in place, or pass --allow-missing to leave them out; the number is then not comparable."
    )


def _rank_database(
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
