"""Leave-one-out over rankings that are no inner products, with the boxes that they find."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from insclr.arrays import Boxes, Descriptors, Ids, Scores
from insclr.data.decode import BadImage, Box, decode
from insclr.data.labels import Labels
from insclr.describe.cells import Cells
from insclr.evaluation.evaluate import queries_with_positives
from insclr.evaluation.metrics import mean_precision
from insclr.evaluation.results import SHOWN, LabelResult
from insclr.progress import progress_bar
from insclr.retrieval.local import dsm
from insclr.retrieval.local.asmk import Aggregated, InvertedFile
from insclr.retrieval.local.extractor import SIFT, Extractor
from insclr.retrieval.local.features import LocalFeatures
from insclr.retrieval.local.verification import (
    VERIFIED,
    QueryParts,
    best_geometry,
    outline_of,
    verified_order,
)
from insclr.store import Regions


class RowRanker(Protocol):
    """Similarities of a query, a row of the labels, with all index rows."""

    def scores(self, query: int) -> Scores:
        """One similarity an index row, in the order of the index rows."""

    def boxes(self, query: int, places: Ids) -> Boxes | None:
        """Where the query's thing is in the index rows of these places; None: the ranking does not say."""


class RowVerifier(Protocol):
    """Puts the first results of a query in a better order."""

    def order(self, query: int, rows: Ids, scores: Scores) -> tuple[Ids, list[tuple[float, ...] | None]]:
        """The new order of `rows` (rows of the labels, best first) as places, and the box found in each then."""


def evaluate_rows(labels: Labels, ranker: RowRanker, verifier: RowVerifier | None = None) -> LabelResult:
    """Rank the index images for every query; a query never finds itself.

    Where index rows have boxes, so has the result: the mean IoU of the boxes found in the right ones of the first
    SHOWN results.
    """
    index = labels.role_ids("index")
    queries = queries_with_positives(labels, index)
    instances, place = labels.instance_ids(), np.full(len(labels), -1)
    place[index] = np.arange(len(index))
    truth = true_boxes(labels)
    ap, first = np.empty(len(queries)), np.empty(len(queries), dtype=np.int64)
    top, ious = np.full((len(queries), SHOWN), -1, dtype=np.int64), list[float]()
    with progress_bar("ranking", len(queries)) as bar:
        for i, query in enumerate(queries.tolist()):
            ranked, scores = _ranked(ranker.scores(query), int(place[query]))
            proven: Sequence[tuple[float, ...] | None] = []
            if verifier is not None:
                order, proven = verifier.order(query, index[ranked[:VERIFIED]], scores[:VERIFIED])
                ranked[: len(order)] = ranked[order]
            found = _boxes(ranker.boxes(query, ranked[:SHOWN]) if truth else None, proven)
            rows = index[ranked]
            right = instances[rows] == instances[query]
            ranks = np.flatnonzero(right)
            ap[i], first[i] = mean_precision(ranks, len(ranks)), ranks[0]
            top[i, : min(SHOWN, len(rows))] = rows[:SHOWN]
            ious += [
                iou(box, truth[row])
                for box, row, good in zip(found, rows[:SHOWN].tolist(), right, strict=False)
                if good and box is not None and row in truth
            ]
            bar.advance()
    mean = float(np.mean(ious)) if ious else None
    return LabelResult(labels, queries, ap, first, top, images=len(index), box_iou=mean, boxes=len(ious))


def _boxes(boxes: Boxes | None, proven: Sequence[tuple[float, ...] | None]) -> list[tuple[float, ...] | None]:
    """Where the thing is in the first results: by the verifier, else by the ranking, else unknown."""
    found: list[tuple[float, ...] | None] = [None] * SHOWN
    if boxes is not None:
        found[: len(boxes)] = [tuple(box.tolist()) for box in boxes]
    for i, box in enumerate(proven[:SHOWN]):
        found[i] = box or found[i]
    return found


def _ranked(scores: Scores, own: int) -> tuple[Ids, Scores]:
    order = np.argsort(-scores, kind="stable")
    order = order[order != own]
    return order, scores[order]


def true_boxes(labels: Labels) -> dict[int, Box]:
    """The boxes of index rows as fractions of their images; those of other rows say what is searched for."""
    if labels.boxes is None or labels.roles is None:
        return {}
    return _outlines(labels, {row: labels.boxes[row] for row in labels.role_ids("index").tolist()})


def query_outlines(labels: Labels) -> dict[int, Box]:
    """The boxes of what is searched for as fractions of their images; none where no row is an index row alone.

    There is no true box to compare a found one with then.
    """
    return _outlines(labels, dict(enumerate(labels.query_boxes or ()))) if labels.roles else {}


