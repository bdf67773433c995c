"""Compute descriptors in parts: an interrupted run loses one part, and several processes can share the work."""

import hashlib
import json
import logging
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from insclr.arrays import Descriptors
from insclr.data.decode import Box
from insclr.data.images import ImageList, Skipped
from insclr.describe.pipeline import describe_images
from insclr.engine.opened import OpenedModel
from insclr.errors import OtherShardsMissing
from insclr.files import whole_file
from insclr.recipe import DescriptorRecipe
from insclr.shards import Shard, left_to_do

_log = logging.getLogger(__name__)
IMAGES_PER_PART = 2048
Boxes = Sequence[Box | None] | None
Lists = Sequence[tuple[ImageList, Boxes]]
_WHOLE = Shard()


class DescriptorParts:
    """A model's descriptors of images, part by part; a row of zeros where an image is unreadable.

    With a folder each part is kept there under a digest of all that it depends on, so that it is made once, whichever
    process or later run needs it. `skipped` has the unreadable images of the parts that were read.
    """

    def __init__(
        self,
        model: OpenedModel,
        folder: Path | None,
        shard: Shard = _WHOLE,
        settings: DescriptorRecipe | None = None,
    ) -> None:
        self._model, self._folder, self._shard = model, folder, shard
        self.settings = settings or model.descriptor
        self.skipped = Skipped()
        self.described = 0  # readable images that were not in the folder

    def __call__(self, images: ImageList, boxes: Boxes) -> Descriptors:
        """All descriptors (images, dim) in one array; parts that are not there are made now."""
        if self._folder is None:
            return describe_images(self._model, images, self.settings, boxes=boxes, skipped=self.skipped)
        return np.concatenate(
            [np.zeros((0, self._model.engine.dim), np.float32), *self.blocks(images, boxes)]
        )

    def blocks(self, images: ImageList, boxes: Boxes = None) -> Iterator[Descriptors]:
        """The descriptors part by part; no more are held."""
        for number in range(1, self._shard.of + 1):
            for part in self._parts(len(images), number):
                yield self._read(images, boxes, part)

    def make_share(self, lists: Lists) -> list[int]:
        """Make this shard's parts of all lists; the shards that have not made theirs."""
        for images, boxes in lists:
            for part in self._parts(len(images), self._shard.number):
                self._read(images, boxes, part)
        return self._shard.complete(lambda: self._missing(lists))

    def share(self, lists: Lists) -> None:
        """Make this shard's parts of all lists; OtherShardsMissing unless this process goes on with all parts."""
        if not self._shard.whole:
            missing = self.make_share(lists)
            if missing or not self._shard.merges:
                raise OtherShardsMissing(left_to_do(missing, self._shard, "the numbers come"))

    def _missing(self, lists: Lists) -> list[int]:
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

    def _read(self, images: ImageList, boxes: Boxes, part: range) -> Descriptors:
        file = None if self._folder is None else self._file(images, boxes, part)
        if file is not None and file.exists():
            try:
                with np.load(file, allow_pickle=False) as kept:
                    known: list[tuple[str, str]] = json.loads(str(kept["skipped"]))
                    found: Descriptors = kept["descriptors"]
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                _log.warning("%s cannot be read (%s): its images are described again", file, error)
            else:
                for path, reason in known:
                    self.skipped.add(path, reason)
                return found
        own = None if boxes is None else [boxes[i] for i in part]
        skipped = Skipped()
        found = describe_images(self._model, images.subset(part), self.settings, boxes=own, skipped=skipped)
        self.described += len(part) - len(skipped)
        for path, reason in skipped:
            self.skipped.add(path, reason)
        if file is not None:
            with whole_file(file) as scratch, scratch.open("wb") as opened:
                np.savez(opened, descriptors=found, skipped=json.dumps(list(skipped)))
        return found

    def _file(self, images: ImageList, boxes: Boxes, part: range) -> Path:
        assert self._folder is not None
        digest = hashlib.sha256(f"{self._model.fingerprint} {self.settings.model_dump()}".encode())
        for i in part:
            box = boxes[i] if boxes is not None else None
            digest.update(repr((images.paths[i], images.stamp(i), box)).encode())
        return self._folder / f"{digest.hexdigest()[:32]}.npz"
