"""The describing pipeline: from image files, or images in memory, to features. Threads decode and run the engine.

A cache keeps pooled features by file content, so that a model with another last layer decodes no image again.
"""

import hashlib
import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
from PIL import Image

from insclr.arrays import Descriptors, Regions, no_regions
from insclr.data.camera_data import camera_columns
from insclr.data.decode import BadImage, Box, decode, read_image_bytes
from insclr.data.images import ImageList, Skipped, list_images
from insclr.data.views import Fit, Pixels, descriptor_views
from insclr.data.workers import default_workers, in_threads
from insclr.describe.map_features import MapPooling, map_regions
from insclr.engine.engine import Engine, Features, Output, images_at_once, unit_rows
from insclr.engine.opened import OpenedModel, open_in_memory
from insclr.errors import UserError
from insclr.files import content_hash
from insclr.progress import progress_bar
from insclr.recipe import DescriptorRecipe, Recipe

if TYPE_CHECKING:
    from insclr.model.model_file import Model


class FeatureCache:
    """Pooled features of the views of images in half precision, in a database named by what made them.

    `read` and `write` give the sum of the descriptors that the model's last layer makes of them.
    """

    def __init__(self, folder: Path, model: OpenedModel) -> None:
        self._head, self._channels = model.head, model.engine.channels
        key = hashlib.sha256(f"{model.descriptor.model_dump_json()} {model.trunk}".encode()).hexdigest()[:16]
        self._file = folder / f"views-{key}.sqlite"
        folder.mkdir(parents=True, exist_ok=True)
        with self._open() as rows:
            rows.execute("PRAGMA journal_mode = WAL")
            rows.execute("CREATE TABLE IF NOT EXISTS features (hash TEXT PRIMARY KEY, rows BLOB NOT NULL)")

    def read(self, content: str) -> Descriptors | None:
        """The sum (dim,) for the image with this hash of its content, where it is kept."""
        with self._open() as rows:
            found = rows.execute("SELECT rows FROM features WHERE hash = ?", (content,)).fetchone()
        return None if found is None else self._describe(found[0])

    def write(self, features: Mapping[str, Features]) -> dict[str, Descriptors]:
        """Keep features (views, channels) by the hash of the content; the sums for all of them."""
        blobs = {content: one.astype("<f2").tobytes() for content, one in features.items()}
        with self._open() as rows, rows:
            rows.executemany("INSERT OR IGNORE INTO features VALUES (?, ?)", blobs.items())
        return {content: self._describe(blob) for content, blob in blobs.items()}

    def _describe(self, blob: bytes) -> Descriptors:
        features = np.frombuffer(blob, dtype="<f2").reshape(-1, self._channels).astype(np.float32)
        found: Descriptors = self._head(features).sum(0)
        return found

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._file, timeout=60)) as rows:
                rows.execute("PRAGMA synchronous = NORMAL")
                yield rows
        except sqlite3.Error as error:
            raise UserError(
                f"The kept features {self._file} cannot be used ({error}): free some disk space, or delete the file."
            ) from error


def only_last_layer(recipe: Recipe) -> bool:
    """Whether a model of this recipe differs from its backbone in the last layer alone, so that features stay."""
    return all(each.train == "fc" for each in recipe.rounds)


_ALL_PIXELS = 2**31 - 1  # longer than any image


@dataclass(frozen=True)
class Request:
    """What is asked of every image: the average of all its views and scales as a unit row.

    The views are those of `descriptor_views`; further scales are interpolated from them. With `pooling` every image
    has regions, made from the map of its first view. An image whose content is `known`, by its hash, is not decoded.
    `cache` keeps pooled features by content. `with_camera` reads EXIF data too.
    """

    settings: DescriptorRecipe
    output: Output = "descriptor"
    pooling: MapPooling | None = None
    known: Callable[[str], bool] = lambda _: False
    cache: FeatureCache | None = None
    with_camera: bool = False


