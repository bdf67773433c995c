"""The rankings a search can ask for, and the verification of their first results, behind one function."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from insclr.arrays import Boxes, Descriptors, Ids, Scores
from insclr.data.decode import Box
from insclr.describe.cells import Cells
from insclr.describe.describer import CellDescriber
from insclr.errors import UserError
from insclr.retrieval.local import dsm
from insclr.retrieval.local.dsm import verify_cells
from insclr.retrieval.local.geometry import Geometry
from insclr.retrieval.local.local_feature_database import LocalFeatureDatabase
from insclr.retrieval.local.verification import VERIFIED, QueryParts, Verified, verified_order, verify_rows
from insclr.store import Store

_log = logging.getLogger(__name__)

RANKINGS = ("global", "regions", "asmk")


@dataclass(frozen=True)
class Results:
    """Rows found for one query or query set, best first."""

    ids: Ids  # (results,)
    similarities: Scores  # (results,)
    boxes: Boxes | None = None  # (results, 4) where the thing is, as fractions; the ranking may not say
    geometries: Sequence[Geometry | None] = ()  # of the first ones, where they were verified
    looked: Sequence[bool] = ()  # which of these could be

    def box(self, place: int) -> tuple[float, float, float, float] | None:
        """Where the thing is in a result: by its geometry, else by the ranking; None: nobody knows."""
        geometry = self.geometries[place] if place < len(self.geometries) else None
        if geometry is not None:
            return geometry.box
        if self.boxes is None:
            return None
        left, top, right, bottom = (round(float(side), 4) for side in self.boxes[place])
        return left, top, right, bottom

    def inliers(self, place: int) -> int | None:
        """How many matched points prove a result; None: it was not looked at."""
        if place >= len(self.looked) or not self.looked[place]:
            return None
        geometry = self.geometries[place]
        return geometry.inliers if geometry else 0


@dataclass(frozen=True)
class QueryDetails:
    """What a query brings besides its descriptor, where the ranking or the verifier needs it."""

    parts: Sequence[QueryParts] = ()  # for geometric
    cells: Sequence[Cells] = ()  # for asmk
    map_cells: Sequence[tuple[Cells, Box | None]] = ()  # for dsm, and the part of the query that they are of
    describer: CellDescriber | None = None  # for dsm: describes the found images


NO_DETAILS = QueryDetails()


def check_ranking(name: str) -> None:
    """UserError when there is no such ranking."""
    if name not in RANKINGS:
        raise UserError(f"there is no ranking {name!r}: choose one of {', '.join(RANKINGS)}")


def verified(store: Store, found: Results, name: str, query: QueryDetails) -> Results:
    """The results with the first ones in the order of similarity and matched points together.

    Where no query has points (one colour, blurred, tiny), nothing can be verified: the order stays, with a warning.
    """
    if name == "dsm":
        return _dsm(store, found, query)
    if not any(len(one.features) for one in query.parts):
        _log.warning(
            "the query has no points to match (one colour, blurred or tiny): its results are not verified"
        )
        return found
    kept = LocalFeatureDatabase(store.parts)
    try:
        judged = verify_rows(store, kept, query.parts, found.ids[:VERIFIED])
    finally:
        kept.close()
    _warn_of_missing(judged, "have no local features and are not verified: run `insclr index --local`")
    return reordered(found, judged)


def _dsm(store: Store, found: Results, query: QueryDetails) -> Results:
    if query.describer is None:
        raise UserError("--rerank dsm describes the photos found anew: use it on the command line")
    judged = verify_cells(
        store,
        partial(query.describer.cells, scales=dsm.SCALES, most=dsm.MAX_CELLS),
        query.describer.cells_longest,
        query.map_cells,
        found.ids[: dsm.VERIFIED],
    )
    _warn_of_missing(judged, "are gone or have changed and are not verified: run `insclr index`")
    return reordered(found, judged)


def _warn_of_missing(judged: Verified, says: str) -> None:
    missing = judged.looked.count(False)
    if missing:
        _log.warning("%d of the first %d photos %s", missing, len(judged.looked), says)


def reordered(found: Results, judged: Verified) -> Results:
    """The results with the first ones, which were judged, in their new order."""
    count = len(judged.geometries)
    inliers = np.array([one.inliers if one else 0 for one in judged.geometries], np.int64)
    order = np.concatenate(
        [verified_order(found.similarities[:count], inliers), np.arange(count, len(found.ids))]
    )
    return replace(
        found,
        ids=found.ids[order],
        similarities=found.similarities[order],
        boxes=None if found.boxes is None else found.boxes[order],
        geometries=[judged.geometries[i] for i in order[:count].tolist()],
        looked=[judged.looked[i] for i in order[:count].tolist()],
    )


def joined_queries(queries: Descriptors) -> Descriptors:
    """One unit descriptor (1, dim) for a query set: the mean."""
    mean = queries.mean(0, keepdims=True)
    return np.asarray(mean / max(float(np.linalg.norm(mean)), 1e-6), dtype=np.float32)
