"""Large tensors that are used again once nobody holds them."""

import math
import weakref
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_LINE = 64  # bytes
_KEPT = 4  # buffers remembered at most; more are alive only while somebody holds them


@dataclass
class _Buffer:
    array: np.ndarray
    loan: weakref.ref[np.ndarray] | None = None  # alive as long as any tensor made from the buffer

    @property
    def free(self) -> bool:
        return self.loan is None or self.loan() is None


class Buffers:
    """Lends float32 tensors of any shape, uninitialised, from memory that is already paged in.

    The system hands out a fresh 65 MB tensor page by page, which costs five times the reading of the rows
    that go into it. A buffer is lent again only when no tensor or view of it is left.
    """

    def __init__(self) -> None:
        self._buffers: list[_Buffer] = []

    def lend(self, shape: tuple[int, ...]) -> Tensor:
        """A tensor of this shape with arbitrary content."""
        size = math.prod(shape)
        for buffer in self._buffers:
            if buffer.array.size == size and buffer.free:
                break
        else:
            buffer = _Buffer(_aligned(size))
            self._buffers = [buffer, *self._buffers][:_KEPT]
        handle = buffer.array.view()
        buffer.loan = weakref.ref(handle)
        # The tensor's storage holds the handle, and with it the loan, as long as it lives.
        return torch.from_numpy(handle).view(shape)


def _aligned(size: int) -> np.ndarray:
    """Memory that begins at a cache line, as torch's own does: vector instructions are slower elsewhere."""
    memory = np.empty(size + _LINE // 4, dtype=np.float32)
    first = -memory.ctypes.data % _LINE // 4
    return memory[first : first + size]
