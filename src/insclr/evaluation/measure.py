"""Measure a model: on labels by any ranking (whole images, regions, matched points), or by a public protocol."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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
from insclr.retrieval.local_evidence import (
    NEAREST,
    VERIFIED,
    LocalEvidence,
    confirm_neighbours,
    learn_curve,
    sample_ids,
)
from insclr.retrieval.local_features import LocalFeatures, extract_from_files
from insclr.retrieval.local_index import LocalIndex, Vocabulary
from insclr.retrieval.rerank import RERANKERS
from insclr.retrieval.score import ScoreCurve, fit_score_curve
from insclr.retrieval.verification import Geometry, QueryParts, Results, outline_of
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
        points = learn_matched_points(features, query_outlines(labels), rows, task.index, options.local)
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
    """Local evidence about the index rows, as a store of them would have it."""

    local: LocalEvidence
    scores: ScoreCurve
    features: Sequence[LocalFeatures | None]  # of all labels
    outlines: Mapping[int, Box]  # of the instances in queries that have a box

    def rank(self, query: int, found: Results) -> Results:
        """The rows found for a query, by cosine and matched points together."""
        features = self.features[query]
        if features is None or not len(features):
            return found
        parts = [QueryParts(features, self.outlines.get(query))]
        voted, rarity = self.local.vote(parts)
        return self.local.rank(parts, rarity, found, self.scores.score(found.similarities), voted)


def learn_matched_points(
    features: Sequence[LocalFeatures | None],
    outlines: Mapping[int, Box],
    rows: Descriptors,
    index: Ids,
    choice: str,
) -> MatchedPoints | None:
    """What matched points are worth among the index rows; None where they do not help and the choice is "auto"."""
    database = ArrayRows(rows[index])
    there = np.array([row for row in index.tolist() if features[row] is not None], np.int64)
    known = [one for row in there.tolist() if (one := features[row]) is not None]
    near = {
        row: index[database.search(rows[[row]], NEAREST + 1).ids[0]] for row in sample_ids(index).tolist()
    }
    if choice == "auto" and not confirm_neighbours(near, features.__getitem__).helps:
        return None
    vocabulary = Vocabulary.learn(known, len(known))
    local = LocalEvidence(
        there,
        LocalIndex(vocabulary, [vocabulary.quantise(one) for one in known]),
        lambda ids: [features[one] for one in ids.tolist()],
    )
    curve = fit_score_curve(database)

    def nearest(query: int, voted: Ids) -> tuple[Ids, NDArray[np.float64]]:
        ids = np.union1d(index[database.search(rows[[query]], VERIFIED + 1).ids[0]], voted)
        ids = ids[ids != query]
        return ids, curve.score(rows[ids] @ rows[query])

    learned = learn_curve(local, nearest)
    if choice == "auto" and not learned.informs:
        return None
    return MatchedPoints(replace(local, curve=learned), curve, features, outlines)


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
            found = points.rank(query, Results(task.index[order], scores[order]))
            order, geometries = task.place[found.ids], found.geometries[:SHOWN]
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
