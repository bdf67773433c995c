"""The descriptor network: backbone -> pooling -> L2 -> fully connected -> L2 (the paper, Section 3)."""

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from insclr.errors import UserError
from insclr.model.backbones import Backbone, FeatureMap, create_backbone
from insclr.model.pooling import create_pooling
from insclr.model.refined import RefinedLinear
from insclr.recipe import NetworkRecipe

_BLOCK_ROWS = 8192


class DescriptorNetwork(nn.Module):
    """Images to unit descriptors; images of the same instance should have a high cosine."""

    def __init__(
        self,
        backbone: Backbone,
        pooling: nn.Module,
        dim: int,
        *,
        bias: bool = False,
        normalise_pooled: bool = True,
        frozen_batch_norm: bool = True,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = pooling
        # Without a dimension the pooled features are the descriptor: the pretrained network as it comes.
        self.fc: nn.Linear | RefinedLinear | None = None
        if dim:
            self.fc = nn.Linear(backbone.channels, dim, bias=bias)
        self.dim = dim or backbone.channels
        self.normalise_pooled = normalise_pooled or not dim
        self.frozen_batch_norm = frozen_batch_norm

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def pool_features(self, images: Tensor) -> Tensor:
        """Pooled features (batch, channels) of images 0..255 (batch, 3, height, width)."""
        return self.pool(self.backbone(images))

    def pool(self, features: FeatureMap) -> Tensor:
        """Pooled features (batch, channels) of the backbone's map, unit rows unless the recipe sets otherwise."""
        pooled: Tensor = self.pooling(features)
        return functional.normalize(pooled, dim=1) if self.normalise_pooled else pooled

    def head(self, pooled: Tensor) -> Tensor:
        """Unit descriptors (..., dim) of pooled features (..., channels)."""
        return functional.normalize(self.fc(pooled), dim=-1) if self.fc is not None else pooled

    @torch.no_grad()
    def describe_pooled(self, pooled: Tensor) -> Tensor:
        """Unit descriptors (N, dim) on the CPU of pooled features (N, channels) of any float type, in blocks."""
        return torch.cat(
            [self.head(rows.float().to(self.device)).cpu() for rows in pooled.split(_BLOCK_ROWS)]
        )

    def forward(self, images: Tensor) -> Tensor:
        """Unit descriptors (batch, dim) of images 0..255 (batch, 3, height, width)."""
        return self.head(self.pool_features(images))

    def train(self, mode: bool = True) -> Self:
        """Switch to training; frozen batch-norm layers keep their pretrained statistics."""
        super().train(mode)
        if self.frozen_batch_norm:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self


def create_network(recipe: NetworkRecipe, *, pretrained: bool = True) -> DescriptorNetwork:
    """The network a recipe describes, with pretrained weights unless a model file will bring its own."""
    backbone = create_backbone(recipe.backbone, recipe.weights if pretrained else None, pretrained=pretrained)
    if recipe.dim > backbone.channels:
        raise UserError(
            f"network.dim = {recipe.dim} is larger than the {backbone.channels} features of "
            f"{recipe.backbone}: choose at most {backbone.channels}."
        )
    network = DescriptorNetwork(
        backbone,
        create_pooling(recipe.pooling, recipe.gem_p),
        recipe.dim,
        bias=recipe.bias,
        normalise_pooled=recipe.normalise_pooled,
    )
    return network.eval()
