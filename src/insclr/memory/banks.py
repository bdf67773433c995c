"""The two banks of a round: in memory while they are small and this process is alone, else one file a node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.memory.bank import MappedBank, MemoryBank
from insclr.model.network import DescriptorNetwork
from insclr.ranks import Ranks

_IN_MEMORY_BYTES = 2 << 30  # of both banks
_FILL_ROWS = 8192
_NAMES = ("plain", "augmented")


@dataclass
class MemoryBanks:
    """The two banks of the paper: `plain` decides in mining, `augmented` stands in the loss.

    The ranks of a node map the same files, and each writes all gathered rows of a step: the same bytes, so it
    does not matter who comes last. No rank can be a step ahead, because the features of the next step are only
    known when all ranks have given theirs, which they do after their reads of this step.
    """

    plain: MemoryBank
    augmented: MemoryBank
    files: dict[str, Path] = field(default_factory=dict)  # of mapped banks, by name

    def write(self, ids: Tensor, plain: Tensor, augmented: Tensor) -> None:
        """Store both features of the images `ids`: the first thing every iteration does."""
        self.plain.write(ids, plain)
        self.augmented.write(ids, augmented)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """For a checkpoint; the rows of mapped banks are left out, as `files` are copied beside it."""
        banks = {"plain": self.plain, "augmented": self.augmented}
        return {name: {} if self.files else {"features": bank.features} for name, bank in banks.items()}

    def restore(
        self, state: Mapping[str, Mapping[str, Tensor]], copies: Mapping[str, Path], ranks: Ranks
    ) -> None:
        """Take over a checkpoint, with its `copies` of mapped files: any number of ranks may have written it."""
        for name, bank in (("plain", self.plain), ("augmented", self.augmented)):
            if ranks.first_of_node or not self.files:
                rows = state[name].get("features")
                _refill(bank, _open_copy(copies[name], bank) if rows is None else rows)
        ranks.barrier()


def open_banks(
    rows: int, dim: int, dtype: torch.dtype, folder: Path, ranks: Ranks, *, in_memory: int = _IN_MEMORY_BYTES
) -> MemoryBanks:
    """Empty banks; as files in `folder` if ranks of one node share them or both exceed `in_memory` bytes."""
    if ranks.local_world == 1 and 2 * rows * dim * dtype.itemsize <= in_memory:
        return MemoryBanks(MemoryBank(rows, dim, dtype), MemoryBank(rows, dim, dtype))
    files = {name: folder / f"node-{ranks.node}-{name}.bank" for name in _NAMES}
    plain, augmented = (MappedBank(rows, dim, dtype, files[name]) for name in _NAMES)
    return MemoryBanks(plain, augmented, files)


def fill_banks(banks: MemoryBanks, network: DescriptorNetwork, pooled: Tensor, ranks: Ranks) -> None:
    """The first fill, from the pooled features (N, C) that the pool needed: no second pass over the images."""
    if ranks.first_of_node or not banks.files:
        for start in range(0, len(pooled), _FILL_ROWS):
            block = network.describe_pooled(pooled[start : start + _FILL_ROWS])
            banks.plain.fill(block, start)
            banks.augmented.fill(block, start)
    ranks.barrier()


def _open_copy(file: Path, bank: MemoryBank) -> Tensor:
    count, needed = file.stat().st_size // bank.features.element_size(), bank.features.numel()
    if count != needed:
        raise UserError(
            f"The memory bank {file} holds {count} numbers, this run needs {needed}: delete {file.parent}."
        )
    return torch.from_file(str(file), shared=False, size=count, dtype=bank.features.dtype).view(-1, bank.dim)


def _refill(bank: MemoryBank, rows: Tensor) -> None:
    if rows.shape != bank.features.shape:
        raise UserError(
            f"The memory bank in the checkpoint is {tuple(rows.shape)}, this run needs {tuple(bank.features.shape)}: "
            "resume with the images and the dimension of the first run."
        )
    for start in range(0, len(rows), _FILL_ROWS):
        bank.fill(rows[start : start + _FILL_ROWS], start)
