"""Describe images in parts: an interrupted run loses one part, and several processes can share the work."""

import hashlib
import json
import logging
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from insclr.arrays import Descriptors, Regions, no_regions
from insclr.data.decode import Box
from insclr.data.images import ImageList, Skipped
from insclr.describe.pipeline import Described, Request, describe_files
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


@dataclass(frozen=True)
class DescribedParts:
    """Described images, a file a part, named by a digest of the images and of what described them (`made_by`).

    So a part is made once, whichever process or later run needs it.
    """

    folder: Path
    made_by: str

    def file(self, images: ImageList, boxes: Boxes = None) -> Path:
        """The file of a part of these images, as they are now."""
        digest = hashlib.sha256(self.made_by.encode())
        for i in range(len(images)):
            digest.update(repr((images.paths[i], images.stamp(i), boxes and boxes[i])).encode())
        return self.folder / f"{digest.hexdigest()[:32]}.npz"

    def describe(
        self,
        images: ImageList,
        boxes: Boxes,
        make: Callable[[], Described],
        known: Callable[[str], bool] = lambda _: False,
    ) -> Described:
        """The part of these images, as it was kept, or made and kept now.

        A kept part is made again where it lacks the descriptor of an image whose content is not `known`.
        """
        file = self.file(images, boxes)
        try:
            if file.exists():
                found = _read(file, images)
                lacking = np.flatnonzero(~found.descriptors.any(1)).tolist()
                if all(row in found.reasons or known(found.hashes[row]) for row in lacking):
                    return found
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            _log.warning("%s cannot be read (%s): its images are described again", file, error)
        found = make()
        about = {"hashes": found.hashes, "reasons": found.reasons, "camera": found.camera}
        counts = [len(one.boxes) for one in found.regions]
        boxes_of, vectors = (np.concatenate(parts) for parts in zip(*found.regions, strict=True))
        with whole_file(file) as scratch, scratch.open("wb") as opened:
            np.savez(
                opened,
                about=json.dumps(about),
                descriptors=found.descriptors,
                counts=counts,
                boxes=boxes_of,
                vectors=vectors,
            )
        return found


def _read(file: Path, images: ImageList) -> Described:
    with np.load(file, allow_pickle=False) as kept:
        if "skipped" in kept:  # of an earlier version: descriptors and reasons alone
            named, vectors, none = (
                dict(json.loads(str(kept["skipped"]))),
                kept["descriptors"],
                [""] * len(images),
            )
            reasons = {row: named[path] for row, path in enumerate(images.paths) if path in named}
            return Described(vectors, none, [no_regions(vectors.shape[1])] * len(images), reasons)
        about, ends = json.loads(str(kept["about"])), kept["counts"].cumsum()[:-1]
        regions = map(Regions, np.split(kept["boxes"], ends), np.split(kept["vectors"], ends))
        reasons, camera = (
            {int(row): one for row, one in about[name].items()} for name in ("reasons", "camera")
        )
        return Described(kept["descriptors"], about["hashes"], list(regions), reasons, camera)


class DescriptorParts:
    """A model's descriptors of images, part by part; a row of zeros where an image is unreadable.

    With a folder each part is kept there. `skipped` has the unreadable images of the parts that were read.
    """

    def __init__(
        self,
        model: OpenedModel,
        folder: Path | None,
        shard: Shard = _WHOLE,
        settings: DescriptorRecipe | None = None,
    ) -> None:
        self._model, self._shard = model, shard
        self.settings = settings or model.descriptor
        self._kept = (
            DescribedParts(folder, f"{model.fingerprint} {self.settings.model_dump()}") if folder else None
        )
        self.skipped = Skipped()
        self.described = 0  # readable images that were not in the folder

    def __call__(self, images: ImageList, boxes: Boxes) -> Descriptors:
        """All descriptors (images, dim) in one array; parts that are not there are made now."""
        if self._kept is None:
            return self._note(images, self._make(images, boxes))
        return np.concatenate(
            [np.zeros((0, self._model.engine.dim), np.float32), *self.blocks(images, boxes)]
        )

    def blocks(self, images: ImageList, boxes: Boxes = None) -> Iterator[Descriptors]:
        """The descriptors part by part; no more are held."""
        for number in self._shard.numbers:
            yield from self._share(images, boxes, number)

    def make_share(self, lists: Lists) -> list[int]:
        """Make this shard's parts of all lists; the shards that have not made theirs."""
        for images, boxes in lists:
            for _ in self._share(images, boxes, self._shard.number):
                pass
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
            for number in self._shard.numbers
            if not all(
                self._kept is not None and self._kept.file(*part).exists()
                for images, boxes in lists
                for part in self._parts(images, boxes, number)
            )
        ]

    def _parts(self, images: ImageList, boxes: Boxes, number: int) -> Iterator[tuple[ImageList, Boxes]]:
        for part in self._shard.batches(len(images), IMAGES_PER_PART, number):
            yield images.subset(part), None if boxes is None else [boxes[i] for i in part]

    def _share(self, images: ImageList, boxes: Boxes, number: int) -> Iterator[Descriptors]:
        for some, own in self._parts(images, boxes, number):
            make = partial(self._make, some, own)
            yield self._note(some, make() if self._kept is None else self._kept.describe(some, own, make))

    def _note(self, images: ImageList, found: Described) -> Descriptors:
        for row, reason in found.reasons.items():
            self.skipped.add(images.paths[row], reason)
        return found.descriptors

    def _make(self, images: ImageList, boxes: Boxes) -> Described:
        found = describe_files(self._model.engine, images, Request(self.settings), boxes=boxes)
        self.described += len(images) - len(found.reasons)
        return found
