"""Measure a model: on labels by any ranking (whole images, regions, matched points), or by a public protocol."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from insclr.arrays import Boxes, Descriptors, Ids, Scores, no_regions
from insclr.data.decode import BadImage, Box, decode
from insclr.data.images import ImageList
from insclr.data.labels import Labels
from insclr.describe.descriptor_parts import DescriptorParts
from insclr.describe.map_features import map_pooling
from insclr.describe.pipeline import Request, as_opened, describe_files
from insclr.engine.opened import OpenedModel
from insclr.evaluation.calibration import ArrayRows, measure_calibration
from insclr.evaluation.distractors import read_distractors
from insclr.evaluation.evaluate import (
    LeaveOneOut,
    RankedQuery,
    evaluate_labels,
    evaluate_protocol,
    leave_out_absent,
    readable_rows,
)
from insclr.evaluation.protocol import RetrievalProtocol
from insclr.evaluation.results import SHOWN, LabelResult, ProtocolResult
from insclr.options import EvaluateOptions
from insclr.progress import working
from insclr.retrieval.local_evidence import LocalEvidence, confirm_neighbours
from insclr.retrieval.local_features import LocalFeatures, extract_from_files
from insclr.retrieval.local_index import LocalIndex
from insclr.retrieval.ranking import Results
from insclr.retrieval.rerank import RERANKERS
from insclr.retrieval.score import ScoreCurve, fit_score_curve
from insclr.retrieval.verification import Geometry
from insclr.shards import Shard
from insclr.store import Regions

if TYPE_CHECKING:
    from insclr.model.model_file import Model


def measure_labels(
    model: "Model | OpenedModel",
    labels: Labels,
    options: EvaluateOptions = EvaluateOptions(),
    describe: DescriptorParts | None = None,
) -> LabelResult:
    """Describe the labelled images, whole ones with `describe`, and rank them.

    Index images are described for their regions at `region_size`; queries at the model's own size, which is about
    that of a small instance in a large image. The score, which is made from the descriptors of whole images, is
    measured too, except with regions.
    """
    model = as_opened(model)
    describe = describe or DescriptorParts(model, None, Shard())
    describe.share([(labels.images, labels.query_boxes)])
    vectors = describe(labels.images, labels.query_boxes)
    rows, labels = readable_rows(vectors, labels, allow_missing=options.allow_missing)
    if options.ranking == "global" and options.local == "off":
        with working("ranking"):
            result = evaluate_labels(rows, labels, RERANKERS.get(options.rerank))
    else:
        result = _measure_parts(model, labels, rows, options)
    if options.ranking == "regions":
        return result  # the score of a region is another one
    with working("measuring the score"):
        calibration, answered = measure_calibration(rows, labels)
    return replace(result, calibration=calibration, answered=answered)


def _measure_parts(
    model: OpenedModel, labels: Labels, rows: Descriptors, options: EvaluateOptions
) -> LabelResult:
    """The result of a ranking by parts of images, or of one that is verified."""
    task = LeaveOneOut(labels)
    ranker = rank_globally(rows, task.index)
    if options.ranking == "regions":
        ranker = rank_by_regions(rows, _describe_regions(model, labels, options.region_size), task.index)
    points = None
    if options.local != "off":
        features = extract_from_files(labels.images, labels.query_boxes)
        points = open_matched_points(features, rows, task.index, options.local)
    return task.measure(rank_rows(task, ranker, points), true_boxes(labels))


def measure_protocol(
    protocol: RetrievalProtocol, options: EvaluateOptions, describe: DescriptorParts
) -> ProtocolResult:
    """Run a public benchmark; of several shards each describes its share, also of distractors that are images."""
    there, _ = leave_out_absent(protocol, allow_missing=options.allow_missing)
    distractors = read_distractors(options.distractors, describe.blocks) if options.distractors else None
    lists: list[tuple[ImageList, Sequence[Box | None] | None]]
    lists = [(there.queries, there.boxes), (there.database, None)]
    if distractors is not None and distractors.images is not None:
        lists.append((distractors.images, None))
    describe.share(lists)
    with working("measuring"):
        result = evaluate_protocol(
            protocol,
            describe,
            RERANKERS.get(options.rerank),
            distractors=distractors,
            allow_missing=options.allow_missing,
        )
    return replace(result, described=describe.settings)


@dataclass(frozen=True)
class RowRanker:
    """Ranks the index rows for a query, which is a row of the labels."""

    scores: Callable[[int], Scores]  # the similarity of a query with every index row
    boxes: Callable[[int, Ids], Boxes] | None = (
        None  # where its instance is in the index rows of these places
    )


@dataclass(frozen=True)
class MatchedPoints:
    """Local evidence about the index rows, by their places, as a store of them would have it."""

    local: LocalEvidence
    scores: ScoreCurve
    features: Sequence[LocalFeatures | None]  # of all labels

    def rank(self, query: int, found: Results) -> Results:
        """The rows found for a query, by cosine and matched points together."""
        features = self.features[query]
        if features is None or not len(features):
            return found
        return self.local.rank(self.local.vote([features]), found, self.scores.score(found.similarities))


def open_matched_points(
    features: Sequence[LocalFeatures | None], rows: Descriptors, index: Ids, choice: str
) -> MatchedPoints | None:
    """Local evidence of the index rows; None where it does not help and the choice is "auto"."""
    database = ArrayRows(rows[index])

    def read(places: Ids) -> list[LocalFeatures | None]:
        return [features[row] for row in index[places].tolist()]

    if choice == "auto" and not confirm_neighbours(database, read).helps:
        return None
    known = {place: one for place, one in enumerate(read(database.ids())) if one is not None}
    local = LocalEvidence(np.array(list(known), np.int64), LocalIndex.build(list(known.values())), read)
    return MatchedPoints(local, fit_score_curve(database), features)


def rank_rows(
    task: LeaveOneOut, ranker: RowRanker, points: MatchedPoints | None = None
) -> Iterator[RankedQuery]:
    """The ranking of each query, with the boxes of matched points, else those of the ranker."""
    for query in task.queries.tolist():
        scores = ranker.scores(query)
        order = np.argsort(-scores, kind="stable")
        order = order[order != task.place[query]]
        geometries: Sequence[Geometry | None] = ()
        if points is not None:
            found = points.rank(query, Results(order, scores[order]))
            order, geometries = found.ids, found.geometries[:SHOWN]
        boxes: list[Box | None] = [None] * min(SHOWN, len(order))
        if ranker.boxes is not None:
            boxes = [tuple(box) for box in ranker.boxes(query, order[:SHOWN]).tolist()]
        for i, geometry in enumerate(geometries):
            boxes[i] = geometry.box if geometry else boxes[i]
        rows = task.index[order]
        right = np.flatnonzero(task.instances[rows] == task.instances[query])
        yield RankedQuery(right, rows[:SHOWN], boxes)


def rank_globally(rows: Descriptors, index: Ids) -> RowRanker:
    """By the cosines of whole images; `rows` are those of all labels."""
    database = rows[index]
    return RowRanker(lambda query: np.asarray(database @ rows[query]))


def rank_by_regions(rows: Descriptors, regions: Sequence[Regions], index: Ids) -> RowRanker:
    """By the best of an image's regions and its whole; `rows` and `regions` are those of all labels."""
    database = rows[index]

    def score(query: int) -> Scores:
        wanted = rows[query]
        best = [
            max(similar, float((regions[row].descriptors @ wanted).max(initial=-1.0)))
            for similar, row in zip((database @ wanted).tolist(), index.tolist(), strict=True)
        ]
        return np.array(best, np.float32)

    def locate(query: int, places: Ids) -> Boxes:
        wanted, found = rows[query], []
        for row in index[places].tolist():
            similar = regions[row].descriptors @ wanted
            whole = float(rows[row] @ wanted)
            best = len(similar) and similar.max() > whole
            found.append(regions[row].boxes[similar.argmax()] if best else np.array([0, 0, 1, 1], np.float32))
        return np.array(found, np.float32).reshape(-1, 4)

    return RowRanker(score, locate)


def _describe_regions(model: OpenedModel, labels: Labels, size: int) -> list[Regions]:
    """The regions of the index rows; the others have none."""
    index = labels.role_ids("index")
    settings = model.descriptor.with_(zoom=0.0, **({"size": size} if size else {}))
    request = Request(settings, pooling=map_pooling(model))
    found = describe_files(model.engine, labels.images.subset(index.tolist()), request).regions
    regions = [no_regions(model.engine.dim)] * len(labels)
    for row, one in zip(index.tolist(), found, strict=True):
        regions[row] = one
    return regions


def true_boxes(labels: Labels) -> dict[int, Box]:
    """The boxes of index rows as fractions of their images; those of other rows are what is searched for."""
    if labels.boxes is None or labels.roles is None:
        return {}
    found: dict[int, Box] = {}
    for row in labels.role_ids("index").tolist():
        if (box := labels.boxes[row]) is None:
            continue
        with suppress(BadImage):
            width, height = decode(labels.images.file(row)).size
            left, top, right, bottom = box
            found[row] = (left / width, top / height, right / width, bottom / height)
    return found
