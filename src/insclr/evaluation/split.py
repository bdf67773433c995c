"""Descriptors for an evaluation, made by several processes: each leaves its parts in a folder that all see."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from insclr.arrays import Descriptors
from insclr.data.decode import Box
from insclr.data.formats import on_disk
from insclr.data.images import ImageList
from insclr.describe.pipeline import describe_images
from insclr.engine.opened import OpenedModel
from insclr.errors import OtherShardsMissing
from insclr.files import whole_file
from insclr.shards import Shard, left_to_do

IMAGES_PER_PART = 2048  # images of one file: what a kill can cost
Boxes = Sequence[Box | None] | None


class SplitDescriptors:
    """A model's descriptors of whole images, part by part.

    With a folder each part is kept there under a digest of all that it depends on, so that it is made once, whichever
    process or later evaluation needs it.
    """

    def __init__(self, model: OpenedModel, folder: Path | None, shard: Shard) -> None:
        self._model, self._folder, self._shard = model, folder, shard
        self._key = f"{model.fingerprint} {model.descriptor.model_dump()}"

    def __call__(self, images: ImageList, boxes: Boxes) -> Descriptors:
        """All descriptors (images, dim) in one array; what no process has made is made now."""
        if self._folder is None:
            return describe_images(self._model, images, boxes=boxes)
        return np.concatenate(
            [np.zeros((0, self._model.engine.dim), np.float32), *self.blocks(images, boxes)]
        )

    def blocks(self, images: ImageList, boxes: Boxes = None) -> Iterator[Descriptors]:
        """The descriptors part by part; no more are held."""
        for number in range(1, self._shard.of + 1):
            for part in self._parts(len(images), number):
                yield self._part(images, boxes, part)

    def share(self, lists: Sequence[tuple[ImageList, Boxes]]) -> None:
        """Make this shard's parts of all lists; OtherShardsMissing unless this process goes on with all parts."""
        if self._shard.whole:
            return
        for images, boxes in lists:
            for part in self._parts(len(images), self._shard.number):
                self._part(images, boxes, part)
        missing = self._shard.complete(lambda: self._missing(lists))
        if missing or not self._shard.merges:
            raise OtherShardsMissing(left_to_do(missing, self._shard, "the numbers come"))

    def _missing(self, lists: Sequence[tuple[ImageList, Boxes]]) -> list[int]:
        return [
            number
            for number in range(1, self._shard.of + 1)
            if not all(
                self._file(images, boxes, part).exists()
                for images, boxes in lists
                for part in self._parts(len(images), number)
            )
        ]

    def _parts(self, count: int, number: int) -> Iterator[range]:
        share = self._shard.share(count, number)
        for start in range(share.start, share.stop, IMAGES_PER_PART):
            yield range(start, min(start + IMAGES_PER_PART, share.stop))

    def _part(self, images: ImageList, boxes: Boxes, part: range) -> Descriptors:
        own = None if boxes is None else [boxes[i] for i in part]
        if self._folder is None:
            return describe_images(self._model, images.subset(part), boxes=own)
        file = self._file(images, boxes, part)
        if file.exists():
            kept: Descriptors = np.load(file, allow_pickle=False)
            return kept
        made = describe_images(self._model, images.subset(part), boxes=own)
        with whole_file(file) as scratch, scratch.open("wb") as opened:
            np.save(opened, made)
        return made

    def _file(self, images: ImageList, boxes: Boxes, part: range) -> Path:
        digest = hashlib.sha256(self._key.encode())
        for i in part:
            try:
                state = on_disk(images.file(i)).stat()
                stamp = (state.st_size, state.st_mtime_ns)
            except OSError:
                stamp = (-1, -1)
            digest.update(repr((images.paths[i], stamp, boxes[i] if boxes is not None else None)).encode())
        assert self._folder is not None
        return self._folder / f"{digest.hexdigest()[:32]}.npy"
