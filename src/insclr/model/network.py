"""The descriptor network: backbone -> pooling -> L2 -> fully connected -> L2 (the paper, Section 3)."""

from typing import Self

from torch import Tensor, nn
from torch.nn import functional

from insclr.errors import UserError
from insclr.model.backbones import Backbone, FeatureMap, create_backbone
from insclr.model.pooling import create_pooling
from insclr.model.refined import RefinedLinear
from insclr.recipe import NetworkRecipe


class DescriptorNetwork(nn.Module):
    """Images to unit vectors; pictures of the same thing should have a high cosine."""

    def __init__(
        self, backbone: Backbone, pooling: nn.Module, dim: int, frozen_batch_norm: bool = True
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = pooling
        # Without a dimension the pooled features are the descriptor: the pretrained network as it comes.
        self.fc: nn.Linear | RefinedLinear | None = nn.Linear(backbone.channels, dim) if dim else None
        self.dim = dim or backbone.channels
        self.frozen_batch_norm = frozen_batch_norm

    def pooled(self, images: Tensor) -> Tensor:
        """Unit pooled features (batch, channels) of images 0..255 (batch, 3, height, width)."""
        return self.pool(self.backbone(images))

    def pool(self, features: FeatureMap) -> Tensor:
        """Unit pooled features (batch, channels) of what the backbone saw."""
        return functional.normalize(self.pooling(features), dim=1)

    def embed(self, pooled: Tensor) -> Tensor:
        """Unit descriptors (batch, dim) of pooled features (batch, channels)."""
        return functional.normalize(self.fc(pooled), dim=-1) if self.fc is not None else pooled

    def forward(self, images: Tensor) -> Tensor:
        """Unit descriptors (batch, dim) of images 0..255 (batch, 3, height, width)."""
        return self.embed(self.pooled(images))

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
    network = DescriptorNetwork(backbone, create_pooling(recipe.pooling, recipe.gem_p), recipe.dim)
    return network.eval()