@dataclass
class Described:
    """Some consecutive images, described."""

    descriptors: Descriptors  # (images, dim) unit rows; zero for an image that is unreadable or known
    hashes: list[str]  # `content_hash` of the bytes that were decoded; empty for a file that cannot be read
    regions: list[Regions]  # one for each image; an unreadable one has none in it
    reasons: dict[int, str] = field(default_factory=dict)  # why images are unreadable, by row
    camera: dict[int, dict[str, str]] = field(default_factory=dict)  # columns of the EXIF data, by row


def describe_files(
    engine: Engine,
    images: ImageList,
    request: Request,
    *,
    boxes: Sequence[Box | None] | None = None,
    workers: int = -1,
    skipped: Skipped | None = None,
) -> Described:
    """Describe files, or the parts of them inside boxes, reading each file once; `skipped` gets the unreadable ones.

    `workers` threads take turns at decoding and describing; 0 is this one, -1 one a core.
    """
    batch = engine.batch
    parts = [range(start, min(start + batch, len(images))) for start in range(0, len(images), batch)]
    described = Described(np.zeros((len(images), _width(engine, request)), np.float32), [], [])
    workers = default_workers() if workers < 0 else workers
    with progress_bar("describing", len(images)) as bar:
        for part, found in zip(
            parts,
            in_threads(partial(_describe_part, engine, images, boxes, request), parts, workers),
            strict=True,
        ):
            described.descriptors[part.start : part.stop] = found.descriptors
            described.hashes += found.hashes
            described.regions += found.regions
            described.camera |= {part.start + row: columns for row, columns in found.camera.items()}
            for row, reason in found.reasons.items():
                described.reasons[part.start + row] = reason
                if skipped is not None:
                    skipped.add(images.paths[part.start + row], reason)
            bar.advance(len(part))
    described.descriptors = unit_rows(described.descriptors)
    return described


def describe_images(
    model: "Model | OpenedModel",
    images: ImageList | str | Path,
    settings: DescriptorRecipe | None = None,
    **options: Any,
) -> Descriptors:
    """Unit descriptors (images, dim) by a model, the way it remembers unless `settings` say otherwise.

    `options` are those of `describe_files`.
    """
    if not isinstance(images, ImageList):
        images = list_images(images)
    opened = as_opened(model, settings)
    return describe_files(
        opened.engine, images, Request(settings or opened.descriptor), **options
    ).descriptors


def describe_decoded(
    engine: Engine,
    images: Sequence[Image.Image],
    settings: DescriptorRecipe,
    boxes: Sequence[Box | None] | None = None,
) -> Descriptors:
    """Unit descriptors (images, dim) of RGB images in memory, or of the parts of them inside boxes."""
    request = Request(settings)
    views = [
        view
        for row, (image, box) in enumerate(zip(images, boxes or [None] * len(images), strict=True))
        for view in _make_views(row, image, settings, box)
    ]
    described = Described(np.zeros((len(images), engine.dim), np.float32), [], [])
    _run_views(engine, views, request, described)
    return unit_rows(described.descriptors)


def as_opened(model: "Model | OpenedModel", settings: DescriptorRecipe | None = None) -> OpenedModel:
    """A model by the engine that suits this machine, unless it has one already."""
    if isinstance(model, OpenedModel):
        return model
    return open_in_memory(model, settings=lambda remembered: settings or remembered)


def decoded_longest(settings: DescriptorRecipe) -> int:
    """The longest side that a whole image needs for its views, so that more need not be decoded.

    A thumbnail is made from all pixels of the file.
    """
    if settings.fit == "thumbnail":
        return _ALL_PIXELS
    return round(settings.size / (settings.zoom or 1))


