"""A memory bank: the last feature of every image (paper, Memory bank), in memory or in a mapped file."""

import errno
import mmap
import os
from pathlib import Path

import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.files import reserve

# Rows read between two releases of mapped pages. The kernel maps up to 2 MB of cached file around a touched row, so
# that this many rows keep a process below about 1 GB of mapped pages.
_ROWS_BETWEEN_RELEASES = 512


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
