"""A descriptor file made by several processes: each describes its share of the images into a file of its own."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from insclr.data.images import ImageList
from insclr.data.skipped import Skipped
from insclr.describe.descriptor_file import (
    DescribeSummary,
    DescriptorTable,
    describe_to_file,
    read_descriptors,
    skipped_file,
    write_tables,
)
from insclr.engine.opened import OpenedModel
from insclr.errors import UserError
from insclr.lock import only_writer
from insclr.recipe import DescriptorRecipe
from insclr.shards import PATIENCE, Shard, left_to_do

if TYPE_CHECKING:
    from insclr.model.model_file import Model


@dataclass(frozen=True)
class ShardSummary:
    """What a shard did, and which ones are left before the whole file can be written."""

    described: DescribeSummary
    out: Path
    shard: Shard
    missing: list[int]

    def __str__(self) -> str:
        if self.missing or not self.shard.merges:
            return f"{self.described}\n{left_to_do(self.missing, self.shard, f'{self.out} is written')}"
        return f"{self.described}\n{self.out}: put together from {self.shard.of} shards"


def describe_shard_to_file(
    model: "Model | OpenedModel", images: ImageList, out: Path, settings: DescriptorRecipe, shard: Shard
) -> DescribeSummary | ShardSummary:
    """Describe a shard's share of the images as `describe_to_file` does; the last shard writes `out` from all.

    The shares lie in a folder beside `out` until then. What `out` or another share holds is not described again.
    """
    if shard.whole:
        return describe_to_file(model, images, out, settings)
    shares = _Shares(images, out, shard)
    described = describe_to_file(
        model, images.subset(shard.share(len(images))), shares.file(shard.number), settings, shares.others()
    )
    missing = shard.complete(shares.missing)
    if not missing and shard.merges:
        shares.merge()
    return ShardSummary(described, out, shard, missing)


class _Shares:
    """The descriptor files of all shards."""

    def __init__(self, images: ImageList, out: Path, shard: Shard) -> None:
        self._images, self._out, self._shard = images, out, shard
        self._folder = out.with_name(f".{out.name}.shards")
        self._numbers = range(1, shard.of + 1)

    def file(self, number: int) -> Path:
        """Where shard `number` leaves its descriptors."""
        return self._folder / f"{number}-of-{self._shard.of}{self._out.suffix}"

    def others(self) -> list[Path]:
        """What was described before: the whole file, and shares of any split."""
        own = self.file(self._shard.number)
        there = [self._out] if self._out.exists() else []
        return there + [file for file in sorted(self._folder.glob(f"*{self._out.suffix}")) if file != own]

    def missing(self) -> list[int]:
        """The shards that have not left their descriptors; none once another one has put all together."""
        if self._merged():
            return []
        return [number for number in self._numbers if not self.file(number).exists()]

    def merge(self) -> None:
        """Write the whole file from all shares, and remove those; UserError when one is of another list of images."""
        with only_writer(self._folder / "lock", PATIENCE):
            if self._merged():
                return
            skipped = Skipped()
            for number in self._numbers:
                skipped.read(skipped_file(self.file(number)))
            write_tables(self._out, self._tables(skipped))
            skipped.write(skipped_file(self._out))
            for number in self._numbers:
                self.file(number).unlink()
                skipped_file(self.file(number)).unlink(missing_ok=True)
        # A shard that has been started once more goes on with what it has in there.
        (self._folder / "lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _merged(self) -> bool:
        return not self.file(self._shard.number).exists()

    def _tables(self, skipped: Skipped) -> Iterator[DescriptorTable]:
        key = read_descriptors(self.file(self._shard.number)).key
        for number in self._numbers:
            table = read_descriptors(self.file(number))
            wanted = self._images.subset(self._shard.share(len(self._images), number)).paths
            if table.key != key or table.paths != tuple(path for path in wanted if path not in skipped):
                raise UserError(
                    f"shard {number}/{self._shard.of} is of other images or another model: run it again"
                )
            yield table
