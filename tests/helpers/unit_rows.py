"""Random rows of unit length."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def unit(*shape: int, seed: int = 0) -> np.ndarray:
    """An array of this shape."""
    rows = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def unit_rows(seed: int, *shape: int) -> "Tensor":
    """A tensor of this shape."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)
