"""From images to the descriptors a store holds: one object for files in bulk and for a query in memory."""

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from insclr.arrays import Descriptors
from insclr.data.decode import Box
from insclr.data.images import ImageList
from insclr.data.skipped import Skipped
from insclr.data.views import at_scale, descriptor_views
from insclr.errors import UserError
from insclr.model.device import describing_autocast, place
from insclr.model.model_file import Model, resolve_model
from insclr.retrieval.describe import decoded_longest, describe_with
from insclr.retrieval.local import dsm
from insclr.retrieval.local.cells import SCALES, Cells, MapsOf, image_cells, maps_by
from insclr.retrieval.map_pooling import MapPooling, map_pooling
from insclr.retrieval.store import Regions, StoreInfo

# So few files are decoded in this process: starting others would take longer.
_FEW_FILES = 16
_SIZES = (16, 4096)


class Describer(Protocol):
    """What makes descriptors; the name is what `resolve_model` takes, the fingerprint that of the exact weights.

    `longest` is the longest side at which a whole image is to be decoded; one with a box is decoded in full.
    """

    name: str
    fingerprint: str
    dim: int
    longest: int
    size: int  # side in pixels at which images are described; 0: what the model remembers

    def files(
        self, images: ImageList, skipped: Skipped, regions: list[Regions] | None = None
    ) -> tuple[Descriptors, list[str]]:
        """Unit descriptors (images, dim), and the `content_hash` of the bytes that each was made from.

        The row of an unreadable file is zero, and `skipped` says why. `regions` is filled with those of every file.
        """

    def images(
        self,
        images: Sequence[Image.Image],
        boxes: Sequence[Box | None] | None = None,
        *,
        own_size: bool = False,
    ) -> Descriptors:
        """Unit descriptors (images, dim) of RGB images in memory, or of the parts of them inside boxes.

        With `own_size` they are described at the size that the model remembers: to be compared with regions.
        """


@runtime_checkable
class CellDescriber(Protocol):
    """A describer that gives local descriptors too; those of images decoded at `cells_longest` or more."""

    @property
    def cells_longest(self) -> int:
        """The longest side at which an image is to be decoded for `cells`."""

    def cells(self, images: Sequence[Image.Image], boxes: Sequence[Box | None] | None = None) -> list[Cells]:
        """The local descriptors of RGB images in memory, or of the parts of them inside boxes."""


class ModelDescriber:
    """A describer with a model's network, at the size and scales of its recipe; safe to share by threads."""

    def __init__(self, name: str, model: Model, workers: int = -1, size: int = 0) -> None:
        # A store is used from other folders too: it remembers where the model really is.
        self.name = str(Path(name).resolve()) if Path(name).exists() else name
        self.fingerprint = model.fingerprint
        self.dim = model.network.dim
        if size and not _SIZES[0] <= size <= _SIZES[1]:
            raise UserError(f"images can be described at {_SIZES[0]} to {_SIZES[1]} pixels, not at {size}")
        self.size = size if size != model.recipe.descriptor.size else 0
        self._descriptor = model.recipe.descriptor.with_(**({"size": size} if size else {}))
        self.longest = decoded_longest(self._descriptor.size, self._descriptor.zoom)
        self._model = model
        self._workers = workers
        # Two at a time: more would only take the cores from each other.
        self._turns = threading.BoundedSemaphore(2)

    def files(
        self, images: ImageList, skipped: Skipped, regions: list[Regions] | None = None
    ) -> tuple[Descriptors, list[str]]:
        """Unit descriptors (images, dim), and the `content_hash` of the bytes that each was made from.

        The row of an unreadable file is zero, and `skipped` says why. `regions` is filled with those of every file.
        """
        hashes: dict[int, str] = {}
        with self._turns:
            found = describe_with(
                self._model.network,
                images,
                **self._descriptor.model_dump(),
                workers=0 if len(images) <= _FEW_FILES else self._workers,
                skipped=skipped,
                hashes=hashes,
                regions=regions,
            )
        return np.asarray(found.numpy(), dtype=np.float32), [hashes[i] for i in range(len(images))]

    def images(
        self,
        images: Sequence[Image.Image],
        boxes: Sequence[Box | None] | None = None,
        *,
        own_size: bool = False,
    ) -> Descriptors:
        """Unit descriptors (images, dim) of RGB images in memory, or of the parts of them inside boxes.

        With `own_size` they are described at the size that the model remembers: to be compared with regions.
        """
        wanted = self._model.recipe.descriptor if own_size else self._descriptor
        network = self._model.network.eval()
        device = network.device
        descriptors = []
        with self._turns, torch.inference_mode(), describing_autocast(device):
            for image, box in zip(images, boxes or [None] * len(images), strict=True):
                views = descriptor_views(image, wanted.size, wanted.fit, zoom=wanted.zoom, box=box)
                stacks = [view[None].to(device) for view in views]
                found = [network(at_scale(stack, scale))[0] for stack in stacks for scale in wanted.scales]
                total = torch.stack([one.float().cpu() for one in found]).sum(0)  # (dim,)
                descriptors.append(functional.normalize(total, dim=0))
        return np.asarray(torch.stack(descriptors).numpy(), dtype=np.float32)

    @cached_property
    def _maps(self) -> tuple[MapsOf, MapPooling]:
        return maps_by(self._model.network), map_pooling(self._model.network)

    @property
    def cells_longest(self) -> int:
        """The longest side at which an image is to be decoded for `cells`."""
        return round(self._model.recipe.descriptor.size * max(SCALES))

    def cells(self, images: Sequence[Image.Image], boxes: Sequence[Box | None] | None = None) -> list[Cells]:
        """The local descriptors of RGB images in memory, or of the parts of them inside boxes."""
        wanted = self._model.recipe.descriptor
        with self._turns:
            return image_cells(*self._maps, images, size=wanted.size, fit=wanted.fit, boxes=boxes)

    def map_cells(
        self, images: Sequence[Image.Image], boxes: Sequence[Box | None] | None = None
    ) -> list[Cells]:
        """The strongest cells of one map of each image, for deep spatial matching."""
        wanted = self._model.recipe.descriptor
        with self._turns:
            return image_cells(
                *self._maps,
                images,
                size=wanted.size,
                fit=wanted.fit,
                boxes=boxes,
                scales=dsm.SCALES,
                most=dsm.MAX_CELLS,
            )


def describer_of(info: StoreInfo, model: str = "", workers: int = -1, device: str = "auto") -> ModelDescriber:
    """The describer for queries to a store: its own model, or `model` where that has moved."""
    name = model or info.model
    found = resolve_model(name)
    place(found.network, device)
    describer = ModelDescriber(name, found, workers, info.size)
    info.refuse_other_model(describer.fingerprint, "searched here")
    return describer
