"""Measure a model: on labels by any ranking (whole images, regions, local descriptors), or by a public protocol."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from insclr.arrays import no_regions
from insclr.data.decode import decode
from insclr.data.labels import Labels
from insclr.describe.cells import SCALES, Cells, image_cells
from insclr.describe.map_features import map_pooling
from insclr.describe.pipeline import Request, as_opened, describe_files
from insclr.engine.opened import OpenedModel
from insclr.errors import UserError
from insclr.evaluation.calibration import measure_calibration
from insclr.evaluation.distractors import Distractors
from insclr.evaluation.evaluate import (
    Describe,
    evaluate_labels,
    evaluate_protocol,
    present,
    readable_rows,
)
from insclr.evaluation.located import (
    AsmkRanker,
    CellVerifier,
    GeometricVerifier,
    GlobalRanker,
    RegionRanker,
    RowRanker,
    RowVerifier,
    evaluate_rows,
    query_outlines,
)
from insclr.evaluation.protocol import RetrievalProtocol
from insclr.evaluation.results import LabelResult, ProtocolResult
from insclr.evaluation.split import SplitDescriptors
from insclr.progress import progress_bar, working
from insclr.retrieval.local import dsm
from insclr.retrieval.local.asmk import QUERY_WORDS, InvertedFile, learn_codebook
from insclr.retrieval.local.extractor import SIFT, Extractor
from insclr.retrieval.local.keep_asmk import SAMPLE
from insclr.retrieval.local.verification import image_features
from insclr.retrieval.rerank import Reranker
from insclr.retrieval.reranker_names import verifier_name
from insclr.shards import Shard
from insclr.store import Regions

if TYPE_CHECKING:
    from insclr.model.model_file import Model

_PART = 32  # images described at once


def measure_labels(
    model: "Model | OpenedModel",
    labels: Labels,
    reranker: Reranker | None = None,
    *,
    ranking: str = "global",
    verifier: str = "",
    extractor: Extractor = SIFT,
    region_size: int = 0,
    allow_missing: bool = False,
    describe: Describe | None = None,
) -> LabelResult:
    """Describe the labelled images, whole ones with `describe`, and rank them.

    `region_size` is the side at which index images are described for their regions; queries are described at the
    model's own size, which is about that of a small thing in a large image. The score, which is made from the
    descriptors of whole images, is measured too, except with regions. `extractor` makes what the verifier "geometric"
    compares.
    """
    model = as_opened(model)
    describe = describe or SplitDescriptors(model, None, Shard())
    vectors = describe(labels.images, labels.query_boxes)
    if ranking == "global" and not verifier:
        with working("ranking"):
            return evaluate_labels(vectors, labels, reranker, allow_missing=allow_missing, calibration=True)
    if reranker is not None:
        raise UserError("A re-ranker of descriptors goes with --ranking global.")
    rows, kept = readable_rows(vectors, labels, allow_missing=allow_missing)
    labels = labels.subset(kept)
    index = labels.role_ids("index")
    ranker: RowRanker = GlobalRanker(rows, index)
    if ranking == "regions":
        ranker = RegionRanker(rows, _regions(model, labels, region_size), index)
    elif ranking == "asmk":
        ranker = asmk_ranker(model, labels)
    result = evaluate_rows(labels, ranker, _verifier(verifier_name(verifier), model, labels, extractor))
    if ranking == "regions":
        return result  # the score of a region is another one
    with working("measuring the score"):
        calibration, answered = measure_calibration(rows, labels)
    return replace(result, calibration=calibration, answered=answered)


def measure_protocol(
    protocol: RetrievalProtocol,
    describe: SplitDescriptors,
    reranker: Reranker | None = None,
    distractors: Distractors | None = None,
    *,
    allow_missing: bool = False,
) -> ProtocolResult:
    """Run a public benchmark; of several shards each describes its share, also of distractors that are images."""
    there, _ = present(protocol, allow_missing=allow_missing)
    further = distractors.images if distractors is not None else None
    describe.share(
        [
            (there.queries, there.boxes),
            (there.database, None),
            *([] if further is None else [(further, None)]),
        ]
    )
    with working("measuring"):
        return evaluate_protocol(
            protocol, describe, reranker, distractors=distractors, allow_missing=allow_missing
        )


def asmk_ranker(model: OpenedModel, labels: Labels) -> AsmkRanker:
    """Learn a vocabulary from the index images, and aggregate them and the queries."""
    index, queries = labels.role_ids("index"), set(labels.role_ids("query").tolist())
    sample = np.random.default_rng(0).permutation(index)[:SAMPLE]
    seen = {row: cells.descriptors for row, cells in _cells(model, labels, sample.tolist(), "vocabulary")}
    codebook = learn_codebook(np.concatenate(list(seen.values())), len(index))
    of_index, of_queries, place = {}, {}, set(index.tolist())
    rest = [row for row in range(len(labels)) if row not in seen]
    others = ((row, cells.descriptors) for row, cells in _cells(model, labels, rest, "local descriptors"))
    for row, descriptors in itertools.chain(seen.items(), others):
        if row in place:
            of_index[row] = codebook.aggregate(descriptors)
        if row in queries:
            of_queries[row] = codebook.aggregate(descriptors, QUERY_WORDS)
    return AsmkRanker(InvertedFile(codebook, [of_index[row] for row in index.tolist()]), of_queries)


def _cells(model: OpenedModel, labels: Labels, rows: list[int], title: str) -> Iterator[tuple[int, Cells]]:
    """The local descriptors of rows; all of them can be read, since they have been described."""
    wanted, boxes = model.descriptor, labels.query_boxes or (None,) * len(labels)
    with progress_bar(title, len(rows)) as bar:
        for start in range(0, len(rows), _PART):
            part = rows[start : start + _PART]
            longest = round(wanted.size * max(SCALES))
            images = [decode(labels.images.file(row), None if boxes[row] else longest) for row in part]
            found = image_cells(model, images, [boxes[row] for row in part])
            yield from zip(part, found, strict=True)
            bar.advance(len(part))


def _verifier(name: str, model: OpenedModel, labels: Labels, extractor: Extractor) -> RowVerifier | None:
    if not name:
        return None
    if name == "dsm":
        wanted, boxes = model.descriptor, labels.query_boxes or (None,) * len(labels)

        @functools.cache
        def cells(row: int) -> Cells:
            longest = None if boxes[row] else round(wanted.size * max(dsm.SCALES))
            image = decode(labels.images.file(row), longest)
            return image_cells(model, [image], [boxes[row]], dsm.SCALES, dsm.MAX_CELLS)[0]

        return CellVerifier(cells)
    features = image_features(labels.images, labels.query_boxes, extractor)
    return GeometricVerifier(features, query_outlines(labels), extractor)


def _regions(model: OpenedModel, labels: Labels, size: int) -> list[Regions]:
    """The regions of the index rows; the others have none."""
    index = labels.role_ids("index")
    settings = model.descriptor.with_(zoom=0.0, **({"size": size} if size else {}))
    request = Request(settings, pooling=map_pooling(model))
    found = describe_files(model.engine_for(settings), labels.images.subset(index.tolist()), request).regions
    regions = [no_regions(model.engine.dim)] * len(labels)
    for row, one in zip(index.tolist(), found, strict=True):
        regions[row] = one
    return regions
