"""Geometric verification of results: which of the first ones show the query's thing by matched points, and where."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from insclr.arrays import Ids, Scores
from insclr.data.decode import BadImage, Box, decode
from insclr.data.images import ImageList
from insclr.data.workers import default_workers
from insclr.errors import UserError
from insclr.progress import progress_bar
from insclr.retrieval.local.extractor import SIFT, Extractor, read_features
from insclr.retrieval.local.features import LONGEST, LocalFeatures, require_opencv
from insclr.retrieval.local.geometry import Geometry, verify
from insclr.retrieval.local.local_feature_database import LocalFeatureDatabase
from insclr.store import Store

VERIFIED = 50  # results of a query that are looked at
# An inlier more moves a result by less and less: 8 inliers count 2.4 times the shortlist's spread of similarities,
# 80 count 7.7 times. Of 1, 2 and "verified first" this lost on no set and won on most.
_WEIGHT = 2.0


@dataclass(frozen=True)
class QueryParts:
    """The local features of a query, and the box around its thing, as fractions, where the user has drawn one."""

    features: LocalFeatures
    outline: Box | None = None
    extractor: Extractor = SIFT  # that made the features


def query_parts(image: Image.Image, box: Box | None = None, extractor: Extractor = SIFT) -> QueryParts:
    """What verification compares of a query; `box` is in pixels of the image."""
    return QueryParts(extractor.extract(image, box), outline_of(image, box), extractor)


def outline_of(image: Image.Image, box: Box | None) -> Box | None:
    """A box in pixels of an image as fractions of it."""
    if box is None:
        return None
    width, height = image.size
    return box[0] / width, box[1] / height, box[2] / width, box[3] / height


@dataclass(frozen=True)
class Verified:
    """What verification says of some rows: the geometry of each that has one, and which could be looked at."""

    geometries: list[Geometry | None]
    looked: list[bool]


def verify_rows(
    store: Store, kept: LocalFeatureDatabase, queries: Sequence[QueryParts], ids: Ids
) -> Verified:
    """Compare the queries with these rows; of several queries the one with most inliers counts.

    A row whose local features are missing has no geometry; UserError where all are.
    """
    hashes = {row.id: row.image.hash for row in store.rows(ids.tolist())}
    found = read_features(kept, queries[0].extractor, list(hashes.values()))
    if hashes and not found:
        raise UserError(
            f"the store {store.uri} has no local features of these photos: make them with `insclr index MODEL IMAGES "
            f"--store {store.uri} --local`, or search without --rerank geometric"
        )
    features = [found.get(hashes.get(int(one), "")) for one in ids]
    return Verified(
        [None if one is None else best_geometry(queries, one) for one in features],
        [one is not None for one in features],
    )


def best_geometry(queries: Sequence[QueryParts], found: LocalFeatures) -> Geometry | None:
    """The geometry with most inliers among those of the queries with one image."""
    geometries = [verify(one.features, found, one.outline, one.extractor.match) for one in queries]
    return max((one for one in geometries if one), key=lambda one: one.inliers, default=None)


def verified_order(similarities: Scores, inliers: NDArray[np.int64]) -> Ids:
    """Places of the results, best first: by similarity, to which inliers add.

    The unit is the spread of the similarities at hand, since networks differ in theirs.
    """
    spread = float(np.std(similarities)) or 1.0
    bonus = _WEIGHT * np.log2(1 + inliers / 6.0)
    return np.argsort(-(similarities / spread + bonus), kind="stable")


def image_features(
    images: ImageList, boxes: Sequence[Box | None] | None = None, extractor: Extractor = SIFT
) -> list[LocalFeatures | None]:
    """The local features of files, or of the parts of them inside boxes; None for an unreadable one."""
    require_opencv().setNumThreads(1)

    def extract(row: int) -> LocalFeatures | None:
        box = boxes[row] if boxes is not None else None
        try:
            return extractor.extract(decode(images.file(row), None if box else LONGEST), box)
        except BadImage:
            return None

    found: list[LocalFeatures | None] = []
    with ThreadPoolExecutor(default_workers()) as pool, progress_bar("local features", len(images)) as bar:
        for one in pool.map(extract, range(len(images))):
            found.append(one)
            bar.advance()
    return found
