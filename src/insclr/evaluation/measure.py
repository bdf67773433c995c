"""Measure a model on labels by any ranking: whole images, regions or local descriptors, verified or not."""

from insclr.data.labels import Labels
from insclr.errors import UserError
from insclr.evaluation.evaluate import evaluate_labels, readable_rows
from insclr.evaluation.located import (
    GeometricVerifier,
    GlobalRanker,
    RegionRanker,
    RowRanker,
    RowVerifier,
    evaluate_rows,
)
from insclr.evaluation.results import LabelResult
from insclr.model.model_file import Model
from insclr.retrieval.describe import describe_images
from insclr.retrieval.local.verification import image_features
from insclr.retrieval.rerank import Reranker
from insclr.retrieval.store import Regions
from insclr.retrieval.store.regions import no_regions


def measure_labels(
    model: Model,
    labels: Labels,
    reranker: Reranker | None = None,
    *,
    ranking: str = "global",
    verifier: str = "",
    region_size: int = 0,
    allow_missing: bool = False,
) -> LabelResult:
    """Describe the labelled images and rank them.

    `region_size` is the side at which index images are described for their regions; queries are described at the
    model's own size, which is about that of a small thing in a large image.
    """
    vectors = describe_images(model, labels.images, boxes=labels.query_boxes)
    if ranking == "global" and not verifier:
        return evaluate_labels(vectors, labels, reranker, allow_missing=allow_missing)
    if reranker is not None:
        raise UserError("A re-ranker of descriptors goes with --ranking global.")
    rows, kept = readable_rows(vectors, labels, allow_missing=allow_missing)
    labels = labels.subset(kept)
    index = labels.role_ids("index")
    ranker: RowRanker = GlobalRanker(rows, index)
    if ranking == "regions":
        ranker = RegionRanker(rows, _regions(model, labels, region_size), index)
    return evaluate_rows(labels, ranker, _verifier(verifier, labels))


def _verifier(name: str, labels: Labels) -> RowVerifier | None:
    if not name:
        return None
    return GeometricVerifier(image_features(labels.images, labels.query_boxes))


def _regions(model: Model, labels: Labels, size: int) -> list[Regions]:
    """The regions of the index rows; the others have none."""
    index = labels.role_ids("index")
    settings = model.recipe.descriptor.with_(zoom=0.0, **({"size": size} if size else {}))
    found: list[Regions] = []
    describe_images(model, labels.images.subset(index.tolist()), settings, regions=found)
    regions = [no_regions(model.network.dim)] * len(labels)
    for row, one in zip(index.tolist(), found, strict=True):
        regions[row] = one
    return regions
