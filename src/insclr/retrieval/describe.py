"""Descriptors of images: several scales, whole images or boxes, batched by equal shape."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from insclr.data.decode import BadImage, Box, decode, read_image_bytes
from insclr.data.images import ImageList, list_images
from insclr.data.loader import begin_worker, default_workers
from insclr.data.skipped import Skipped
from insclr.data.views import Fit, at_scale, descriptor_views
from insclr.errors import UserError
from insclr.files import content_hash
from insclr.model.device import describing_autocast, describing_batch
from insclr.model.model_file import Model
from insclr.model.network import DescriptorNetwork
from insclr.progress import progress_bar
from insclr.recipe import DescriptorRecipe
from insclr.retrieval.map_pooling import map_pooling
from insclr.retrieval.regions import map_regions
from insclr.retrieval.store.regions import no_regions
from insclr.retrieval.store.rows import Regions

# Views that wait for others of their shape hold at most so many pixels (about 200 MB).
_PENDING_PIXELS = 64_000_000


def describe_with(
    network: DescriptorNetwork,
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
    pooled: bool = False,
    regions: list[Regions] | None = None,
    title: str = "describing",
) -> Tensor:
    """Unit descriptors (images, dim), or pooled features before the FC, on the CPU.

    The views of an image or of its box are those of `descriptor_views`, further scales are interpolated from
    them. The unit descriptors of all views and scales are averaged into one. The row of an unreadable image is
    zero, and `skipped` says why. `hashes` is filled with the `content_hash` of what each row was decoded from.
    `batch` 0 is what suits the network's device. `regions` is filled with the regions of every image, pooled from the
    map of its first view that is computed anyway; an unreadable image has none.
    """
    skipped = skipped if skipped is not None else Skipped()
    network.eval()
    device = network.device
    batch = batch or describing_batch(device)
    dataset = _Views(images, boxes, size, fit, zoom, hashed=hashes is not None)
    workers = default_workers() if workers < 0 else workers
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        worker_init_fn=begin_worker,
        prefetch_factor=16 if workers else None,
        generator=torch.Generator(),  # its own: the loader must not draw from the run's random numbers
    )
    channels = network.backbone.channels if pooled else network.dim
    total = torch.zeros(len(images), channels)  # (images, dim)
    found_regions: dict[int, Regions] = {}
    with progress_bar(title, len(images)) as bar, torch.inference_mode(), describing_autocast(device):
        # What waits for its batch is no more than fits at the largest scale.
        pending = _PENDING_PIXELS / max(1.0, *scales) ** 2
        seen = _noted(loader, images, skipped, hashes, bar.advance)
        for rows, first, stack in _equal_shapes(seen, batch, pending):
            views = stack.to(device)
            for scale in scales:
                features = network.backbone(at_scale(views, scale))
                found = network.pool(features)
                found = (found if pooled else network.head(found)).float().cpu()
                total.index_add_(0, torch.tensor(rows), found)
                if regions is not None and scale == scales[0]:
                    found_regions |= _first_view_regions(network, features.map, rows, first)
    if regions is not None:
        regions += [found_regions.get(row) or no_regions(network.dim) for row in range(len(images))]
    return functional.normalize(total, dim=1)


def _first_view_regions(
    network: DescriptorNetwork, maps: Tensor, rows: list[int], first: list[bool]
) -> dict[int, Regions]:
    """The regions of the rows whose first view is in the batch."""
    whole = [i for i, is_first in enumerate(first) if is_first]
    if not whole:
        return {}
    found = map_regions(
        maps[torch.tensor(whole, device=maps.device)].float().cpu().numpy(), map_pooling(network)
    )
    return dict(zip((rows[i] for i in whole), found, strict=True))


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
    if settings.size < 16 or min(settings.scales) <= 0:
        raise UserError("The size must be at least 16 pixels and the scales positive.")
    return settings


def describe_images(
    model: Model, images: ImageList | str | Path, settings: DescriptorRecipe | None = None, **options: Any
) -> Tensor:
    """Unit descriptors (images, dim) by a model, the way it remembers unless `settings` say otherwise.

    `options` are those of `describe_with`: boxes, batch, workers, skipped.
    """
    if not isinstance(images, ImageList):
        images = list_images(images)
    chosen = settings or model.recipe.descriptor
    return describe_with(model.network, images, **chosen.model_dump(), **options)


def _noted(
    loader: "DataLoader[_Seen]",
    images: ImageList,
    skipped: Skipped,
    hashes: dict[int, str] | None,
    advance: Callable[[int], None],
) -> Iterator["_Seen"]:
    """What the loader gives, after writing down what is to be told about each image."""
    for seen in loader:
        advance(1)
        if seen.reason:
            skipped.add(images.paths[seen.row], seen.reason)
        if hashes is not None:
            hashes[seen.row] = seen.hash
        yield seen


def _equal_shapes(
    loader: Iterator["_Seen"], batch: int, pending: float
) -> Iterator[tuple[list[int], list[bool], Tensor]]:
    """Group the views of one shape into batches; the fullest group goes first when too many pixels wait.

    Gives the rows of the views, which of them are their row's first view, and the views.
    """
    waiting: dict[torch.Size, list[tuple[int, bool, Tensor]]] = defaultdict(list)
    pixels = 0
    for seen in loader:
        for number, view in enumerate(seen.views):
            waiting[view.shape].append((seen.row, number == 0, view))
            pixels += view.numel()
            full = len(waiting[view.shape]) >= batch
            if full or pixels > pending:
                shape = view.shape if full else max(waiting, key=lambda s: len(waiting[s]) * s.numel())
                group = waiting.pop(shape)
                pixels -= sum(one.numel() for _, _, one in group)
                yield _batch(group)
    for group in waiting.values():
        yield _batch(group)


def _batch(group: list[tuple[int, bool, Tensor]]) -> tuple[list[int], list[bool], Tensor]:
    rows, first, views = zip(*group, strict=True)
    return list(rows), list(first), torch.stack(views)


@dataclass
class _Seen:
    """One image as a worker saw it: its views, or the reason why there are none."""

    row: int
    views: list[Tensor] = field(default_factory=list)
    reason: str = ""
    hash: str = ""


def decoded_longest(size: int, zoom: float) -> int:
    """The longest side that a whole image needs for its views, so that more need not be decoded."""
    return round(size / (zoom or 1))


class _Views(Dataset[_Seen]):
    """The views of every image at scale 1."""

    def __init__(
        self,
        images: ImageList,
        boxes: Sequence[Box | None] | None,
        size: int,
        fit: Fit,
        zoom: float,
        *,
        hashed: bool,
    ) -> None:
        self.images = images
        self.boxes = boxes
        self.size = size
        self.fit: Fit = fit
        self.zoom = zoom
        self.hashed = hashed

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> _Seen:
        box = self.boxes[row] if self.boxes is not None else None
        # A box is given in the pixels of the file: only a whole image may be decoded smaller.
        longest = None if box else decoded_longest(self.size, self.zoom)
        try:
            content = read_image_bytes(self.images.file(row))
            image = decode(content, longest)
        except BadImage as bad:
            return _Seen(row, reason=bad.reason)
        views = descriptor_views(image, self.size, self.fit, zoom=self.zoom, box=box)
        return _Seen(row, views, hash=content_hash(content) if self.hashed else "")
