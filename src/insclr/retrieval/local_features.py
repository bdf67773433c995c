"""Local features of images: SIFT points with RootSIFT descriptors, kept in an SQLite file beside a store."""

import logging
import sqlite3
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from insclr.data.decode import BadImage, Box, crop_box, decode, read_image_bytes
from insclr.data.images import ImageList
from insclr.data.workers import default_workers
from insclr.errors import UserError
from insclr.files import content_hash
from insclr.progress import progress_bar
from insclr.store import Row, Store
from insclr.store.checks import SEAL, seal, unseal
from insclr.store.database import DamagedFile, connect, explain_errors

MAX_FEATURES = 400  # of one image: at most 54,408 bytes
LONGEST = 640  # pixels: larger images are shrunk before points are detected
_LEAST_SIDE = 16  # pixels: smaller images have no points
_CONTRAST = 0.02  # half of OpenCV's default: low-contrast photos would have too few points
_LEVELS = 512.0  # of a descriptor's byte; entries above a half are clipped
_HEAD = struct.Struct("<II")
_POINT = np.dtype([("x", "<u2"), ("y", "<u2"), ("scale", "<f2"), ("angle", "<u2")])


@dataclass(frozen=True)
class LocalFeatures:
    """The points of one image. Lengths are in units of the image's longest side: they do not depend on its size."""

    extent: tuple[float, float]  # width and height: the longer one is 1
    points: NDArray[np.float32]  # (n, 2) x, y
    scales: NDArray[np.float32]  # (n,)
    angles: NDArray[np.float32]  # (n,) radians
    descriptors: NDArray[np.uint8]  # (n, 128)

    def __len__(self) -> int:
        return len(self.points)

    def unit_descriptors(self) -> NDArray[np.float32]:
        """The descriptors (n, 128) as unit rows."""
        rows = self.descriptors.astype(np.float32)
        return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6))

    def to_bytes(self) -> bytes:
        """Write the features as 8 bytes, 136 bytes per point, and a checksum."""
        points = np.empty(len(self), _POINT)
        points["x"], points["y"] = np.rint(self.points.T.clip(0, 1) * 65535)
        points["scale"] = self.scales
        points["angle"] = np.rint(self.angles % (2 * np.pi) * (65535 / (2 * np.pi)))
        head = _HEAD.pack(*(round(side * 65535) for side in self.extent))
        return seal(head + points.tobytes() + self.descriptors.tobytes())

    @classmethod
    def from_bytes(cls, kept: bytes) -> "LocalFeatures":
        """Read the result of `to_bytes`; ValueError for other bytes."""
        count, rest = divmod(len(kept) - _HEAD.size, _POINT.itemsize + 128)
        if rest == SEAL:  # earlier versions kept no checksum
            kept, rest = unseal(kept), 0
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
        )


def extract_features(image: Image.Image, box: Box | None = None) -> LocalFeatures:
    """The strongest points of an image; none for a tiny or single-coloured image.

    With a box only the points inside it, in coordinates of the whole image. OpenCV sees only the box, shrunk only
    where it is longer than LONGEST: a small object keeps points that it would lose if the whole image were shrunk.
    """
    unit = float(max(image.size))
    extent = image.width / unit, image.height / unit
    part = image.convert("L") if box is None else crop_box(image.convert("L"), box)
    shrunk = min(1.0, LONGEST / max(part.size))
    side = max(1, round(part.width * shrunk)), max(1, round(part.height * shrunk))
    if min(side) < _LEAST_SIDE:
        return _no_features(extent)
    sift = require_opencv().SIFT_create(nfeatures=MAX_FEATURES, contrastThreshold=_CONTRAST)
    found, raw = sift.detectAndCompute(np.asarray(part.resize(side, Image.Resampling.BILINEAR)), None)
    if raw is None or not len(found):
        return _no_features(extent)
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
    )


def extract_from_files(
    images: ImageList, boxes: Sequence[Box | None] | None = None
) -> list[LocalFeatures | None]:
    """The local features of files, or of boxes in them; None for an unreadable file."""
    require_opencv().setNumThreads(1)  # images are shared out to threads, not the work on one

    def extract(row: int) -> LocalFeatures | None:
        box = boxes[row] if boxes is not None else None
        try:
            return extract_features(decode(images.file(row), None if box else LONGEST), box)
        except BadImage:
            return None

    found: list[LocalFeatures | None] = []
    with ThreadPoolExecutor(default_workers()) as pool, progress_bar("local features", len(images)) as bar:
        for one in pool.map(extract, range(len(images))):
            found.append(one)
            bar.advance()
    return found


def _no_features(extent: tuple[float, float]) -> LocalFeatures:
    none = np.zeros(0, np.float32)
    return LocalFeatures(extent, np.zeros((0, 2), np.float32), none, none, np.zeros((0, 128), np.uint8))


