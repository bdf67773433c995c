"""Features from pooled features computed once: the fully connected layer alone learns."""

from collections.abc import Iterator

import torch
from torch import Tensor

from insclr.methods.batch import Batch
from insclr.methods.method import Method
from insclr.model.network import DescriptorNetwork


class PooledSource:
    """The FC on pooled features of the plain view and of a few augmented views per image."""

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

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """The batches of the steps first ... last - 1."""
        needs = self.method.needs
        for step in range(first, last):
            ids = self.method.sampler.step(step)  # (T, M)
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
            view = torch.randint(len(self.views), (needs.augmented, *ids.shape), generator=generator)
            yield Batch(
                ids.to(self.network.device),
                self._head(self.views[view, ids]),
                plain=self._constant(self.plain[ids]) if needs.plain else None,
                scales=tuple(self._constant(scale[ids]) for scale in self.scales),
            )

    def _head(self, pooled: Tensor) -> Tensor:
        return self.network.head(pooled.float().to(self.network.device))

    @torch.no_grad()
    def _constant(self, pooled: Tensor) -> Tensor:
        return self._head(pooled)
