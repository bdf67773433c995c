"""Memory banks: one feature row an image."""

from dataclasses import dataclass

import torch
from torch import Tensor

from insclr.memory.buffers import Buffers

_READ_ROWS = 512


class MemoryBank:
    """The last feature of every image (paper, Memory bank): one encoder, no momentum copy.

    Rows that were never written are zero. This one lives in memory; `mapped_bank.MappedBank` in a file.
    """

    def __init__(self, rows: int, dim: int, dtype: torch.dtype = torch.float32) -> None:
        self._features = self._allocate(rows, dim, dtype)  # (rows, dim)
        self._buffers = Buffers()
        self._narrow = torch.empty(_READ_ROWS, dim, dtype=dtype)  # rows on their way to float32

    def _allocate(self, rows: int, dim: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(rows, dim, dtype=dtype)

    def __len__(self) -> int:
        return len(self._features)

    @property
    def features(self) -> Tensor:
        """All rows (N, D), in the type they are stored in; not a copy."""
        return self._features

    @property
    def dim(self) -> int:
        """Length of a feature."""
        return int(self._features.shape[1])

    def write(self, ids: Tensor, features: Tensor) -> None:
        """Store `features` (B, D) as the rows `ids` (B,); of an id that comes twice the last one stays."""
        ids, last = _last_of_each(ids.reshape(-1).cpu())
        rows = features.detach().reshape(-1, self.dim)
        self._store(ids, rows[last.to(rows.device)].to("cpu", self._features.dtype))

    def fill(self, features: Tensor, first: int = 0) -> None:
        """Store `features` as the rows from `first` on: the first fill, at once or block by block."""
        self._store_block(first, features.detach().to("cpu", self._features.dtype))

    def _store(self, ids: Tensor, rows: Tensor) -> None:
        self._features[ids] = rows

    def _store_block(self, first: int, rows: Tensor) -> None:
        self._features[first : first + len(rows)] = rows

    def ahead(self, ids: Tensor) -> None:
        """Say that the rows `ids` will be read next; a bank that is slow to read gets them meanwhile."""

    def read(self, ids: Tensor) -> Tensor:
        """The rows `ids`, of any shape, as float32 (..., D); a copy, without gradient."""
        flat = ids.reshape(-1).cpu()
        rows = self._buffers.lend((len(flat), self.dim))
        self._widen(self._features, flat, rows)
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

    def state_dict(self) -> dict[str, Tensor]:
        """The rows, for a checkpoint; not a copy."""
        return {"features": self.features}


@dataclass
class MemoryBanks:
    """The two banks of the paper: `plain` decides in mining, `augmented` stands in the loss."""

    plain: MemoryBank
    augmented: MemoryBank

    def write(self, ids: Tensor, plain: Tensor, augmented: Tensor) -> None:
        """Store both features of the images `ids`: the first thing every iteration does."""
        self.plain.write(ids, plain)
        self.augmented.write(ids, augmented)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Both banks, for a checkpoint."""
        return {"plain": self.plain.state_dict(), "augmented": self.augmented.state_dict()}


def _last_of_each(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ids, and the place of the last occurrence of each."""
    ids, places = ids.long().sort(stable=True)
    is_last = torch.ones_like(ids, dtype=torch.bool)
    is_last[:-1] = ids[:-1] != ids[1:]
    return ids[is_last], places[is_last]


def _size(features: Tensor) -> str:
    rows, dim = features.shape
    return f"{rows} rows of {dim}"
