"""Several processes that train one network: `torchrun --nproc-per-node N -m insclr train ...`.

The tuples of a batch are split over the ranks, but every rank's loss sees the features of all of them, so that N
ranks compute what one would with the same batch. Rank 0 alone writes to the run folder, which all ranks must see.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from insclr.errors import UserError

# A dead rank is noticed at once, by its closed connection; this is the longest wait for a busy one.
_TIMEOUT = timedelta(hours=24)


@dataclass(frozen=True)
class Ranks:
    """The processes of one run and this one's place among them; by default this process is alone."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1  # ranks on this node
    node: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    @property
    def first_of_node(self) -> bool:
        """Whether this rank fills what the ranks of its node share."""
        return self.local_rank == 0

    @property
    def alone(self) -> bool:
        """Whether this process trains by itself."""
        return self.world == 1

    def share(self, tuples: int) -> range:
        """Which tuples of a batch are this rank's: equal parts, with one more for the first ranks if needed."""
        if tuples < self.world:
            raise UserError(
                f"{self.world} ranks cannot share a batch of {tuples} tuples: start at most {tuples} "
                f"(torchrun --nproc-per-node), or --set rounds.tuples={self.world} or more."
            )
        small, larger = divmod(tuples, self.world)
        first = self.rank * small + min(self.rank, larger)
        return range(first, first + small + (self.rank < larger))

    def weight(self, tuples: int) -> float:
        """What the mean loss of this rank's tuples is multiplied with.

        Gradients are averaged over ranks; with this weight their average is that of the mean over all tuples,
        also where ranks have different numbers of them.
        """
        return len(self.share(tuples)) * self.world / tuples

    def gather(self, rows: Tensor, tuples: int) -> Tensor:
        """The rows (tuples, ...) of all ranks in order; this rank gives its share. Gradients flow back."""
        if self.alone:
            return rows
        share = self.share(tuples)
        before = rows.new_zeros(share.start, *rows.shape[1:])
        after = rows.new_zeros(tuples - share.stop, *rows.shape[1:])
        return self.sum(torch.cat([before, rows, after]))

    def sum(self, values: Tensor) -> Tensor:
        """The sum of all ranks' values, with gradient: each rank's part moves every rank's loss."""
        if self.alone:
            return values
        total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
        return total

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if not self.alone:
            dist.barrier()

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first rank goes ahead; the others follow when it is through, and find what it has written."""
        if not self.first:
            self.barrier()
        yield
        if self.first:
            self.barrier()

    def from_first(self, value: Any) -> Any:
        """The first rank's value, whatever the others have."""
        if self.alone:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def collect(self, value: Any) -> list[Any]:
        """The values of all ranks, in order."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def copy_from_first(self, network: nn.Module) -> None:
        """Give every rank the weights of the first one."""
        if self.alone:
            return
        for value in network.state_dict().values():
            dist.broadcast(value, src=0)


class _Sum(torch.autograd.Function):
    """A sum over ranks; its gradient is the sum of the gradients of all ranks' losses."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """The ranks that torchrun has started, this process among them; without torchrun this process alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks()
        return
    ranks = Ranks(
        rank=int(os.environ["RANK"]),
        world=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        local_world=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        node=int(os.environ.get("GROUP_RANK", "0")),
    )
    if torch.cuda.is_available():
        torch.cuda.set_device(ranks.local_rank)
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=_TIMEOUT)
    try:
        yield ranks
    except UserError as error:
        raise error if ranks.first else UserError(f"{_name(ranks)}: {error}") from error
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise  # not for a lost connection
        raise UserError(
            f"{_name(ranks)}: another rank of this training has ended; its own message gives the reason. "
            "Files written so far are intact. Run the command with --resume to continue, with any number of ranks."
        ) from error
    finally:
        dist.destroy_process_group()


def _name(ranks: Ranks) -> str:
    return f"rank {ranks.rank} of {ranks.world} on {socket.gethostname()}"