def root_sift(descriptors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Square roots of the normalised SIFT histogram (Arandjelovic 2012), one byte per entry."""
    shares = descriptors / np.maximum(descriptors.sum(1, keepdims=True), 1e-6)
    return np.asarray(np.rint(np.sqrt(shares) * _LEVELS).clip(0, 255), dtype=np.uint8)


def has_opencv() -> bool:
    """Whether images can be verified geometrically here."""
    return find_spec("cv2") is not None


def require_opencv() -> Any:
    """The OpenCV module; when it is missing, a UserError with the command that installs it."""
    try:
        return import_module("cv2")
    except ImportError:
        raise UserError("geometric verification needs OpenCV: pip install 'insclr[geometry]'") from None


_log = logging.getLogger(__name__)
_SCHEMA = "CREATE TABLE IF NOT EXISTS sift (hash TEXT PRIMARY KEY, kept BLOB NOT NULL) WITHOUT ROWID"
# Earlier versions kept other features too. Nothing reads them, but a dropped image leaves their tables as well.
_TABLES = ("sift", "learned", "asmk")
_HASHES_AT_ONCE = 500  # in one statement
_IMAGES_AT_ONCE = 64  # written in one transaction


class LocalFeatureDatabase:
    """The file of one store."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._rows: sqlite3.Connection | None = None

    def hashes(self) -> set[str]:
        """The content hashes of the images whose features are kept."""
        return self._hashes("sift") if "sift" in self._tables() else set()

    def read(self, hashes: Sequence[str]) -> dict[str, LocalFeatures]:
        """The features of these images; those without are left out."""
        found: dict[str, bytes] = {}
        for start in range(0, len(hashes) if "sift" in self._tables() else 0, _HASHES_AT_ONCE):
            part = list(hashes[start : start + _HASHES_AT_ONCE])
            places = ",".join("?" * len(part))
            found |= dict(self._select(f"SELECT hash, kept FROM sift WHERE hash IN ({places})", part))
        try:
            return {content: LocalFeatures.from_bytes(kept) for content, kept in found.items()}
        except ValueError as error:
            raise _report_damage(self.file) from error

    def write(self, features: Mapping[str, LocalFeatures]) -> None:
        """Keep the features of these images, in one transaction."""
        kept = [(content, one.to_bytes()) for content, one in features.items()]
        with self._lock, _explain_errors(self.file), self._writable() as rows:
            rows.execute("BEGIN IMMEDIATE")
            rows.executemany("INSERT OR REPLACE INTO sift VALUES (?, ?)", kept)

    def drop(self, hashes: Iterable[str]) -> None:
        """Delete what is kept of these images."""
        gone = [(one,) for one in hashes]
        tables = self._tables()
        if not gone or not tables:
            return
        with self._lock, _explain_errors(self.file), self._writable() as rows:
            rows.execute("BEGIN IMMEDIATE")
            for table in tables:
                rows.executemany(f"DELETE FROM {table} WHERE hash = ?", gone)

    def drop_others(self, hashes: set[str]) -> None:
        """Delete what is kept of all images but these."""
        self.drop(set[str]().union(*map(self._hashes, self._tables())) - hashes)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._rows is not None:
                self._rows.close()
                self._rows = None

    def _select(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if not self.file.exists():
            return []
        with self._lock, _explain_errors(self.file):
            if self._rows is None:
                self._rows = connect(self.file)
            return self._rows.execute(statement, values).fetchall()

    def _tables(self) -> list[str]:
        there = {row[0] for row in self._select("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return [table for table in _TABLES if table in there]

    def _hashes(self, table: str) -> set[str]:
        return {row[0] for row in self._select(f"SELECT hash FROM {table}")}

    def _writable(self) -> sqlite3.Connection:
        if self._rows is None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._rows = connect(self.file)
        self._rows.execute(_SCHEMA)
        return self._rows


def keep_features(store: Store, kept: LocalFeatureDatabase) -> None:
    """Extract the local features of every row that has none.

    A file that has changed since it was indexed, or cannot be read, has none until the next `insclr index`.
    """
    require_opencv().setNumThreads(1)  # images are shared out to threads, not the work on one
    known = kept.hashes()
    wanted = {row.image.hash: row for row in store.rows_by_path().values() if row.image.hash not in known}
    with ThreadPoolExecutor(default_workers()) as pool, progress_bar("local features", len(wanted)) as bar:
        for start in range(0, len(wanted), _IMAGES_AT_ONCE):
            part = list(wanted.values())[start : start + _IMAGES_AT_ONCE]
            found = pool.map(lambda row: _extract_unchanged(store, row), part)
            kept.write({row.image.hash: one for row, one in zip(part, found, strict=True) if one is not None})
            bar.advance(len(part))


def _extract_unchanged(store: Store, row: Row) -> LocalFeatures | None:
    """The features of a row's file; None where it no longer holds what was indexed."""
    try:
        content = read_image_bytes(store.info.root / row.image.path)
        if content_hash(content) == row.image.hash:
            return extract_features(decode(content, LONGEST))
    except BadImage as bad:
        _log.debug("%s: %s", row.image.path, bad.reason)
    return None


@contextmanager
def _explain_errors(file: Path) -> Iterator[None]:
    """SQLite's errors in words; nothing in a damaged file cannot be made again."""
    try:
        with explain_errors(file):
            yield
    except DamagedFile as error:
        raise _report_damage(file) from error


def _report_damage(file: Path) -> UserError:
    return UserError(f"{file} is damaged: delete it and run `insclr index` with --local again.")
