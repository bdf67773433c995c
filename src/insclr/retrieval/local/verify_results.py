"""The results of a ranking, and the verification of the first ones by local features."""

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from insclr.arrays import Boxes, Descriptors, Ids, Scores
from insclr.data.decode import Box
from insclr.describe.describer import CellDescriber, Describer
from insclr.errors import UserError
from insclr.retrieval.local import dsm
from insclr.retrieval.local.extractor import store_extractor
from insclr.retrieval.local.geometry import Geometry
from insclr.retrieval.local.local_feature_database import LocalFeatureDatabase
from insclr.retrieval.local.verification import VERIFIED, Verified, outline_of, verified_order, verify_rows
from insclr.retrieval.query import Query
from insclr.store import Store

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Results:
    """Rows found for one query or query set, best first."""

    ids: Ids  # (results,)
    similarities: Scores  # (results,)
    boxes: Boxes | None = None  # (results, 4) where the instance is, as fractions, if the ranking finds that
    geometries: Sequence[Geometry | None] = ()  # of the first ones, where they were verified
    compared: Sequence[bool] = ()  # which of these could be verified

    def box(self, place: int) -> Box | None:
        """Where the instance is in a result: by its geometry, else by the ranking; None where that is unknown."""
        geometry = self.geometries[place] if place < len(self.geometries) else None
        if geometry is not None:
            return geometry.box
        if self.boxes is None:
            return None
        left, top, right, bottom = (round(float(side), 4) for side in self.boxes[place])
        return left, top, right, bottom

    def inliers(self, place: int) -> int | None:
        """How many matched points prove a result; None where it was not verified."""
        if place >= len(self.compared) or not self.compared[place]:
            return None
        geometry = self.geometries[place]
        return geometry.inliers if geometry else 0

    def reorder(self, order: Ids) -> "Results":
        """The results in a new order, without what verification found."""
        boxes = None if self.boxes is None else self.boxes[order]
        return Results(self.ids[order], self.similarities[order], boxes)


def verify_results(
    store: Store, describer: Describer, queries: Sequence[Query], found: Results, verifier: str
) -> Results:
    """The results with the first ones in the order of similarity and matched points together.

    Where no query has points (one colour, blurred, tiny), nothing can be verified: the order stays, with a warning.
    """
    if verifier == "dsm":
        judged = _verify_by_cells(store, describer, queries, found)
    else:
        extractor = store_extractor(store)
        parts = [one.local_parts(extractor) for one in queries]
        if not any(len(one.features) for one in parts):
            _log.warning(
                "the query has no points to match (one colour, blurred or tiny): its results are not verified"
            )
            return found
        with closing(LocalFeatureDatabase(store.parts)) as kept:
            judged = verify_rows(store, kept, parts, found.ids[:VERIFIED])
        _warn_of_missing(judged, "have no local features and are not verified: run `insclr index --local`")
    count = len(judged.geometries)
    inliers = np.array([one.inliers if one else 0 for one in judged.geometries], np.int64)
    first = verified_order(found.similarities[:count], inliers)
    return replace(
        found.reorder(np.concatenate([first, np.arange(count, len(found.ids))])),
        geometries=[judged.geometries[i] for i in first.tolist()],
        compared=[judged.compared[i] for i in first.tolist()],
    )


def _verify_by_cells(
    store: Store, describer: Describer, queries: Sequence[Query], found: Results
) -> Verified:
    if not isinstance(describer, CellDescriber):
        raise UserError("this model has no feature maps: search without --rerank dsm")
    map_cells = partial(describer.cells, scales=dsm.SCALES, most=dsm.MAX_CELLS)
    images = [one.decode(describer.cells_longest) for one in queries]
    mine = [(map_cells([image], [box])[0], outline_of(image, box)) for image, box in images]
    ids = found.ids[: dsm.VERIFIED]
    judged = dsm.verify_cells(store, map_cells, describer.cells_longest, mine, ids)
    _warn_of_missing(judged, "are gone or have changed and are not verified: run `insclr index`")
    return judged


def _warn_of_missing(judged: Verified, what: str) -> None:
    missing = judged.compared.count(False)
    if missing:
        _log.warning("%d of the first %d images %s", missing, len(judged.compared), what)


def join_queries(queries: Descriptors) -> Descriptors:
    """One unit descriptor (1, dim) for a query set: the mean."""
    mean = queries.mean(0, keepdims=True)
    return np.asarray(mean / max(float(np.linalg.norm(mean)), 1e-6), dtype=np.float32)
