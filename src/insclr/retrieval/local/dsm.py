"""Deep spatial matching (after Simeoni 2019): verify results by cells of the network's feature maps.

The strongest cells of two images are matched; a scale and a shift that many matches agree on is the geometry. There
is no rotation, because maps do not change with small rotations. No library and no stored features are needed: the
results are described during the search.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Ids
from insclr.data.decode import BadImage, Box, decode
from insclr.describe.cells import Cells
from insclr.retrieval.local.geometry import Geometry
from insclr.retrieval.local.keep import image_contents
from insclr.retrieval.local.keep_asmk import CellsOf
from insclr.retrieval.local.verification import Verified
from insclr.store import Store

VERIFIED = 20  # results of a query that are verified: each is described again
SCALES = (2.0,)
MAX_CELLS = 60
_MIN_INLIERS = 6
_LEAST_SIMILARITY = 0.3  # of two matched cells
_ERROR = 1.0  # in cells of the found image
_GROWTHS = (1 / 8, 8.0)
_LEAST_SPREAD = 0.7  # standard deviation of the inliers in each direction, in cells of both images


def match_cells(query: Cells, found: Cells, outline: Box | None = None) -> Geometry | None:
    """The scale and shift with the most matching cells, or None.

    `outline` is the part of the query that its cells come from, as fractions.
    """
    if len(query) < _MIN_INLIERS or len(found) < _MIN_INLIERS:
        return None
    near = query.descriptors @ found.descriptors.T  # (query, found)
    best = near.argmax(1)
    rows = np.flatnonzero(
        (near.argmax(0)[best] == np.arange(len(query))) & (near.max(1) >= _LEAST_SIMILARITY)
    )
    if len(rows) < _MIN_INLIERS:
        return None
    source, target = _centres(query)[rows], _centres(found)[best[rows]]
    mine, theirs = (one.boxes[0, 2:] - one.boxes[0, :2] for one in (query, found))  # a cell, as fractions
    growth, shift, agree = _most_agreed(source / theirs, target / theirs)
    if agree.sum() < _MIN_INLIERS:
        return None
    spread = min(float((source[agree] / mine).std(0).min()), float((target[agree] / theirs).std(0).min()))
    if spread < _LEAST_SPREAD:
        return None
    low, high = (corner * growth + shift * theirs for corner in (np.zeros(2), np.ones(2)))
    (left, top), (right, bottom) = low.clip(0, 1).tolist(), high.clip(0, 1).tolist()
    transform = np.array([(growth, 0.0, shift[0] * theirs[0]), (0.0, growth, shift[1] * theirs[1])])
    points = source[agree].astype(np.float32)
    if outline is not None:
        corner, size = np.array(outline[:2]), np.array(outline[2:]) - np.array(outline[:2])
        points = (corner + points * size).astype(np.float32)
        transform = np.array([(growth / size[0], 0, 0), (0, growth / size[1], 0)])
        transform[:, 2] = shift * theirs - transform[:, :2] @ corner
    return Geometry(
        int(agree.sum()), transform, points, target[agree].astype(np.float32), (left, top, right, bottom)
    )


def verify_cells(
    store: Store, cells_of: CellsOf, longest: int, queries: Sequence[tuple[Cells, Box | None]], ids: Ids
) -> Verified:
    """Describe the cells of these rows' files and compare them with those of the queries.

    A missing or changed file cannot be verified.
    """
    found: dict[int, Geometry | None] = {}
    rows = store.rows(ids.tolist())
    for row, content in image_contents(store, rows):
        try:
            (theirs,) = cells_of([decode(content, longest)])
        except BadImage:
            continue
        geometries = [match_cells(mine, theirs, outline) for mine, outline in queries]
        found[row.id] = max((one for one in geometries if one), key=lambda one: one.inliers, default=None)
    order = [int(one) for one in ids]
    return Verified([found.get(one) for one in order], [one in found for one in order])


def _centres(cells: Cells) -> NDArray[np.float32]:
    return (cells.boxes[:, :2] + cells.boxes[:, 2:]) / np.float32(2)


def _most_agreed(
    source: NDArray[np.float32], target: NDArray[np.float32]
) -> tuple[float, NDArray[np.float64], NDArray[np.bool_]]:
    """The scale and shift with the most inliers among those of all pairs of matches, and these inliers.

    There are at most MAX_CELLS matches, so all pairs are tried.
    """
    first, second = np.triu_indices(len(source), 1)
    length = np.linalg.norm(source[first] - source[second], axis=1)
    there = np.linalg.norm(target[first] - target[second], axis=1)
    growths = there / np.maximum(length, 1e-9)
    usable = (length > 0) & (growths > _GROWTHS[0]) & (growths < _GROWTHS[1])
    first, second, growths = first[usable], second[usable], growths[usable]
    if not len(first):
        return 1.0, np.zeros(2), np.zeros(len(source), bool)
    middle = (source[first] + source[second]) / 2, (target[first] + target[second]) / 2
    shifts = middle[1] - growths[:, None] * middle[0]  # (pairs, 2)
    errors = np.linalg.norm(
        growths[:, None, None] * source + shifts[:, None] - target, axis=2
    )  # (pairs, matches)
    best = (errors < _ERROR).sum(1).argmax()
    return float(growths[best]), shifts[best].astype(np.float64), errors[best] < _ERROR
