"""From images to the descriptors a store holds: one object for files in bulk and for a query in memory."""

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from insclr.arrays import Descriptors
from insclr.data.decode import Box
from insclr.data.images import ImageList
from insclr.data.skipped import Skipped
from insclr.data.views import descriptor_views
from insclr.describe.extract import as_opened, decoded_longest, describe_views, describe_with
from insclr.describe.map_pooling import MapPooling, map_pooling
from insclr.engine.opened import OpenedModel, open_model, open_pretrained
from insclr.engine.protocol import unit_rows
from insclr.errors import UserError
from insclr.model.stored import PRETRAINED
from insclr.retrieval.local import dsm
from insclr.retrieval.local.cells import MAX_CELLS, SCALES, Cells, image_cells
from insclr.store import Regions, StoreInfo

if TYPE_CHECKING:
    from insclr.model.model_file import Model

# So few files are described in this thread: starting others would take longer.
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

    def __init__(self, name: str, model: "Model | OpenedModel", workers: int = -1, size: int = 0) -> None:
        # A store is used from other folders too: it remembers where the model really is.
        self.name = str(Path(name).resolve()) if Path(name).exists() else name
        if size and not _SIZES[0] <= size <= _SIZES[1]:
            raise UserError(f"images can be described at {_SIZES[0]} to {_SIZES[1]} pixels, not at {size}")
        self._model = as_opened(model)
        self.fingerprint = self._model.fingerprint
        self.dim = self._model.engine.dim
        self.size = size if size != self._model.descriptor.size else 0
        self._descriptor = self._model.descriptor.with_(**({"size": size} if size else {}))
        self.longest = decoded_longest(self._descriptor.size, self._descriptor.zoom)
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
                self._model.engine_for(self._descriptor),
                images,
                **self._descriptor.model_dump(),
                workers=0 if len(images) <= _FEW_FILES else self._workers,
                skipped=skipped,
                hashes=hashes,
                regions=regions,
                pooling=self._pooling if regions is not None else None,
            )
        return found, [hashes[i] for i in range(len(images))]

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
        wanted = self._model.descriptor if own_size else self._descriptor
        engine = self._model.engine_for(wanted)
        rows = []
        with self._turns:
            for image, box in zip(images, boxes or [None] * len(images), strict=True):
                views = descriptor_views(image, wanted.size, wanted.fit, zoom=wanted.zoom, box=box)
                found = [describe_views(engine, [view], wanted.scales, "descriptor")[0] for view in views]
                rows.append(np.sum(found, axis=0))
        return unit_rows(np.stack(rows))

    @cached_property
    def _pooling(self) -> MapPooling:
        return map_pooling(self._model)

    @property
    def cells_longest(self) -> int:
        """The longest side at which an image is to be decoded for `cells`."""
        return round(self._model.descriptor.size * max(SCALES))

    def cells(self, images: Sequence[Image.Image], boxes: Sequence[Box | None] | None = None) -> list[Cells]:
        """The local descriptors of RGB images in memory, or of the parts of them inside boxes."""
        return self._cells(images, boxes)

    def map_cells(
        self, images: Sequence[Image.Image], boxes: Sequence[Box | None] | None = None
    ) -> list[Cells]:
        """The strongest cells of one map of each image, for deep spatial matching."""
        return self._cells(images, boxes, dsm.SCALES, dsm.MAX_CELLS)

    def _cells(
        self,
        images: Sequence[Image.Image],
        boxes: Sequence[Box | None] | None,
        scales: Sequence[float] = SCALES,
        most: int = MAX_CELLS,
    ) -> list[Cells]:
        with self._turns:
            return image_cells(self._model, images, boxes, scales, most)


def describer_of(
    info: StoreInfo,
    model: str = "",
    workers: int = -1,
    device: str = "auto",
    engine: str = "auto",
    streams: int = 1,
    expected: int = 0,
) -> ModelDescriber:
    """The describer for queries to a store: its own model, or `model` where that has moved.

    `streams` queries are described at a time, `expected` in all (0: nobody knows).
    """
    name = model or info.model
    if name.startswith(PRETRAINED) and name == info.model:
        opened = open_pretrained(
            name, info.fingerprint, engine=engine, device=device, streams=streams, expected=expected
        )
    else:
        opened = open_model(name, engine=engine, device=device, streams=streams, expected=expected)
    info.refuse_other_model(opened.fingerprint, "searched here")
    return ModelDescriber(name, opened, workers, info.size)
