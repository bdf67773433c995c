"""From images to the descriptors a store holds: one object for files in bulk and for a query in memory."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from PIL import Image

from insclr.arrays import Descriptors
from insclr.data.decode import Box
from insclr.data.images import ImageList
from insclr.data.pixels import descriptor_views
from insclr.data.skipped import Skipped
from insclr.engine.opened import OpenedModel, open_model, open_pretrained
from insclr.engine.protocol import unit_rows
from insclr.model.stored import PRETRAINED
from insclr.retrieval.describe import as_opened, decoded_longest, describe_views, describe_with
from insclr.retrieval.store import StoreInfo

if TYPE_CHECKING:
    from insclr.model.model_file import Model

# So few files are described in this thread: starting others would take longer.
_FEW_FILES = 16


class Describer(Protocol):
    """What makes descriptors; the name is what `resolve_model` takes, the fingerprint that of the exact weights.

    `longest` is the longest side at which a whole image is to be decoded; one with a box is decoded in full.
    """

    name: str
    fingerprint: str
    dim: int
    longest: int

    def files(self, images: ImageList, skipped: Skipped) -> tuple[Descriptors, list[str]]:
        """Unit descriptors (images, dim), and the `content_hash` of the bytes that each was made from.

        The row of an unreadable file is zero, and `skipped` says why.
        """

    def images(self, images: Sequence[Image.Image], boxes: Sequence[Box | None] | None = None) -> Descriptors:
        """Unit descriptors (images, dim) of RGB images in memory, or of the parts of them inside boxes."""


class ModelDescriber:
    """A describer with a model's network, at the size and scales of its recipe; safe to share by threads."""

    def __init__(self, name: str, model: "Model | OpenedModel", workers: int = -1) -> None:
        # A store is used from other folders too: it remembers where the model really is.
        self.name = str(Path(name).resolve()) if Path(name).exists() else name
        self._model = as_opened(model)
        self.fingerprint = self._model.fingerprint
        self.dim = self._model.engine.dim
        self.longest = decoded_longest(self._model.descriptor.size, self._model.descriptor.zoom)
        self._workers = workers
        # Two at a time: more would only take the cores from each other.
        self._turns = threading.BoundedSemaphore(2)

    def files(self, images: ImageList, skipped: Skipped) -> tuple[Descriptors, list[str]]:
        """Unit descriptors (images, dim), and the `content_hash` of the bytes that each was made from.

        The row of an unreadable file is zero, and `skipped` says why.
        """
        hashes: dict[int, str] = {}
        with self._turns:
            found = describe_with(
                self._model.engine,
                images,
                **self._model.descriptor.model_dump(),
                workers=0 if len(images) <= _FEW_FILES else self._workers,
                skipped=skipped,
                hashes=hashes,
            )
        return found, [hashes[i] for i in range(len(images))]

    def images(self, images: Sequence[Image.Image], boxes: Sequence[Box | None] | None = None) -> Descriptors:
        """Unit descriptors (images, dim) of RGB images in memory, or of the parts of them inside boxes."""
        wanted, engine = self._model.descriptor, self._model.engine
        rows = []
        with self._turns:
            for image, box in zip(images, boxes or [None] * len(images), strict=True):
                views = descriptor_views(image, wanted.size, wanted.fit, zoom=wanted.zoom, box=box)
                found = [describe_views(engine, [view], wanted.scales, "descriptor")[0] for view in views]
                rows.append(np.sum(found, axis=0))
        return unit_rows(np.stack(rows))


def describer_of(
    info: StoreInfo,
    model: str = "",
    workers: int = -1,
    device: str = "auto",
    engine: str = "auto",
    streams: int = 1,
) -> ModelDescriber:
    """The describer for queries to a store: its own model, or `model` where that has moved.

    `streams` queries are described at a time.
    """
    name = model or info.model
    if name.startswith(PRETRAINED) and name == info.model:
        opened = open_pretrained(name, info.fingerprint, engine=engine, device=device, streams=streams)
    else:
        opened = open_model(name, engine=engine, device=device, streams=streams)
    info.refuse_other_model(opened.fingerprint, "searched here")
    return ModelDescriber(name, opened, workers)
