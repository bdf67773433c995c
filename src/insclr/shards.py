"""Work that is split over processes: one shard of a batch system (`--shard 2/4`), or the ranks of torchrun.

Shards share no memory and no connection, but a folder that all of them see. Each leaves what it made there; the one
that finds everything in place puts it together. Under torchrun the first rank waits for the others.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from insclr.errors import UserError

_POLL_INTERVAL = 0.5  # seconds
PATIENCE = 3600.0  # seconds that another process may take to put the shares together


@dataclass(frozen=True)
class Shard:
    """One of `of` equal shares of some images; by default all of them."""

    number: int = 1  # from 1 on
    of: int = 1
    rank: bool = False  # whether it is one of torchrun's ranks, of which the first waits for the others

    @property
    def whole(self) -> bool:
        """Whether there is nothing to share."""
        return self.of == 1

    @property
    def first(self) -> bool:
        """Whether this shard does what is to be done once."""
        return self.number == 1

    def share(self, count: int, number: int | None = None) -> range:
        """Which of `count` images are this shard's, or those of shard `number`."""
        number = number or self.number
        return range(count * (number - 1) // self.of, count * number // self.of)

    def batches(self, count: int, size: int, number: int | None = None) -> Iterator[range]:
        """The images of this shard, or of shard `number`, at most `size` at a time."""
        share = self.share(count, number)
        return (range(at, min(at + size, share.stop)) for at in range(share.start, share.stop, size))

    @property
    def numbers(self) -> range:
        """Of all shards."""
        return range(1, self.of + 1)

    @property
    def merges(self) -> bool:
        """Whether this process may put together what all have made: any shard, but of torchrun's ranks the first."""
        return self.first or not self.rank

    def complete(self, missing: Callable[[], list[int]]) -> list[int]:
        """The shards whose work is still missing; the first of torchrun's ranks comes back when there are none."""
        while (left := missing()) and self.rank and self.first:
            time.sleep(_POLL_INTERVAL)
        return left

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def torchrun_shard() -> str:
    """The share that torchrun has given this process, as NUMBER/OF; empty outside torchrun."""
    world, rank = (int(os.environ.get(name, "0")) for name in ("WORLD_SIZE", "RANK"))
    return f"{rank + 1}/{world}" if world > 1 else ""


def shard_of(option: str) -> Shard:
    """The shard that `--shard` names, or that torchrun has given this process."""
    own = torchrun_shard()
    if own and option in ("", own):
        number, of = map(int, own.split("/"))
        return Shard(number, of, rank=True)
    if not option:
        return Shard()
    if own:
        raise UserError("torchrun splits the images by itself: leave --shard out.")
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", option)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UserError(f"--shard {option} is not NUMBER/OF: say 2/4 for the second of four shards.")
    return Shard(int(found[1]), int(found[2]))


def left_to_do(missing: list[int], shard: Shard, result: str) -> str:
    """One sentence for people about shards that are not done, after the one at hand is."""
    if shard.rank:
        return f"rank {shard.number - 1} of {shard.of} is done; the first one puts all together"
    if not missing:
        return f"shard {shard} is done; another one has put all together"
    listed = ", ".join(f"{number}/{shard.of}" for number in missing[:8])
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return (
        f"shard {shard} is done; {result} when these are done too: {listed}{more}. "
        "The last one puts them together; one that died goes on with the same command."
    )
