"""The late layers of a network, run on cached maps of its early layers."""

import torch
from torch import Tensor

from insclr.model.device import computed_in
from insclr.model.network import DescriptorNetwork

_BLOCK_MAPS = 64


class LateLayers:
    """The late layers and the pooling of a network, on flattened maps of images of one size.

    `floats` is the type of the numbers that the layers compute in, None single precision.
    """

    def __init__(self, network: DescriptorNetwork, side: int, floats: torch.dtype | None = None) -> None:
        self.network = network
        self.side = side
        self.floats = floats
        blank = torch.zeros(1, 3, side, side, dtype=torch.uint8, device=network.device)
        with torch.no_grad():
            self.shape = network.backbone.early(blank).shape[1:]  # (C, height, width)

    def pool_features(self, maps: Tensor) -> Tensor:
        """Pooled features (B, C) of flattened maps."""
        network = self.network
        maps = maps.to(network.device).float().view(-1, *self.shape)
        with computed_in(self.floats, network.device):
            late = network.backbone.late(maps)
        return network.pool(late)

    @torch.no_grad()
    def all_pooled(self, maps: Tensor, out: Tensor | None = None) -> Tensor:
        """Pooled features (N, C) of all of them, in eval mode and half precision, on the CPU; in `out` if given."""
        self.network.eval()
        if out is None:
            out = torch.empty(len(maps), self.network.backbone.channels, dtype=torch.float16)
        for rows in torch.arange(len(maps)).split(_BLOCK_MAPS):
            out[rows] = self.pool_features(maps[rows]).half().cpu()
        return out

    @torch.no_grad()
    def describe(self, maps: Tensor) -> Tensor:
        """Descriptors (B, D) of flattened maps in eval mode, without gradient."""
        self.network.eval()
        return self.network.head(self.pool_features(maps))
