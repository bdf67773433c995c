"""Local features of images: SIFT points with RootSIFT descriptors of two bits an entry."""

import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from insclr.data.decode import BadImage, Box, crop_box, decode
from insclr.data.images import ImageList
from insclr.data.workers import default_workers
from insclr.progress import progress_bar

MAX_FEATURES = 800  # of one image: at most 31,436 bytes, and 8,004 for its words (local_index.py)
THUMBNAIL = 32  # pixels a side
LONGEST = 640  # pixels: larger images are shrunk before points are detected
_LEAST_SIDE = 16  # pixels: smaller images have no points
_CONTRAST = 0.02  # half of OpenCV's default: low-contrast photos would have too few points
# Of a descriptor's entry, two bits: where a level begins, and its value. They lose 8 % of the variance.
_STEPS = np.array([0.5, 2.5, 4.5], np.float32) / 32
_LEVELS = np.array([0, 3, 7, 12], np.float32)
_OCTAVE, _SMALLEST = 20, 2.0**-12  # a scale is kept in twentieths of an octave
_HEAD = struct.Struct("<II")
_POINT = np.dtype([("x", "<u2"), ("y", "<u2"), ("scale", "u1"), ("angle", "u1")])
_ENTRIES = 32  # bytes of a descriptor
_SHIFTS = np.array([6, 4, 2, 0], np.uint8)
_IMAGES_AT_ONCE = 64

Item = TypeVar("Item")


@dataclass(frozen=True)
class LocalFeatures:
    """The points of one image. Lengths are in units of the image's longest side: they do not depend on its size."""

    extent: tuple[float, float]  # width and height: the longer one is 1
    points: NDArray[np.float32]  # (n, 2) x, y
    scales: NDArray[np.float32]  # (n,)
    angles: NDArray[np.float32]  # (n,) radians
    descriptors: NDArray[np.uint8]  # (n, 128) levels, 0 to 3
    thumbnail: NDArray[np.uint8]  # (THUMBNAIL, THUMBNAIL) grey values of the whole image
    outline: Box | None = None  # of the instance in a query, as fractions, if the user has drawn a box

    def __len__(self) -> int:
        return len(self.points)

    def select(self, chosen: NDArray[np.bool_]) -> "LocalFeatures":
        """The features of some points."""
        return replace(
            self,
            points=self.points[chosen],
            scales=self.scales[chosen],
            angles=self.angles[chosen],
            descriptors=self.descriptors[chosen],
        )

    def unit_descriptors(self) -> NDArray[np.float32]:
        """The descriptors (n, 128) as unit rows."""
        rows = _LEVELS[self.descriptors]
        return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6))

    def to_bytes(self) -> bytes:
        """Write the features as 1,032 bytes and 38 bytes per point."""
        points = np.empty(len(self), _POINT)
        points["x"], points["y"] = np.rint(self.points.T.clip(0, 1) * 65535)
        octaves = np.log2(np.maximum(self.scales, _SMALLEST) / _SMALLEST)
        points["scale"] = np.rint(octaves * _OCTAVE).clip(0, 255)
        points["angle"] = np.rint(self.angles * (256 / (2 * np.pi))) % 256
        head = _HEAD.pack(*(round(side * 65535) for side in self.extent))
        packed = (self.descriptors.reshape(-1, _ENTRIES, 4) << _SHIFTS).sum(2, dtype=np.uint8)
        return bytes(head + self.thumbnail.tobytes() + points.tobytes() + packed.tobytes())

    @classmethod
    def from_bytes(cls, kept: bytes) -> "LocalFeatures":
        """Read the result of `to_bytes`."""
        start = _HEAD.size + THUMBNAIL**2
        count = (len(kept) - start) // (_POINT.itemsize + _ENTRIES)
        width, height = _HEAD.unpack_from(kept)
        thumbnail = np.frombuffer(kept, np.uint8, THUMBNAIL**2, _HEAD.size)
        points = np.frombuffer(kept, _POINT, count, start)
        packed = np.frombuffer(kept, np.uint8, count * _ENTRIES, start + points.nbytes)
        return cls(
            (width / 65535, height / 65535),
            np.stack([points["x"], points["y"]], 1).astype(np.float32) / np.float32(65535),
            np.float32(_SMALLEST) * np.exp2(points["scale"].astype(np.float32) / _OCTAVE),
            points["angle"].astype(np.float32) * np.float32(2 * np.pi / 256),
            np.asarray(packed[:, None] >> _SHIFTS & 3, np.uint8).reshape(count, 128),
            thumbnail.reshape(THUMBNAIL, THUMBNAIL),
        )


