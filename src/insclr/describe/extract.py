"""Descriptors of images: several scales, whole images or boxes; threads decode and run the engine alike."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from insclr.arrays import Descriptors
from insclr.data.decode import BadImage, Box, decode, read_image_bytes
from insclr.data.images import ImageList, list_images
from insclr.data.skipped import Skipped
from insclr.data.views import Fit, Pixels, descriptor_views
from insclr.data.workers import default_workers
from insclr.describe.map_pooling import MapPooling, Maps, map_pooling
from insclr.engine.opened import OpenedModel, open_in_memory
from insclr.engine.protocol import Engine, Features, Output, unit_rows
from insclr.errors import UserError
from insclr.files import content_hash
from insclr.progress import progress_bar
from insclr.recipe import DescriptorRecipe
from insclr.retrieval.regions import map_regions
from insclr.store.regions import no_regions
from insclr.store.rows import Regions

if TYPE_CHECKING:
    from insclr.model.model_file import Model

# An engine sees at most so many pixels at once, at the largest scale: what it holds meanwhile is many times that.
_RUN_PIXELS = 4_000_000


def describe_with(
    engine: Engine,
    images: ImageList,
    *,
    size: int,
    fit: Fit,
    scales: Sequence[float] = (1.0,),
    zoom: float = 0.0,
    boxes: Sequence[Box | None] | None = None,
    batch: int = 0,
    workers: int = -1,
    skipped: Skipped | None = None,
    hashes: dict[int, str] | None = None,
    output: Output = "descriptor",
    regions: list[Regions] | None = None,
    pooling: MapPooling | None = None,
    title: str = "describing",
) -> Descriptors:
    """Unit descriptors (images, dim), or pooled features before the FC as unit rows.

    The views of an image or of its box are those of `descriptor_views`, further scales are interpolated from
    them. The descriptors of all views and scales are averaged into one. The row of an unreadable image is
    zero, and `skipped` says why. `hashes` is filled with the `content_hash` of what each row was decoded from.
    `batch` 0 is what suits the engine. `workers` threads take turns at decoding and describing; 0 is this one.
    `regions` is filled with the regions of every image, which `pooling` makes of the map of its first view that is
    computed anyway; an unreadable image has none.
    """
    skipped = skipped if skipped is not None else Skipped()
    batch = batch or engine.batch
    by = pooling if regions is not None else None
    settings = _Settings(size, fit, tuple(scales), zoom, output, hashed=hashes is not None, pooling=by)
    total = np.zeros((len(images), engine.dim if output == "descriptor" else engine.channels), np.float32)
    parts = [range(start, min(start + batch, len(images))) for start in range(0, len(images), batch)]
    job = partial(_described, engine, images, boxes, settings)
    workers = default_workers() if workers < 0 else workers
    with progress_bar(title, len(images)) as bar:
        for part, seen in zip(parts, _in_threads(job, parts, workers), strict=True):
            total[part.start : part.stop] = seen.sums
            for row, reason in seen.reasons.items():
                skipped.add(images.paths[row], reason)
            if hashes is not None:
                hashes.update(seen.hashes)
            if regions is not None:
                regions += [seen.regions.get(row) or no_regions(engine.dim) for row in part]
            bar.advance(len(part))
    return unit_rows(total)


def descriptor_settings(remembered: DescriptorRecipe, size: int, fit: str, scales: str) -> DescriptorRecipe:
    """How a model remembers to describe images, changed where the user said otherwise."""
    changes: dict[str, object] = {}
    if size:
        changes["size"] = size
    if fit:
        if fit not in ("longest", "square"):
            raise UserError(f"--fit {fit} is not possible: choose longest or square.")
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


def describe_images(
    model: "Model | OpenedModel",
    images: ImageList | str | Path,
    settings: DescriptorRecipe | None = None,
    **options: Any,
) -> Descriptors:
    """Unit descriptors (images, dim) by a model, the way it remembers unless `settings` say otherwise.

    `options` are those of `describe_with`: boxes, batch, workers, skipped, regions.
    """
    if not isinstance(images, ImageList):
        images = list_images(images)
    opened = as_opened(model, settings)
    chosen = settings or opened.descriptor
    if options.get("regions") is not None:
        options["pooling"] = map_pooling(opened)
    return describe_with(opened.engine_for(chosen), images, **chosen.model_dump(), **options)


def as_opened(model: "Model | OpenedModel", settings: DescriptorRecipe | None = None) -> OpenedModel:
    """A model by the engine that suits this machine, unless it has one already."""
    if isinstance(model, OpenedModel):
        return model
    return open_in_memory(model, settings=lambda remembered: settings or remembered)


def describe_views(
    engine: Engine,
    views: Sequence[Pixels],
    scales: Sequence[float],
    output: Output,
    see_maps: Callable[[Maps], None] | None = None,
) -> Features:
    """What the engine gives for views (3, H, W) of one shape, summed over scales: (views, dim).

    `see_maps` is called with the maps of the views at the first scale, some views at a time and in their order.
    """
    step = images_at_once(views[0].shape[1:], scales)
    parts = []
    for start in range(0, len(views), step):
        stack = np.stack(views[start : start + step])
        if see_maps is None:
            found = [engine.run(stack, (output,), scale)[0] for scale in scales]
        else:
            first, maps = engine.run(stack, (output, "map"), scales[0])
            see_maps(maps)
            found = [first, *(engine.run(stack, (output,), scale)[0] for scale in scales[1:])]
        parts.append(np.sum(found, axis=0))
    return np.concatenate(parts)


def images_at_once(sides: Sequence[int], scales: Sequence[float] = (1.0,)) -> int:
    """How many images of these sides, at these scales, an engine is to see at once."""
    largest = max(1.0, *scales) ** 2 * sides[0] * sides[1]
    return max(1, int(_RUN_PIXELS // largest))


def decoded_longest(size: int, zoom: float) -> int:
    """The longest side that a whole image needs for its views, so that more need not be decoded."""
    return round(size / (zoom or 1))


@dataclass(frozen=True)
class _Settings:
    """What is to be made of every image."""

    size: int
    fit: Fit
    scales: tuple[float, ...]
    zoom: float
    output: Output
    hashed: bool
    pooling: MapPooling | None  # where regions are wanted


@dataclass
class _Described:
    """Some consecutive images: the sums of their descriptors, and what is to be told about each."""

    sums: Features  # (images, dim)
    reasons: dict[int, str] = field(default_factory=dict)
    hashes: dict[int, str] = field(default_factory=dict)
    regions: dict[int, Regions] = field(default_factory=dict)


def _described(
    engine: Engine, images: ImageList, boxes: Sequence[Box | None] | None, settings: _Settings, part: range
) -> _Described:
    """Decode a part of the images, each once for all of its views, and describe the views of one shape together."""
    dim = engine.dim if settings.output == "descriptor" else engine.channels
    seen = _Described(np.zeros((len(part), dim), np.float32))
    # By shape, since those of one shape are described together, and first views, whose maps have regions, apart.
    waiting: dict[tuple[tuple[int, ...], bool], list[tuple[int, Pixels]]] = defaultdict(list)
    for row in part:
        box = boxes[row] if boxes is not None else None
        # A box is given in the pixels of the file: only a whole image may be decoded smaller.
        longest = None if box else decoded_longest(settings.size, settings.zoom)
        seen.hashes[row] = ""
        try:
            content = read_image_bytes(images.file(row))
            image = decode(content, longest)
        except BadImage as bad:
            seen.reasons[row] = bad.reason
            continue
        if settings.hashed:
            seen.hashes[row] = content_hash(content)
        views = descriptor_views(image, settings.size, settings.fit, zoom=settings.zoom, box=box)
        for number, view in enumerate(views):
            waiting[view.shape, number == 0 and settings.pooling is not None].append((row, view))
    for (_, regional), group in waiting.items():
        rows, views = [row for row, _ in group], [view for _, view in group]
        regions: list[Regions] = []
        pooling = settings.pooling if regional else None
        see_maps = partial(_add_regions, regions, pooling) if pooling else None
        found = describe_views(engine, views, settings.scales, settings.output, see_maps)
        np.add.at(seen.sums, [row - part.start for row in rows], found)
        if pooling:
            seen.regions.update(zip(rows, regions, strict=True))
    return seen


def _add_regions(regions: list[Regions], pooling: MapPooling, maps: Maps) -> None:
    regions += map_regions(maps, pooling)


def _in_threads(job: Any, parts: Iterable[range], workers: int) -> Iterator[_Described]:
    """The job's results in order; a few parts are begun ahead. What it does leaves Python most of the time."""
    if not workers:
        yield from map(job, parts)
        return
    begun: list[Future[_Described]] = []
    threads = ThreadPoolExecutor(workers, thread_name_prefix="describe")
    try:
        for part in parts:
            begun.append(threads.submit(job, part))
            if len(begun) > 2 * workers:
                yield begun.pop(0).result()
        while begun:
            yield begun.pop(0).result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
