"""Describe images for a store: files in bulk, and queries in memory."""

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from insclr.arrays import Descriptors
from insclr.data.decode import Box
from insclr.data.images import ImageList, Skipped
from insclr.describe.map_features import MapPooling, map_pooling
from insclr.describe.pipeline import (
    Described,
    FeatureCache,
    Request,
    as_opened,
    decoded_longest,
    describe_decoded,
    describe_files,
)
from insclr.engine.opened import OpenedModel
from insclr.errors import UserError

if TYPE_CHECKING:
    from insclr.model.model_file import Model

# So few files are described in this thread: starting others would take longer.
_FEW_FILES = 16
_SIZES = (16, 4096)


def _nothing_known(_: str) -> bool:
    return False


class Describer:
    """Describes images with a model's network, at the size and scales of its recipe; safe to share by threads.

    The name is what `resolve_model` takes, the fingerprint that of the exact weights. `longest` is the longest side
    at which a whole image is to be decoded; one with a box is decoded in full. `size` 0 is the model's own.
    In the folder `features` pooled features are kept by content, for a model that changes in its last layer alone.
    Regions come from whole maps, which are not kept, nor are features at another `size` than the model's own.
    """

    def __init__(
        self,
        name: str,
        model: "Model | OpenedModel",
        workers: int = -1,
        size: int = 0,
        features: Path | None = None,
    ) -> None:
        # A store is used from other folders too: it remembers where the model really is.
        self.name = str(Path(name).resolve()) if Path(name).exists() else name
        if size and not _SIZES[0] <= size <= _SIZES[1]:
            raise UserError(f"images can be described at {_SIZES[0]} to {_SIZES[1]} pixels, not at {size}")
        self._model = as_opened(model)
        self.fingerprint = self._model.fingerprint
        self.dim = self._model.engine.dim
        self.size = size if size != self._model.descriptor.size else 0
        self._descriptor = self._model.descriptor.with_(**({"size": size} if size else {}))
        self.longest = decoded_longest(self._descriptor)
        self._workers = workers
        self._cache = FeatureCache(features, self._model) if features is not None and not self.size else None
        # Two at a time: more would only take the cores from each other.
        self._turns = threading.BoundedSemaphore(2)

    def files(
        self,
        images: ImageList,
        skipped: Skipped,
        *,
        regions: bool = False,
        known: Callable[[str], bool] = _nothing_known,
    ) -> Described:
        """Describe files with their EXIF data, each read once; `skipped` gets the unreadable ones.

        Those whose content is `known`, by its hash, are not decoded: they have a hash and a row of zeros.
        """
        request = Request(
            self._descriptor,
            pooling=self._pooling if regions else None,
            known=known,
            cache=None if regions else self._cache,
            with_camera=True,
        )
        workers = 0 if len(images) <= _FEW_FILES else self._workers
        with self._turns:
            engine = self._model.engine
            return describe_files(engine, images, request, workers=workers, skipped=skipped)

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
        with self._turns:
            return describe_decoded(self._model.engine, images, wanted, boxes)

    @cached_property
    def _pooling(self) -> MapPooling:
        return map_pooling(self._model)