def extract_features(image: Image.Image, box: Box | None = None) -> LocalFeatures:
    """The strongest points of an image; none for a tiny or single-coloured image.

    With a box only the points inside it, in coordinates of the whole image. OpenCV sees only the box, shrunk only
    where it is longer than LONGEST: a small object keeps points that it would lose if the whole image were shrunk.
    """
    unit = float(max(image.size))
    extent = image.width / unit, image.height / unit
    outline = None
    if box is not None:
        outline = box[0] / image.width, box[1] / image.height, box[2] / image.width, box[3] / image.height
    grey = image.convert("L")
    thumbnail = np.asarray(grey.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BILINEAR))
    part = grey if box is None else crop_box(grey, box)
    shrunk = min(1.0, LONGEST / max(part.size))
    side = max(1, round(part.width * shrunk)), max(1, round(part.height * shrunk))
    none = np.zeros(0, np.float32)
    empty = LocalFeatures(
        extent, np.zeros((0, 2), np.float32), none, none, np.zeros((0, 128), np.uint8), thumbnail
    )
    if min(side) < _LEAST_SIDE:
        return empty
    sift = load_opencv().SIFT_create(nfeatures=MAX_FEATURES, contrastThreshold=_CONTRAST)
    found, raw = sift.detectAndCompute(np.asarray(part.resize(side, Image.Resampling.BILINEAR)), None)
    if raw is None or not len(found):
        return empty
    strongest = np.argsort([-point.response for point in found], kind="stable")[:MAX_FEATURES]
    found, raw = [found[i] for i in strongest], raw[strongest]
    pixel = part.width / side[0] / unit  # side of a seen pixel in units of the whole image
    corner = np.array([max(0, round(edge)) for edge in box[:2]] if box is not None else (0, 0)) / unit
    return LocalFeatures(
        extent,
        np.asarray(np.array([point.pt for point in found], np.float32) * pixel + corner, np.float32),
        np.array([point.size * pixel for point in found], np.float32),
        np.radians(np.array([point.angle for point in found], np.float32)),
        root_sift(raw),
        thumbnail,
        outline,
    )


def extract_each(
    items: Sequence[Item], extract: Callable[[Item], LocalFeatures | None]
) -> Iterator[list[tuple[Item, LocalFeatures | None]]]:
    """Batches of items with what `extract` gives for each, by threads."""
    load_opencv().setNumThreads(1)  # images are shared out to threads, not the work on one
    with ThreadPoolExecutor(default_workers()) as pool, progress_bar("local features", len(items)) as bar:
        for start in range(0, len(items), _IMAGES_AT_ONCE):
            part = items[start : start + _IMAGES_AT_ONCE]
            yield list(zip(part, pool.map(extract, part), strict=True))
            bar.advance(len(part))


def extract_from_files(
    images: ImageList, boxes: Sequence[Box | None] | None = None
) -> list[LocalFeatures | None]:
    """The local features of files, or of boxes in them; None for an unreadable file."""

    def extract(row: int) -> LocalFeatures | None:
        box = boxes[row] if boxes is not None else None
        try:
            return extract_features(decode(images.file(row), None if box else LONGEST), box)
        except BadImage:
            return None

    return [found for part in extract_each(range(len(images)), extract) for _, found in part]


def root_sift(descriptors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Square roots of the normalised SIFT histogram (Arandjelovic 2012), two bits per entry."""
    shares = descriptors / np.maximum(descriptors.sum(1, keepdims=True), 1e-6)
    return np.asarray(np.searchsorted(_STEPS, np.sqrt(shares)), np.uint8)


def load_opencv() -> Any:
    """The OpenCV module: it loads where points are extracted or verified, because most commands need none."""
    return import_module("cv2")