def descriptor_settings(remembered: DescriptorRecipe, size: int, fit: str, scales: str) -> DescriptorRecipe:
    """How a model remembers to describe images, changed by the options of a user."""
    changes: dict[str, object] = {}
    if size:
        changes["size"] = size
    if fit:
        if fit not in get_args(Fit):
            raise UserError(f"--fit {fit} is not possible: choose longest, square or thumbnail.")
        changes["fit"] = fit
    if scales:
        try:
            changes["scales"] = tuple(float(scale) for scale in scales.split(","))
        except ValueError:
            raise UserError(f"--scales {scales} is not a list of numbers such as 1.414,1,0.707.") from None
    settings = remembered.with_(**changes)
    if settings.size < 16 or not all(0 < scale < math.inf for scale in settings.scales):
        raise UserError("The size must be at least 16 pixels and the scales positive numbers.")
    return settings


class _View(NamedTuple):
    row: int
    first: bool  # of its image
    pixels: Pixels


def _make_views(row: int, image: Image.Image, settings: DescriptorRecipe, box: Box | None) -> list[_View]:
    views = descriptor_views(image, settings.size, settings.fit, zoom=settings.zoom, box=box)
    return [_View(row, number == 0, pixels) for number, pixels in enumerate(views)]


def _width(engine: Engine, request: Request) -> int:
    return engine.dim if request.output == "descriptor" else engine.channels


def _describe_part(
    engine: Engine, images: ImageList, boxes: Sequence[Box | None] | None, request: Request, part: range
) -> Described:
    """Decode a part of the images, each once for all of its views, and describe the views."""
    found = Described(
        np.zeros((len(part), _width(engine, request)), np.float32),
        [""] * len(part),
        [no_regions(engine.dim)] * len(part),
    )
    views: list[_View] = []
    for row, number in enumerate(part):
        box = boxes[number] if boxes is not None else None
        try:
            content = read_image_bytes(images.file(number))
            found.hashes[row] = content_hash(content)
            if request.with_camera and (columns := camera_columns(content)):
                found.camera[row] = columns
            if request.known(found.hashes[row]):
                continue
            if request.cache is not None and (kept := request.cache.read(found.hashes[row])) is not None:
                found.descriptors[row] = kept
                continue
            # A box is given in the pixels of the file: only a whole image may be decoded smaller.
            image = decode(content, None if box else decoded_longest(request.settings))
        except BadImage as bad:
            found.reasons[row] = bad.reason
            continue
        views += _make_views(row, image, request.settings, box)
    _run_views(engine, views, request, found)
    return found


def _run_views(engine: Engine, views: Iterable[_View], request: Request, found: Described) -> None:
    """Add up what the engine gives for the views and scales of each image; those of one shape run together."""
    # First views, whose maps have regions, apart from others.
    alike: dict[tuple[tuple[int, ...], bool], list[_View]] = defaultdict(list)
    for view in views:
        alike[view.pixels.shape, view.first and request.pooling is not None].append(view)
    output: Output = "pooled" if request.cache is not None else request.output
    pooled: dict[int, list[Features]] = defaultdict(list)  # by row, for the cache
    for (shape, with_regions), group in alike.items():
        step = images_at_once(engine, shape[1:], request.settings.scales)
        for start in range(0, len(group), step):
            some = group[start : start + step]
            rows, stack = [view.row for view in some], np.stack([view.pixels for view in some])
            given = []
            for number, scale in enumerate(request.settings.scales):
                if with_regions and number == 0 and request.pooling is not None:
                    one, maps = engine.run(stack, (output, "map"), scale)
                    for row, regions in zip(rows, map_regions(maps, request.pooling), strict=True):
                        found.regions[row] = regions
                else:
                    (one,) = engine.run(stack, (output,), scale)
                given.append(one)
            if request.cache is None:
                np.add.at(found.descriptors, rows, np.sum(given, axis=0))
            else:
                for place, row in enumerate(rows):
                    pooled[row] += [one[place] for one in given]
    if request.cache is not None and pooled:
        kept = request.cache.write({found.hashes[row]: np.stack(rows) for row, rows in pooled.items()})
        for row in pooled:
            found.descriptors[row] = kept[found.hashes[row]]
