"""Local features of an image in a compact format, and SIFT points with RootSIFT descriptors."""

import struct
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from insclr.data.decode import Box, crop_box
from insclr.errors import UserError

MAX_FEATURES = 400  # of one image: at most 54,408 bytes
LONGEST = 640  # pixels: larger images are shrunk before points are detected
_LEAST_SIDE = 16  # pixels: smaller images have no points
_CONTRAST = 0.02  # half of OpenCV's default: low-contrast photos would have too few points
_LEVELS = 512.0  # of a descriptor's byte; entries above a half are clipped
_ZERO, _SIGNED_LEVELS = 128.0, 254.0  # of a descriptor with signs
_HEAD = struct.Struct("<II")
_POINT = np.dtype([("x", "<u2"), ("y", "<u2"), ("scale", "<f2"), ("angle", "<u2")])


@dataclass(frozen=True)
class LocalFeatures:
    """The points of one image. Lengths are in units of the image's longest side: they do not depend on its size.

    Points of learned features (docs/small-objects.md) have no scale and no angle, and their descriptors have signs.
    """

    extent: tuple[float, float]  # width and height: the longer one is 1
    points: NDArray[np.float32]  # (n, 2) x, y
    scales: NDArray[np.float32]  # (n,)
    angles: NDArray[np.float32]  # (n,) radians
    descriptors: NDArray[np.uint8]  # (n, 128)
    learned: bool = False

    def __len__(self) -> int:
        return len(self.points)

    def unit_descriptors(self) -> NDArray[np.float32]:
        """The descriptors (n, 128) as unit rows."""
        rows = self.descriptors.astype(np.float32) - (_ZERO if self.learned else 0.0)
        return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6))

    def to_bytes(self) -> bytes:
        """Write the features as 8 bytes and 136 bytes per point."""
        points = np.empty(len(self), _POINT)
        points["x"], points["y"] = np.rint(self.points.T.clip(0, 1) * 65535)
        points["scale"] = self.scales
        points["angle"] = np.rint(self.angles % (2 * np.pi) * (65535 / (2 * np.pi)))
        head = _HEAD.pack(*(round(side * 65535) for side in self.extent))
        return head + points.tobytes() + self.descriptors.tobytes()

    @classmethod
    def from_bytes(cls, kept: bytes, *, learned: bool = False) -> "LocalFeatures":
        """Read the result of `to_bytes`; ValueError for other bytes."""
        count, rest = divmod(len(kept) - _HEAD.size, _POINT.itemsize + 128)
        if rest or count < 0:
            raise ValueError(f"{len(kept)} bytes are no local features")
        width, height = _HEAD.unpack_from(kept)
        points = np.frombuffer(kept, _POINT, count, _HEAD.size)
        descriptors = np.frombuffer(kept, np.uint8, count * 128, _HEAD.size + points.nbytes)
        return cls(
            (width / 65535, height / 65535),
            np.stack([points["x"], points["y"]], 1).astype(np.float32) / np.float32(65535),
            points["scale"].astype(np.float32),
            points["angle"].astype(np.float32) * np.float32(2 * np.pi / 65535),
            descriptors.reshape(count, 128),
            learned,
        )


@dataclass(frozen=True)
class VisiblePart:
    """The part of an image in which points are detected, and its position in the whole image."""

    image: Image.Image  # at most LONGEST pixels a side
    extent: tuple[float, float]  # of the whole image
    pixel: float  # side of one pixel in units of the whole image
    offset: NDArray[np.float64]  # (2,) of the upper left corner

    def places(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        """Points (n, 2) of the visible part as points of the whole image."""
        return np.asarray(pixels * self.pixel + self.offset, np.float32)

    def nothing(self, *, learned: bool = False) -> LocalFeatures:
        """The features of an image that has none."""
        none = np.zeros(0, np.float32)
        points, descriptors = np.zeros((0, 2), np.float32), np.zeros((0, 128), np.uint8)
        return LocalFeatures(self.extent, points, none, none, descriptors, learned)


def visible_part(image: Image.Image, box: Box | None = None) -> VisiblePart:
    """An image, or the part of it inside a box, shrunk to LONGEST where it is larger."""
    whole = image
    if box is not None:
        image = crop_box(image, box)
    shrunk = min(1.0, LONGEST / max(image.size))
    side = max(1, round(image.width * shrunk)), max(1, round(image.height * shrunk))
    unit = float(max(whole.size))
    offset = np.array([max(0, round(edge)) for edge in box[:2]] if box is not None else (0, 0)) / unit
    return VisiblePart(
        image.resize(side, Image.Resampling.BILINEAR),
        (whole.width / unit, whole.height / unit),
        image.width / side[0] / unit,
        offset,
    )


def extract_features(image: Image.Image, box: Box | None = None) -> LocalFeatures:
    """The strongest points of an image; none for a tiny or single-coloured image.

    With a box only the points inside it, in coordinates of the whole image. OpenCV sees only the box, shrunk only
    where it is longer than LONGEST: a small object keeps points that it would lose if the whole image were shrunk.
    """
    part = visible_part(image.convert("L"), box)
    if min(part.image.size) < _LEAST_SIDE:
        return part.nothing()
    cv2 = require_opencv()
    sift = cv2.SIFT_create(nfeatures=MAX_FEATURES, contrastThreshold=_CONTRAST)
    found, raw = sift.detectAndCompute(np.asarray(part.image), None)
    if raw is None or not len(found):
        return part.nothing()
    strongest = np.argsort([-point.response for point in found], kind="stable")[:MAX_FEATURES]
    found, raw = [found[i] for i in strongest], raw[strongest]
    return LocalFeatures(
        part.extent,
        part.places(np.array([point.pt for point in found], np.float32)),
        np.array([point.size * part.pixel for point in found], np.float32),
        np.radians(np.array([point.angle for point in found], np.float32)),
        root_sift(raw),
    )


def root_sift(descriptors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Square roots of the normalised SIFT histogram (Arandjelovic 2012), one byte per entry."""
    shares = descriptors / np.maximum(descriptors.sum(1, keepdims=True), 1e-6)
    return np.asarray(np.rint(np.sqrt(shares) * _LEVELS).clip(0, 255), dtype=np.uint8)


def signed_bytes(descriptors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Signed unit descriptors, one byte per entry; entries beyond 0.5 are clipped."""
    return np.asarray(np.rint(descriptors * _SIGNED_LEVELS + _ZERO).clip(1, 255), dtype=np.uint8)


def has_opencv() -> bool:
    """Whether images can be verified geometrically here."""
    return find_spec("cv2") is not None


def require_opencv() -> Any:
    """The OpenCV module; when it is missing, a UserError with the command that installs it."""
    try:
        return import_module("cv2")
    except ImportError:
        raise UserError("geometric verification needs OpenCV: pip install 'insclr[geometry]'") from None
