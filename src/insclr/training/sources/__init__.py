"""Feature sources: where the descriptors of a step come from."""

from collections.abc import Generator
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from insclr.methods.batch import Batch
from insclr.ranks import Ranks
from insclr.training.ema_teacher import EmaTeacher


class Source(Protocol):
    """Gives the batch of every step, in order."""

    teacher: EmaTeacher | None  # describes the augmented views too, where the method needs it
    averages: bool  # whether the backward pass averages the network's gradients over ranks by itself

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of the steps first ... last - 1."""

    def pool_features(self) -> Tensor:
        """Pooled features (N, C) of the plain view of every image, as the network sees it now."""


def gather_batch(batch: Batch, ranks: Ranks, tuples: int) -> Batch:
    """This rank's tuples and, where there are others, the whole batch of so many tuples around them."""
    if ranks.alone:
        return batch

    def gather(part: Tensor) -> Tensor:
        return ranks.gather(part, tuples)

    views = torch.stack([gather(view) for view in batch.views])
    plain = None if batch.plain is None else gather(batch.plain)
    teacher = None if batch.teacher is None else torch.stack([gather(view) for view in batch.teacher])
    whole = Batch(gather(batch.ids), views, plain, teacher=teacher)
    return replace(batch, whole=whole, first_tuple=ranks.share(tuples).start)


def draw_views(cached: int, wanted: int, ids: Tensor, generator: torch.Generator) -> Tensor:
    """Which of the cached views of each image (T, M) a step sees: (wanted, T, M), all different."""
    if wanted == 1:
        return torch.randint(cached, (1, *ids.shape), generator=generator)
    return torch.rand(cached, *ids.shape, generator=generator).argsort(dim=0)[:wanted]
