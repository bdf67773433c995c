"""Rank the rows of a store for a query set: by whole images or their best parts, and by what people know."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import MAX_REGIONS, Boxes, Descriptors, Ids, Scores
from insclr.data.decode import Box
from insclr.errors import UserError
from insclr.retrieval.verification import Geometry
from insclr.store import Condition, Store

# How much of what is not the instance is taken from a query. Chosen using labels of products60 and monuments24,
# confirmed on smvs_dvd100 (docs/research/results-search.md).
_UNLIKE = 0.3


@dataclass(frozen=True)
class Results:
    """Rows found for one query or query set, best first."""

    ids: Ids  # (results,)
    similarities: Scores  # (results,)
    boxes: Boxes | None = None  # (results, 4) where the instance is, as fractions, if the ranking finds that
    scores: NDArray[np.float64] | None = None  # (results,) of cosine and matched points together
    geometries: Sequence[Geometry | None] = ()
    compared: Sequence[bool] = ()  # which of them could be verified

    def box(self, place: int) -> Box | None:
        """Where the instance is in a result: by its geometry, else by the ranking; None where that is unknown."""
        geometry = self.geometries[place] if self.geometries else None
        if geometry is not None:
            return geometry.box
        if self.boxes is None:
            return None
        left, top, right, bottom = (round(float(side), 4) for side in self.boxes[place])
        return left, top, right, bottom

    def inliers(self, place: int) -> int | None:
        """How many matched points prove a result; None where it was not verified."""
        if not self.compared or not self.compared[place]:
            return None
        geometry = self.geometries[place]
        return geometry.inliers if geometry else 0

    def reorder(self, order: Ids) -> "Results":
        """The results in a new order, without what verification found."""
        boxes = None if self.boxes is None else self.boxes[order]
        return Results(self.ids[order], self.similarities[order], boxes)

    def append(self, ids: Ids, similarities: Scores) -> "Results":
        """The results and some more rows after them, whole images."""
        frames = np.tile(np.array([0, 0, 1, 1], np.float32), (len(ids), 1))
        boxes = None if self.boxes is None else np.concatenate([self.boxes, frames])
        joined = np.concatenate([self.similarities, similarities]).astype(np.float32)
        return Results(np.concatenate([self.ids, ids]), joined, boxes)


class Known(Protocol):
    """What people know about images, by the hashes of their content."""

    def relation(self, queries: Set[str], image: str) -> int:
        """1: the image shows the instance of a query; -1: another one; 0: not known."""


def search_nearest(
    store: Store, queries: Descriptors, top: int, where: Condition | None, aggregate: str
) -> Results:
    """The rows most similar to the set."""
    length = 1.0
    if len(queries) > 1 and aggregate == "mean":
        # The mean of cosines with unit descriptors is the inner product with the mean of the descriptors.
        length = float(np.linalg.norm(queries.mean(0)))
        if length < 1e-6:
            raise UserError("these queries cancel each other out: search for them one by one")
        queries = join_queries(queries)
    # The best by the largest similarity are among the best of the single queries.
    found = store.search(queries, top, where)
    return _best_of_each(found.ids.ravel(), length * found.similarities.ravel(), top)


def _best_of_each(ids: Ids, similarities: Scores, top: int, boxes: Boxes | None = None) -> Results:
    """The `top` rows, each with its largest similarity; the id -1 is none."""
    order = np.argsort(-similarities, kind="stable")
    order = order[ids[order] >= 0]
    best = order[np.sort(np.unique(ids[order], return_index=True)[1])][:top]
    return Results(ids[best], similarities[best], None if boxes is None else boxes[best])


def compare_with_set(store: Store, ids: Ids, queries: Descriptors, aggregate: str) -> Scores:
    """The similarities of rows with the set."""
    similar = store.descriptors(ids) @ queries.T  # (rows, queries)
    return np.asarray(similar.max(1) if aggregate == "max" else similar.mean(1), np.float32)


def join_queries(queries: Descriptors) -> Descriptors:
    """One unit descriptor (1, dim) for a query set: the mean."""
    mean = queries.mean(0, keepdims=True)
    return np.asarray(mean / max(float(np.linalg.norm(mean)), 1e-6), dtype=np.float32)


def search_best_region(
    store: Store, queries: Descriptors, top: int, where: Condition | None = None
) -> Results:
    """The `top` rows nearest to the mean of the queries by their best region or their whole image, and its box."""
    if not store.has_regions():
        raise UserError(
            f"the store {store.uri} has no regions: make them with `insclr index MODEL IMAGES --store {store.uri} "
            "--regions`, or search without --regions"
        )
    query = join_queries(queries)
    whole = store.search(query, top, where)
    # The first `top` rows by their best region are among the first MAX_REGIONS x top regions.
    parts = store.search_regions(query, MAX_REGIONS * top, where)
    ids = np.concatenate([whole.ids[0], parts.ids[0]])
    similarities = np.concatenate([whole.similarities[0], parts.similarities[0]])
    frames = np.tile(np.array([0, 0, 1, 1], np.float32), (whole.ids.shape[1], 1))
    boxes = np.concatenate([frames, parts.boxes[0]])
    return _best_of_each(ids, similarities, top, boxes)


def shift_away(queries: Descriptors, others: Sequence[Descriptors]) -> Descriptors:
    """The queries (Q, dim) less a share of the mean of `others`, each (1, dim): what is like these is found later."""
    if not others:
        return queries
    shifted = queries - _UNLIKE * np.concatenate(others).mean(0)
    lengths = np.linalg.norm(shifted, axis=1, keepdims=True)
    return np.asarray(shifted / np.maximum(lengths, 1e-6), dtype=np.float32)


def find_unlike(
    store: Store, found: Results, others: Sequence[Descriptors], least: float
) -> NDArray[np.bool_]:
    """Which results are images that the instance is not, or their copies: at least so similar."""
    if not others or not len(found.ids):
        return np.zeros(len(found.ids), dtype=bool)
    return np.asarray((store.descriptors(found.ids) @ np.concatenate(others).T).max(1) >= least)


def put_first(
    store: Store, queries: Descriptors, found: Results, own: Sequence[int], *, only_found: bool
) -> Results:
    """The results with the images that queries are parts of in front, which may look unlike their part."""
    own = [one for one in dict.fromkeys(own) if not only_found or one in found.ids]
    if not own:
        return found
    similarities = (store.descriptors(own) @ queries.mean(0)).astype(np.float32)
    rest = ~np.isin(found.ids, own)
    return Results(
        np.concatenate([np.array(own, dtype=np.int64), found.ids[rest]]),
        np.concatenate([similarities, found.similarities[rest]]),
    )
