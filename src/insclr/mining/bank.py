"""Memory banks: one feature row an image, in memory or in one memory-mapped file shared by a node."""

import errno
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.mining.buffers import Buffers

# The kernel maps up to this many bytes of cached file around a touched page: a huge page where it can.
_FAULT_AROUND = 2 * 2**20
_READ_ROWS = 512
_MAPPED_ROWS = 1024


class MemoryBank:
    """The last feature of every image (paper, Memory bank): one encoder, no momentum copy.

    Rows that were never written are zero. With `path` the rows live in a memory-mapped file that several
    processes may open at once; a step then touches only the rows it needs, and the process keeps at most
    about `resident_bytes` of the file mapped.
    """

    def __init__(
        self,
        rows: int,
        dim: int,
        dtype: torch.dtype = torch.float32,
        path: Path | None = None,
        *,
        resident_bytes: int = 2**30,
    ) -> None:
        self.features: Tensor  # (rows, dim)
        self._map: mmap.mmap | None = None
        if path is None:
            self.features = torch.zeros(rows, dim, dtype=dtype)
        else:
            self._map = _map_file(Path(path), rows * dim * dtype.itemsize)
            self._file = Path(path).open("r+b", buffering=0)  # noqa: SIM115  (open as long as the map is)
            self.features = torch.frombuffer(self._map, dtype=dtype).view(rows, dim)
        self._written = torch.full((rows,), -1, dtype=torch.int64)  # step of the last write
        self._buffers = Buffers()
        self._narrow = torch.empty(_READ_ROWS, dim, dtype=dtype)  # rows on their way to float32
        self._swept = self._narrow[:0]  # rows of a mapped file in its order
        self._resident_bytes = resident_bytes
        self._touched_bytes = 0

    def __len__(self) -> int:
        return len(self.features)

    @property
    def dim(self) -> int:
        """Length of a feature."""
        return int(self.features.shape[1])

    def write(self, ids: Tensor, features: Tensor, step: int) -> None:
        """Store `features` (B, D) as the rows `ids` (B,); of an id that comes twice the last one stays."""
        ids, last = _last_of_each(ids.reshape(-1).cpu())
        rows = features.detach().reshape(-1, self.dim)
        rows = rows[last.to(rows.device)].to(self.features.device, self.features.dtype)
        if self._map is None:
            self.features[ids] = rows
        else:
            for row, values in zip(ids.tolist(), rows.contiguous(), strict=True):
                self._store(row, values)
        self._written[ids] = step

    def fill(self, features: Tensor, step: int, first: int = 0) -> None:
        """Store `features` as the rows from `first` on: the first fill, at once or block by block."""
        rows = features.detach().to(self.features.device, self.features.dtype)
        if self._map is None:
            self.features[first : first + len(rows)] = rows
        else:
            self._store(first, rows.contiguous())
        self._written[first : first + len(rows)] = step

    def _store(self, first: int, rows: Tensor) -> None:
        """Write to the file, which the map shows at once.

        Through the map, a row would make its whole huge page dirty, and 2 MB go to the disk for every 4 kB.
        """
        data = memoryview(rows.view(torch.uint8).numpy().data).cast("B")
        offset = first * self.dim * self.features.element_size()
        while data:
            written = os.pwrite(self._file.fileno(), data, offset)
            data, offset = data[written:], offset + written

    def read(self, ids: Tensor) -> Tensor:
        """The rows `ids`, of any shape, as float32 (..., D); a copy, without gradient."""
        flat = ids.reshape(-1).to(self.features.device)
        rows = self._buffers.lend((len(flat), self.dim))
        if self._map is None:
            self._widen(self.features, flat, rows)
        else:
            ordered, places = flat.sort()
            self._widen(self._read_mapped(ordered), places.argsort(), rows)
        return rows.view(*ids.shape, self.dim)

    def _widen(self, features: Tensor, flat: Tensor, rows: Tensor) -> None:
        """Write the rows `flat` of `features` as float32 into `rows`."""
        if features.dtype == torch.float32:
            torch.index_select(features, 0, flat, out=rows)
            return
        # A block at a time, so that the rows are still in the processor's cache when they are widened.
        for start in range(0, len(flat), _READ_ROWS):
            block = flat[start : start + _READ_ROWS]
            narrow = self._narrow[: len(block)]
            torch.index_select(features, 0, block, out=narrow)
            rows[start : start + len(block)] = narrow

    def _read_mapped(self, ordered: Tensor) -> Tensor:
        """Rows in the order of the file, so that each of its pages is mapped once, and can go when it is passed."""
        if len(self._swept) < len(ordered):
            self._swept = torch.empty(len(ordered), self.dim, dtype=self.features.dtype)
        rows = self._swept[: len(ordered)]
        for start in range(0, len(ordered), _MAPPED_ROWS):
            block = ordered[start : start + _MAPPED_ROWS]
            torch.index_select(self.features, 0, block, out=rows[start : start + len(block)])
            self._touched(len(block))
        return rows

    def freshness(self, step: int) -> Tensor:
        """How many steps ago each row was written, as (rows,) int64; -1 for never."""
        return torch.where(self._written < 0, -1, step - self._written)

    def state_dict(self) -> dict[str, Tensor]:
        """The rows and their write steps, for a checkpoint; not copies."""
        return {"features": self.features, "written": self._written}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over the rows of a checkpoint."""
        if state["features"].shape != self.features.shape:
            raise UserError(
                f"The memory bank in the checkpoint holds {_size(state['features'])}, this run needs "
                f"{_size(self.features)}. Resume with the images and the dimension of the first run."
            )
        self.fill(state["features"], step=0)
        self._written.copy_(state["written"])

    def _touched(self, rows: int) -> None:
        """Give mapped pages back to the kernel's cache before they add up: nothing is lost or re-read."""
        if self._map is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        self._touched_bytes += rows * (self.dim * self.features.element_size() + _FAULT_AROUND)
        if self._touched_bytes > self._resident_bytes:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._touched_bytes = 0


@dataclass
class MemoryBanks:
    """The two banks of the paper: `plain` decides in mining, `augmented` stands in the loss."""

    plain: MemoryBank
    augmented: MemoryBank

    def write(self, ids: Tensor, plain: Tensor, augmented: Tensor, step: int) -> None:
        """Store both features of the images `ids`: the first thing every iteration does."""
        self.plain.write(ids, plain, step)
        self.augmented.write(ids, augmented, step)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Both banks, for a checkpoint."""
        return {"plain": self.plain.state_dict(), "augmented": self.augmented.state_dict()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over both banks of a checkpoint."""
        self.plain.load_state_dict(state["plain"])
        self.augmented.load_state_dict(state["augmented"])


def _last_of_each(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ids, and the place of the last occurrence of each."""
    ids, places = ids.long().sort(stable=True)
    is_last = torch.ones_like(ids, dtype=torch.bool)
    is_last[:-1] = ids[:-1] != ids[1:]
    return ids[is_last], places[is_last]


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
            _reserve(file.fileno(), size)
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


def _reserve(file: int, size: int) -> None:
    """Take the disk space now: a disk that fills up later would kill the process without a word."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


def _size(features: Tensor) -> str:
    rows, dim = features.shape
    return f"{rows} rows of {dim}"
