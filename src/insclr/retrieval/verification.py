"""Verify the first results of a search: points that match those of the query under one affine transform."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from insclr.retrieval.local_features import THUMBNAIL, LocalFeatures, load_opencv

MIN_INLIERS = 8
_RATIO = 0.9  # of the distances to the nearest and the second nearest descriptor
_THRESHOLD = 0.012  # an inlier's error, of the longest side of the found image
_LEAST_SHARE = 0.1  # minimum share of the tentative matches that are inliers: fewer occur by chance
_SCALES = (1 / 12, 12.0)
_MOST_SQUEEZED = 4.0  # ratio of the transform's two scales: a plane seen at 75 degrees
_TURN, _GROWTH = math.radians(40), 2.0  # maximum deviation of a point's direction and size from the transform
_LEAST_SPREAD = 0.012  # smallest standard deviation of the inliers in any direction, in both images
_GROWN = 0.25
_BESIDE = 0.05  # of the longest side of the query
_UNITS = 640.0  # OpenCV's estimators expect pixels
_ALIKE = (
    0.5  # correlation of grey values in the matched region, below which two photos contradict their points
)
_LEAST_REGION = 0.05  # of both photos: grey values of a smaller region tell nothing


@dataclass(frozen=True)
class Geometry:
    """A transform from the query to the found image, and the pairs of points that agree with it.

    All places are fractions of their image's width and height.
    """

    rows: NDArray[np.int64]  # (inliers,) which points of the query
    transform: NDArray[np.float64]  # (2, 3) affine
    query_points: NDArray[np.float32]  # (inliers, 2)
    found_points: NDArray[np.float32]  # (inliers, 2)
    box: tuple[float, float, float, float]  # of the instance in the found image: left, top, right, bottom
    contradicted: bool  # grey values between the points differ: another thing on the same table

    @property
    def inliers(self) -> int:
        """The number of points that agree."""
        return len(self.rows)


Pairs = NDArray[np.int64]  # (pairs, 2) places in the query's and in the found image's features


def match_features(query: LocalFeatures, found: LocalFeatures) -> Pairs:
    """Pairs of points that are each other's nearest, clearly nearer than the second nearest.

    The second test drops repeated patterns (windows, fences, letters), whose second nearest is as near as the first.
    """
    if len(query) < 2 or len(found) < 2:
        return np.zeros((0, 2), np.int64)
    near = query.unit_descriptors() @ found.unit_descriptors().T  # (query, found)
    first, every = near.argmax(1), np.arange(len(query))
    mutual = near.argmax(0)[first] == every
    best = near[every, first]
    near[every, first] = -1
    clear = (1 - best) < _RATIO**2 * (1 - near.max(1))
    rows = np.flatnonzero(clear & mutual)
    return _distinct(np.stack([rows, first[rows]], 1), query, found)


def verify(query: LocalFeatures, found: LocalFeatures) -> Geometry | None:
    """The affine transform that at least MIN_INLIERS pairs of points agree on, or None.

    Impossible transforms are rejected: a mirror image, a change of scale beyond twelvefold, all points on one line or
    spot, and a transform that contradicts the directions and sizes of the points.
    """
    pairs = match_features(query, found)
    if len(pairs) < MIN_INLIERS:
        return None
    source, target = query.points[pairs[:, 0]], found.points[pairs[:, 1]]
    transform, agree = _estimate(source, target)
    if transform is None or not _possible(transform):
        return None
    agree &= _points_agree(transform, query, found, pairs)
    count = int(agree.sum())
    if count < max(MIN_INLIERS, _LEAST_SHARE * len(pairs)):
        return None
    source, target = source[agree], target[agree]
    if min(_spread(source), _spread(target)) < _LEAST_SPREAD:
        return None
    stretch = np.append(query.extent, 1.0) / np.array(found.extent)[:, None]  # (2, 3)
    query_points = (source / np.array(query.extent, np.float32)).astype(np.float32)
    found_points = (target / np.array(found.extent, np.float32)).astype(np.float32)
    return Geometry(
        pairs[agree, 0],
        transform * stretch,
        query_points,
        found_points,
        _box(transform, query, found, target),
        _is_contradicted(transform * stretch, query, found, query_points, found_points),
    )


def drop_shared_points(query: LocalFeatures, other: LocalFeatures) -> LocalFeatures:
    """The query without what is found again in an image of another instance: it tells nothing.

    Points beside those that match go too: not every point is detected in every photo.
    """
    geometry = verify(query, other)
    if geometry is None:
        return query
    shared = query.points[geometry.rows]  # (inliers, 2)
    distances = np.linalg.norm(query.points[:, None] - shared[None], axis=2)  # (points, inliers)
    return query.select(distances.min(1) >= _BESIDE)


def _distinct(pairs: Pairs, query: LocalFeatures, found: LocalFeatures) -> Pairs:
    """Keep one pair per position: a corner with two directions gives two points, but counts once."""
    for side, features in ((0, query), (1, found)):
        places = np.rint(features.points[pairs[:, side]] * _UNITS).astype(np.int64)
        pairs = pairs[np.sort(np.unique(places, axis=0, return_index=True)[1])]
    return pairs


def _estimate(
    source: NDArray[np.float32], target: NDArray[np.float32]
) -> tuple[NDArray[np.float64] | None, NDArray[np.bool_]]:
    cv2 = load_opencv()
    settings = cv2.UsacParams()
    settings.threshold = _THRESHOLD * _UNITS
    settings.confidence = 0.999
    settings.maxIterations = 2000
    settings.score = cv2.SCORE_METHOD_MAGSAC
    settings.loMethod = cv2.LOCAL_OPTIM_SIGMA
    settings.sampler = cv2.SAMPLING_UNIFORM
    settings.randomGeneratorState = 0
    try:
        transform, _ = cv2.estimateAffine2D(source * _UNITS, target * _UNITS, settings)
    except cv2.error:  # raised for points on a line
        transform = None
    if transform is None or not np.isfinite(transform).all():
        return None, np.zeros(len(source), bool)
    transform = np.asarray(transform, np.float64)
    transform[:, 2] /= _UNITS
    errors = np.linalg.norm(source @ transform[:, :2].T + transform[:, 2] - target, axis=1)
    return transform, errors < _THRESHOLD


def _possible(transform: NDArray[np.float64]) -> bool:
    """Whether two photos of one instance can be related by this transform."""
    linear = transform[:, :2]
    if np.linalg.det(linear) <= 0:  # mirrored, or flattened
        return False
    large, small = np.linalg.svd(linear, compute_uv=False)
    return bool(_SCALES[0] <= small and large <= _SCALES[1] and large <= _MOST_SQUEEZED * small)


def _points_agree(
    transform: NDArray[np.float64], query: LocalFeatures, found: LocalFeatures, pairs: Pairs
) -> NDArray[np.bool_]:
    """Which pairs have directions and sizes that agree with the transform."""
    linear = transform[:, :2]
    angles = query.angles[pairs[:, 0]]
    turned = np.stack([np.cos(angles), np.sin(angles)], 1) @ linear.T  # (pairs, 2)
    difference = np.arctan2(turned[:, 1], turned[:, 0]) - found.angles[pairs[:, 1]]
    difference = np.abs((difference + np.pi) % (2 * np.pi) - np.pi)
    growth = found.scales[pairs[:, 1]] / np.maximum(query.scales[pairs[:, 0]], 1e-6)
    expected = math.sqrt(float(np.linalg.det(linear)))
    ratio = np.maximum(growth / expected, expected / np.maximum(growth, 1e-6))
    return np.asarray((difference < _TURN) & (ratio < _GROWTH))


def _is_contradicted(
    transform: NDArray[np.float64],
    query: LocalFeatures,
    found: LocalFeatures,
    query_points: NDArray[np.float32],
    found_points: NDArray[np.float32],
) -> bool:
    """Whether the grey values differ inside the convex hull of the points, laid over each other by the transform."""
    cv2, side = load_opencv(), THUMBNAIL
    pixels = transform * np.array([1, 1, side])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    warped = cv2.warpAffine(
        found.thumbnail.astype(np.float32), pixels, (side, side), flags=flags, borderValue=-1
    )
    hulls = []
    for points in (query_points, found_points):
        corners = cv2.convexHull(np.rint(points * (side - 1)).astype(np.int32))
        hulls.append(cv2.fillConvexPoly(np.zeros((side, side), np.uint8), corners, 1) > 0)
    region = hulls[0] & (warped >= 0)
    if min(region.sum(), hulls[1].sum()) < _LEAST_REGION * side**2:
        return False
    one, other = (grey[region] - grey[region].mean() for grey in (query.thumbnail, warped))
    return bool(one @ other < _ALIKE * np.linalg.norm(one) * np.linalg.norm(other))


def _spread(points: NDArray[np.float32]) -> float:
    """The standard deviation in the direction with the smallest variance."""
    return float(np.sqrt(max(0.0, np.linalg.eigvalsh(np.cov(points.T))[0])))


def _box(
    transform: NDArray[np.float64],
    query: LocalFeatures,
    found: LocalFeatures,
    target: NDArray[np.float32],
) -> tuple[float, float, float, float]:
    """The box of the instance in the found image, as fractions: the transformed outline.

    Without an outline it is the bounding box of the inliers, grown by a quarter on every side, within the
    transformed frame of the query.
    """
    left, top, right, bottom = query.outline or (0.0, 0.0, 1.0, 1.0)
    corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom)]) * np.array(query.extent)
    there = corners @ transform[:, :2].T + transform[:, 2]
    low, high = there.min(0), there.max(0)
    if query.outline is None:
        grown = _GROWN * (target.max(0) - target.min(0))
        low, high = np.maximum(low, target.min(0) - grown), np.minimum(high, target.max(0) + grown)
    (left, top), (right, bottom) = (
        (edge / np.array(found.extent)).clip(0, 1).tolist() for edge in (low, high)
    )
    return left, top, right, bottom
