"""A memory bank in one memory-mapped file, for more rows than memory should hold.

To the network it is as fast as one in memory. Rows that a step will need are read while the network computes, and
written rows go to the file behind its back; a row that is on its way is taken from memory.
"""

import errno
import mmap
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.files import reserve
from insclr.memory.bank import MemoryBank

# The kernel maps up to this many bytes of cached file around a touched page: a huge page where it can.
_FAULT_AROUND = 2 * 2**20
_SWEPT_ROWS = 1024


_Take = Callable[[Tensor, Tensor, Tensor], object]  # features, ids, where to


def _take(features: Tensor, ids: Tensor, rows: Tensor) -> None:
    torch.index_select(features, 0, ids, out=rows)


def _take_alone(features: Tensor, ids: Tensor, rows: Tensor) -> None:
    """In this thread alone: torch's threads would take the processors away from the network."""
    np.take(features.numpy(), ids.numpy(), axis=0, out=rows.numpy(), mode="clip")


@dataclass
class _Written:
    """Rows that the file may not show yet."""

    ids: Tensor  # (B,) ascending
    rows: Tensor  # (B, D)

    def put_into(self, rows: Tensor, flat: Tensor) -> None:
        """Replace those of the `rows` (n, D) of the images `flat` (n,) that were written."""
        if len(self.ids):
            place = torch.searchsorted(self.ids, flat).clamp(max=len(self.ids) - 1)
            was_written = (self.ids[place] == flat).nonzero()[:, 0]
            rows[was_written] = self.rows[place[was_written]].to(rows.dtype)


@dataclass
class _Ahead:
    """Rows that are being read before they are asked for."""

    flat: Tensor  # (n,) ids as they will be asked for
    swept: "Future[tuple[Tensor, Tensor]]"  # rows in the file's order, and where each of `flat` is among them
    since: list[_Written] = field(default_factory=list)  # written after the reading was ordered


class MappedBank(MemoryBank):
    """A bank whose rows live in a file that the processes of a node may share.

    A process keeps about `resident_bytes` of the file mapped at most. Where it is `shared`, a row is in the file
    when `write` returns; else it gets there soon after.
    """

    def __init__(
        self,
        rows: int,
        dim: int,
        dtype: torch.dtype,
        path: Path,
        *,
        shared: bool = False,
        resident_bytes: int = 2**30,
    ) -> None:
        self._map = _map_file(path, rows * dim * dtype.itemsize)
        self._file = path.open("r+b", buffering=0)
        super().__init__(rows, dim, dtype)
        self._shared = shared
        self._resident_bytes = resident_bytes
        self._touched_bytes = 0
        # One thread: what was ordered first is done first, so a reading sees all earlier writes.
        self._worker = ThreadPoolExecutor(1, "memory-bank")
        self._pending: _Written | None = None  # not ordered to be written yet
        self._writing: Future[None] | None = None
        self._ahead: _Ahead | None = None
        self._swept = self._narrow[:0]

    def _allocate(self, rows: int, dim: int, dtype: torch.dtype) -> Tensor:
        return torch.frombuffer(self._map, dtype=dtype).view(rows, dim)

    @property
    def features(self) -> Tensor:
        """All rows (N, D) as the file has them, when everything written is there."""
        self._settle()
        return self._features

    def _settle(self) -> None:
        """Wait until all rows are in the file; what went wrong there is raised here."""
        self._begin_writing()
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _begin_writing(self) -> None:
        if self._pending is not None:
            if self._writing is not None:
                self._writing.result()
            self._writing = self._worker.submit(self._write_rows, self._pending)
            self._pending = None

    def _store(self, ids: Tensor, rows: Tensor) -> None:
        written = _Written(ids, rows.contiguous())
        if self._ahead is not None:
            self._ahead.since.append(written)
        self._begin_writing()
        # Now the processors are needed for mining; it is written when the network is at work again.
        self._pending = written
        if self._shared:
            self._settle()

    def _write_rows(self, written: _Written) -> None:
        for row, values in zip(written.ids.tolist(), written.rows, strict=True):
            self._write_block(row, values)

    def _store_block(self, first: int, rows: Tensor) -> None:
        self._settle()
        self._stop_reading()
        self._write_block(first, rows.contiguous())

    def _write_block(self, first: int, rows: Tensor) -> None:
        """Write to the file, which the map shows at once.

        Through the map, a row would make its whole huge page dirty, and 2 MB go to the disk for every 4 kB.
        """
        data = memoryview(rows.view(torch.uint8).numpy().data).cast("B")
        offset = first * self.dim * self._features.element_size()
        while data:
            written = os.pwrite(self._file.fileno(), data, offset)
            data, offset = data[written:], offset + written

    def ahead(self, ids: Tensor) -> None:
        """Begin to read the rows `ids`, for a `read` of just these."""
        flat = ids.reshape(-1).cpu().long()
        self._begin_writing()
        self._ahead = _Ahead(flat, self._worker.submit(self._sweep, flat, _take_alone))

    def _stop_reading(self) -> None:
        """Forget what was announced, when nobody writes into its buffer any more."""
        if self._ahead is not None:
            self._ahead.swept.result()
            self._ahead = None

    def read(self, ids: Tensor) -> Tensor:
        """The rows `ids`, of any shape, as float32 (..., D); a copy, without gradient."""
        flat = ids.reshape(-1).cpu().long()
        if self._ahead is None or not torch.equal(self._ahead.flat, flat):
            self._stop_reading()
            self._settle()
        ahead, self._ahead = self._ahead, None
        swept, places = self._sweep(flat, _take) if ahead is None else ahead.swept.result()
        rows = self._buffers.lend((len(flat), self.dim))
        self._widen(swept, places, rows)
        for written in ahead.since if ahead else ():
            written.put_into(rows, flat)
        return rows.view(*ids.shape, self.dim)

    def _sweep(self, flat: Tensor, take: _Take) -> tuple[Tensor, Tensor]:
        """Rows in the order of the file, so that each of its pages is mapped once, and can go when it is passed."""
        ordered, order = flat.sort()
        if len(self._swept) < len(ordered):
            self._swept = torch.empty(len(ordered), self.dim, dtype=self._features.dtype)
        rows = self._swept[: len(ordered)]
        for start in range(0, len(ordered), _SWEPT_ROWS):
            block = ordered[start : start + _SWEPT_ROWS]
            take(self._features, block, rows[start : start + len(block)])
            self._touched(len(block))
        return rows, torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))

    def _touched(self, rows: int) -> None:
        """Give mapped pages back to the kernel's cache before they add up: nothing is lost or re-read."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        self._touched_bytes += rows * (self.dim * self._features.element_size() + _FAULT_AROUND)
        if self._touched_bytes > self._resident_bytes:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._touched_bytes = 0


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
