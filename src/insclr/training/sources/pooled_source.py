"""The source that trains only the FC, on cached pooled features."""

from collections.abc import Generator

import torch
from torch import Tensor

from insclr.methods.batch import Batch
from insclr.methods.method import Method
from insclr.model.network import DescriptorNetwork
from insclr.training.ema_teacher import EmaTeacher
from insclr.training.sources import draw_views


class PooledSource:
    """The FC on pooled features of the plain view and of a few augmented views per image."""

    averages = False

    def __init__(
        self,
        network: DescriptorNetwork,
        method: Method,
        plain: Tensor,
        views: Tensor,
        scales: tuple[Tensor, ...] = (),
        *,
        seed: int,
    ) -> None:
        self.network = network
        self.method = method
        self.plain = plain  # (N, C)
        self.views = views  # (V, N, C)
        self.scales = scales  # (N, C) each, of plain views at the method's scales
        self.seed = seed
        self.teacher: EmaTeacher | None = None

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of the steps first ... last - 1."""
        needs = self.method.needs
        for step in range(first, last):
            ids = self.method.sampler.step(step)  # (T, M)
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
            view = draw_views(len(self.views), needs.augmented, ids, generator)
            views, teacher = self.views[view, ids], self.teacher
            yield Batch(
                ids.to(self.network.device),
                self.network.head(views.float().to(self.network.device)),
                plain=_constant(self.network, self.plain[ids]) if needs.plain else None,
                scales=tuple(_constant(self.network, scale[ids]) for scale in self.scales),
                teacher=None if teacher is None else _constant(teacher.network, views),
            )

    def pool_features(self) -> Tensor:
        """Pooled features (N, C) of the plain views: they stay what they were."""
        return self.plain


@torch.no_grad()
def _constant(network: DescriptorNetwork, pooled: Tensor) -> Tensor:
    """Descriptors without gradient."""
    return network.head(pooled.float().to(network.device))