def _outlines(labels: Labels, boxes: Mapping[int, Box | None]) -> dict[int, Box]:
    found: dict[int, Box] = {}
    for row, box in boxes.items():
        if box is None:
            continue
        try:
            outline = outline_of(decode(labels.images.file(row)), box)
        except BadImage:
            continue
        if outline is not None:
            found[row] = outline
    return found


def iou(one: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of two boxes."""
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    area = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - width * height
    return width * height / area if area > 0 else 0.0


@dataclass(frozen=True)
class GlobalRanker:
    """By the whole images' descriptors."""

    descriptors: Descriptors  # (rows of the labels, dim)
    index: Ids

    def scores(self, query: int) -> Scores:
        """Cosines."""
        return np.asarray(self.descriptors[self.index] @ self.descriptors[query])

    def boxes(self, query: int, places: Ids) -> Boxes | None:  # noqa: ARG002
        """Whole images say nothing of where."""
        return None


@dataclass(frozen=True)
class RegionRanker:
    """By the best of an image's regions and its whole."""

    descriptors: Descriptors  # (rows of the labels, dim)
    regions: Sequence[Regions]  # of every row of the labels
    index: Ids

    def scores(self, query: int) -> Scores:
        """Cosines."""
        wanted = self.descriptors[query]
        whole = self.descriptors[self.index] @ wanted
        best = [
            max(similar, float((self.regions[row].descriptors @ wanted).max(initial=-1.0)))
            for similar, row in zip(whole.tolist(), self.index.tolist(), strict=True)
        ]
        return np.array(best, np.float32)

    def boxes(self, query: int, places: Ids) -> Boxes | None:
        """The box of the best region; the whole image where that is more similar."""
        wanted, found = self.descriptors[query], []
        for row in self.index[places].tolist():
            similar = self.regions[row].descriptors @ wanted
            whole = float(self.descriptors[row] @ wanted)
            if len(similar) and similar.max() > whole:
                found.append(self.regions[row].boxes[similar.argmax()])
            else:
                found.append(np.array([0, 0, 1, 1], np.float32))
        return np.array(found, np.float32).reshape(-1, 4)


@dataclass(frozen=True)
class AsmkRanker:
    """By words of local descriptors."""

    file: InvertedFile  # of the index rows
    queries: Mapping[int, Aggregated]  # by row of the labels

    def scores(self, query: int) -> Scores:
        """Similarities of ASMK."""
        return self.file.scores(self.queries[query])

    def boxes(self, query: int, places: Ids) -> Boxes | None:  # noqa: ARG002
        """Words say nothing of where."""
        return None


@dataclass(frozen=True)
class GeometricVerifier:
    """By matched points."""

    features: Sequence[LocalFeatures | None]  # of every row of the labels
    outlines: Mapping[int, Box]  # of the things in queries that have a box, by row of the labels
    extractor: Extractor = SIFT  # that made them

    def order(self, query: int, rows: Ids, scores: Scores) -> tuple[Ids, list[tuple[float, ...] | None]]:
        """The new order, and the boxes of the verified ones."""
        mine = self.features[query]
        if mine is None:
            return np.arange(len(rows)), [None] * len(rows)
        parts = [QueryParts(mine, self.outlines.get(query), self.extractor)]
        geometries = [
            best_geometry(parts, theirs) if (theirs := self.features[row]) is not None else None
            for row in rows.tolist()
        ]
        order = verified_order(scores, np.array([one.inliers if one else 0 for one in geometries]))
        return order, [one.box if (one := geometries[i]) else None for i in order.tolist()]


@dataclass(frozen=True)
class CellVerifier:
    """By matched cells of the network's maps (dsm)."""

    cells: Callable[[int], Cells]  # of a row of the labels

    def order(self, query: int, rows: Ids, scores: Scores) -> tuple[Ids, list[tuple[float, ...] | None]]:
        """The new order, and the boxes of the verified ones."""
        mine, looked = self.cells(query), rows[: dsm.VERIFIED].tolist()
        geometries = [dsm.match_cells(mine, self.cells(row)) for row in looked]
        inliers = np.array([one.inliers if one else 0 for one in geometries])
        order = verified_order(scores[: len(looked)], inliers)
        found = [one.box if (one := geometries[i]) else None for i in order.tolist()]
        rest = np.arange(len(looked), len(rows))
        return np.concatenate([order, rest]), [*found, *[None] * len(rest)]
