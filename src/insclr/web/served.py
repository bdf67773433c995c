"""The stores that the page serves: search by photos and rows, thumbnails, previews, filters by the user's columns."""

import logging
import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from insclr.data.camera_data import CAMERA_COLUMNS
from insclr.data.decode_limits import MAX_PIXELS
from insclr.data.formats import on_disk, split_part
from insclr.describe.describer import Describer
from insclr.feedback.feedback import FirstResults
from insclr.feedback.feedback_cache import FeedbackCache
from insclr.files import is_there, whole_file
from insclr.retrieval.score import score_curve_of
from insclr.store import Row, Store
from insclr.store.where import number_of
from insclr.web.decode_pool import DecodePool
from insclr.web.limits import Limit
from insclr.web.server_metrics import ServerMetrics
from insclr.web.settings import ServeOptions

MAX_ROWS_READ = 20_000  # from larger stores a sample
_MAX_CHOICES = 60
_MAX_VALUE = 200  # characters: longer texts are no choices


@dataclass(frozen=True)
class Column:
    """A column that a filter can use.

    `values` are all its values when it is a choice, the most frequent ones when it is a text; of `path` they are
    the folders. `low` and `high` are the ends of a number column.
    """

    name: str
    kind: Literal["number", "choice", "text"]
    values: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


def columns_of(store: Store) -> list[Column]:
    """The columns of a store, `path` first, those without any value left out."""
    ids = store.ids()
    whole = len(ids) <= MAX_ROWS_READ
    if not whole:
        ids = np.sort(np.random.default_rng(0).choice(ids, MAX_ROWS_READ, replace=False))
    rows = store.rows(ids.tolist())
    found = [_path_column(rows)]
    for name in store.columns():
        values = Counter(value for row in rows if (value := row.image.columns.get(name, "")))
        if values:
            found.append(_column(name, values, whole=whole))
    return found


def _path_column(rows: list[Row]) -> Column:
    folders = Counter(row.image.path.rpartition("/")[0] for row in rows)
    common = [f"{name}/" for name, _ in folders.most_common(_MAX_CHOICES) if name]
    return Column("path", "text", tuple(sorted(common)))


def _column(name: str, values: Counter[str], *, whole: bool) -> Column:
    numbers = [number_of(value) for value in values]
    if all(number is not None for number in numbers):
        known = [number for number in numbers if number is not None]
        return Column(name, "number", low=min(known), high=max(known))
    short = [value for value, _ in values.most_common(_MAX_CHOICES) if len(value) <= _MAX_VALUE]
    # A sample may miss a value: then all that is known is offered, and others can be typed.
    kind: Literal["choice", "text"] = "choice" if whole and len(short) == len(values) else "text"
    return Column(name, kind, tuple(sorted(short)))


_log = logging.getLogger(__name__)

THUMBNAIL = 320
PREVIEW = 1600
_LARGEST_ID = 2**63 - 1


class Refused(Exception):
    """A request that cannot be served: the HTTP status and a message for the person."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


class _WithoutCameraData:
    """A store whose rows have no columns of EXIF data: where and when a photo was taken is not given away."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def columns(self) -> list[str]:
        return [name for name in self._store.columns() if name not in CAMERA_COLUMNS]

    def rows(self, ids: Sequence[int]) -> list[Row]:
        return [self._strip(row) for row in self._store.rows(ids)]

    def rows_by_path(self) -> dict[str, Row]:
        return {path: self._strip(row) for path, row in self._store.rows_by_path().items()}

    @staticmethod
    def _strip(row: Row) -> Row:
        kept = {name: value for name, value in row.image.columns.items() if name not in CAMERA_COLUMNS}
        return replace(row, image=replace(row.image, columns=kept))


