"""Memory banks: the last feature of every image (paper, Memory bank), and the two banks of a round.

In memory while they are small and this process is alone, else in one file a node.
"""

import errno
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.files import reserve
from insclr.model.network import DescriptorNetwork
from insclr.ranks import Ranks

# Rows read between two releases of mapped pages. The kernel maps up to 2 MB of cached file around a touched row, so
# that this many rows keep a process below about 1 GB of mapped pages.
_ROWS_BETWEEN_RELEASES = 512
_IN_MEMORY_BYTES = 2 << 30  # of both banks
_FILL_ROWS = 8192
_NAMES = ("plain", "augmented")


class MemoryBank:
    """One row per image, written by one encoder without a momentum copy. Rows never written are zero."""

    features: Tensor  # (N, D), in the type the rows are stored in

    def __init__(self, rows: int, dim: int, dtype: torch.dtype = torch.float32) -> None:
        self.features = torch.zeros(rows, dim, dtype=dtype)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def dim(self) -> int:
        """Length of a feature."""
        return int(self.features.shape[1])

    def write(self, ids: Tensor, features: Tensor) -> None:
        """Store `features` (B, D) as the rows `ids` (B,); of an id that comes twice the last one stays."""
        ids, places = ids.reshape(-1).cpu().long().sort(stable=True)
        is_last = torch.ones_like(ids, dtype=torch.bool)
        is_last[:-1] = ids[:-1] != ids[1:]
        rows = features.detach().reshape(-1, self.dim)[places[is_last].to(features.device)]
        self._store(ids[is_last], rows.to("cpu", self.features.dtype))

    def fill(self, features: Tensor, first: int = 0) -> None:
        """Store `features` as the rows from `first` on: the first fill, at once or block by block."""
        self._store_block(first, features.detach().to("cpu", self.features.dtype))

    def read(self, ids: Tensor) -> Tensor:
        """The rows `ids`, of any shape, as float32 (..., D); a copy, without gradient."""
        return self._select(ids.reshape(-1).cpu().long()).float().view(*ids.shape, self.dim)

    def _store(self, ids: Tensor, rows: Tensor) -> None:
        self.features[ids] = rows

    def _store_block(self, first: int, rows: Tensor) -> None:
        self.features[first : first + len(rows)] = rows

    def _select(self, ids: Tensor) -> Tensor:
        return self.features.index_select(0, ids)


class MappedBank(MemoryBank):
    """A bank in a file that the processes of a node may share, for more rows than memory should hold."""

    def __init__(self, rows: int, dim: int, dtype: torch.dtype, path: Path) -> None:
        self._map = _map_file(path, rows * dim * dtype.itemsize)
        self._file = path.open("r+b", buffering=0)
        self.features = torch.frombuffer(self._map, dtype=dtype).view(rows, dim)

    def _store(self, ids: Tensor, rows: Tensor) -> None:
        for row, values in zip(ids.tolist(), rows.contiguous(), strict=True):
            self._store_block(row, values)

    def _store_block(self, first: int, rows: Tensor) -> None:
        """Write to the file, which the map shows at once.

        Through the map, a row would make its whole huge page dirty, and 2 MB go to the disk for every 4 kB.
        """
        data = memoryview(rows.contiguous().view(torch.uint8).numpy().data).cast("B")
        offset = first * self.dim * self.features.element_size()
        while data:
            written = os.pwrite(self._file.fileno(), data, offset)
            data, offset = data[written:], offset + written

    def _select(self, ids: Tensor) -> Tensor:
        """Read in the order of the file, so that each page is mapped once and can be released behind the read."""
        ordered, order = ids.sort()
        rows = torch.empty(len(ids), self.dim, dtype=self.features.dtype)
        blocks = zip(ordered.split(_ROWS_BETWEEN_RELEASES), order.split(_ROWS_BETWEEN_RELEASES), strict=True)
        for block, places in blocks:
            rows[places] = self.features.index_select(0, block)
            if hasattr(mmap, "MADV_DONTNEED"):  # the pages stay in the kernel's cache: nothing is lost
                self._map.madvise(mmap.MADV_DONTNEED)
        return rows


def _map_file(path: Path, size: int) -> mmap.mmap:
    """Map the bank file, making it where it is new. Several processes may do so at the same moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        found = os.fstat(file.fileno()).st_size
        if found not in (0, size):
            raise UserError(
                f"The memory bank file {path} holds {found} bytes, this run needs {size}: it belongs to "
                "other images or another dimension. Delete it or choose another run folder."
            )
        try:
            reserve(file.fileno(), size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG):
                raise
            if found == 0:
                path.unlink(missing_ok=True)
            raise UserError(
                f"No space for the memory bank {path} ({size / 2**30:.1f} GB). Free some space, "
                "choose another disk, or store the banks in float16."
            ) from error
        return mmap.mmap(file.fileno(), size)


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
