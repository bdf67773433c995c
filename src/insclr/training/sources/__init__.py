"""Feature sources: where the descriptors of a step come from."""

from collections.abc import Generator
from typing import Protocol

import torch
from torch import Tensor

from insclr.methods.batch import Batch
from insclr.training.momentum import MomentumNetwork


class Source(Protocol):
    """Gives the batch of every step, in order."""

    momentum: MomentumNetwork | None  # describes the augmented views too, where the method needs it

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of the steps first ... last - 1."""

    def pooled(self) -> Tensor:
        """Pooled features (N, C) of the plain view of every image, as the network sees it now."""


def draw_views(cached: int, wanted: int, ids: Tensor, generator: torch.Generator) -> Tensor:
    """Which of the cached views of each image (T, M) a step sees: (wanted, T, M), all different."""
    if wanted == 1:
        return torch.randint(cached, (1, *ids.shape), generator=generator)
    return torch.rand(cached, *ids.shape, generator=generator).argsort(dim=0)[:wanted]