class ServedStore:
    """One store with the describer of its model and a title for people."""

    def __init__(self, title: str, store: Store, describer: Describer) -> None:
        store.info.refuse_other_model(describer.fingerprint, store.uri)
        self.title = title
        self.store = store
        self.describer = describer
        self._columns: tuple[str, list[Column]] = ("", [])  # as of this version of the store
        self._results: tuple[str, FirstResults] | None = None
        self.feedback = FeedbackCache(store)

    def hide_camera_data(self) -> None:
        """Serve rows without the columns of EXIF data."""
        if not isinstance(self.store, _WithoutCameraData):
            self.store = cast("Store", _WithoutCameraData(self.store))
            self.feedback = FeedbackCache(self.store)

    def row(self, id_: int) -> Row:
        """The row of this id; Refused when there is none."""
        found = self.store.rows([id_]) if 0 <= id_ <= _LARGEST_ID else []
        if not found:
            raise Refused(404, f"there is no row {id_} in this store")
        return found[0]

    def require_shown(self, fingerprint: str) -> None:
        """Refuse feedback about another model's rows: after learning, their ids stand for other images."""
        if fingerprint != self.store.info.fingerprint:
            raise Refused(
                409,
                "a new model is served since this page was loaded: nothing was written, please look again",
            )

    def file(self, row: Row) -> Path:
        """Where the picture of a row is: the only way from a request to the disk."""
        return self.store.info.root / row.image.path

    def cutoff(self) -> float:
        """The cosine of the calibrated cut-off."""
        return score_curve_of(self.store).cutoff

    def columns(self) -> list[Column]:
        """What a filter can be built from."""
        version = self.store.version()
        if self._columns[0] != version:
            self._columns = (version, columns_of(self.store))
        return self._columns[1]

    def results(self) -> FirstResults:
        """What searches for its own pictures give first, kept as long as the rows stay as they are."""
        version, kept = self.store.version(), self._results
        if kept is None or kept[0] != version:
            self._results = kept = (version, FirstResults(self.store))
        return kept[1]

    def sample(self, count: int, seed: int) -> list[Row]:
        """Some rows by chance, the same for the same seed."""
        ids = self.store.ids()
        chosen = np.random.default_rng(seed).choice(ids, min(count, len(ids)), replace=False)
        return self.store.rows([int(one) for one in chosen])

    def read_thumbnail(self, row: Row) -> bytes | None:
        """The small JPEG that was made of the row's picture; None when there is none, or the picture is gone."""
        file = self._thumbnail_file(row)
        return file.read_bytes() if file.exists() and is_there(on_disk(self.file(row))) else None

    def thumbnail(self, row: Row, decoders: DecodePool, gone: threading.Event) -> bytes:
        """Make a small JPEG of the row's picture, and keep it where the store can be written.

        Raises BadImage when the file gives none (any more), Busy or ClientGone.
        """
        small = decoders.jpeg(self.file(row), THUMBNAIL, 82, MAX_PIXELS, gone)
        try:
            with whole_file(self._thumbnail_file(row)) as scratch:
                scratch.write_bytes(small)
        except OSError as error:
            _log.debug("thumbnails cannot be kept: %s", error)
        return small

    def preview(self, row: Row, decoders: DecodePool, gone: threading.Event, *, whole: bool = False) -> bytes:
        """A large JPEG, on request of the whole photo that the row is a part of.

        Raises BadImage when the file gives no picture, Busy or ClientGone.
        """
        file = split_part(self.file(row))[0] if whole else self.file(row)
        return decoders.jpeg(file, PREVIEW, 90, MAX_PIXELS, gone)

    def _thumbnail_file(self, row: Row) -> Path:
        name = row.image.hash
        return self.store.cache / "thumbnails" / name[:2] / f"{name}.jpg"

    def name(self) -> str:
        """The last part of the store's address."""
        return os.path.basename(self.store.uri.rstrip("/")) or self.store.uri  # noqa: PTH119 (may be an address)


@dataclass
class Served:
    """Everything that a server offers: one store, or two to compare, and what it accepts.

    `stores` changes when a new model has learned from feedback.
    """

    stores: tuple[ServedStore, ...]
    settings: ServeOptions
    decoders: DecodePool
    uploads: Limit  # requests at once that search for pictures which are decoded
    matchings: Limit  # requests at once that match the points of indexed pictures
    previews: Limit  # requests at once for JPEGs of indexed pictures
    bytes: Limit  # of all requests together
    metrics: ServerMetrics

    def store(self, number: int) -> ServedStore:
        """The store of this number; Refused when there is none."""
        if number >= len(self.stores):
            raise Refused(404, f"there is no store {number}: this server has {len(self.stores)}")
        return self.stores[number]
