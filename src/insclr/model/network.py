"""The descriptor network: backbone -> pooling -> L2 -> fully connected -> L2 (the paper, Section 3)."""

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from insclr.errors import UserError
from insclr.model.backbones import Backbone, FeatureMap, create_backbone
from insclr.model.device import computed_in
from insclr.recipe import NetworkRecipe

_SMALLEST = 1e-6  # smaller activations are raised to it: a root has no gradient at 0


class GeM(nn.Module):
    """Generalised mean (Radenovic 2018): p = 1 is the average, p -> infinity the maximum."""

    def __init__(self, p: float = 3.0) -> None:
        super().__init__()
        self.p = p

    def forward(self, features: FeatureMap) -> Tensor:
        """Pool (batch, channels, height, width) to (batch, channels)."""
        # In float32 even under autocast: a cube overflows half precision.
        powered = features.map.float().clamp(min=_SMALLEST).pow(self.p)
        return powered.mean(dim=(2, 3)).pow(1.0 / self.p)


class Pooling(nn.Module):
    """Without an exponent: the maximum (mac) or the average (spoc) of each channel, or the class token (cls)."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, features: FeatureMap) -> Tensor:
        """Pool (batch, channels, height, width) to (batch, channels)."""
        if self.name != "cls":
            maps = features.map.float()
            return maps.amax(dim=(2, 3)) if self.name == "mac" else maps.mean(dim=(2, 3))
        if features.cls is None:
            raise UserError("This backbone has no class token: choose another pooling, such as spoc.")
        return features.cls.float()


def create_pooling(name: str, p: float = 3.0) -> nn.Module:
    """The pooling layer that a recipe names."""
    return GeM(p) if name == "gem" else Pooling(name)


class RefinedLinear(nn.Module):
    """A fixed layer and, trained, a square one that starts as the identity.

    Behind a whitening all directions weigh the same, so that one learning rate suits them; the entries of the
    whitening itself differ by orders of magnitude.
    """

    def __init__(self, fixed: nn.Linear) -> None:
        super().__init__()
        self.fixed = fixed.requires_grad_(False)
        dim, bias = fixed.out_features, fixed.bias is not None
        self.top = nn.Linear(dim, dim, bias=bias).to(fixed.weight.device)
        with torch.no_grad():
            self.top.weight.copy_(torch.eye(dim))
            if bias:
                self.top.bias.zero_()

    def forward(self, features: Tensor) -> Tensor:
        """Map (..., C) to (..., D)."""
        refined: Tensor = self.top(self.fixed(features))
        return refined

    def trained_parameters(self) -> list[nn.Parameter]:
        """What training changes: the square layer."""
        return list(self.top.parameters())

    def fold(self) -> nn.Linear:
        """One layer that does the same."""
        return compose(self.fixed, self.top)


@torch.no_grad()
def compose(first: nn.Linear, second: nn.Linear) -> nn.Linear:
    """One layer that does what `first` and then `second` do."""
    biases: list[Tensor] = []
    if getattr(first, "bias", None) is not None:
        biases.append(second.weight @ first.bias)
    if getattr(second, "bias", None) is not None:
        biases.append(second.bias)
    both = nn.Linear(first.in_features, second.out_features, bias=bool(biases)).to(first.weight.device)
    both.weight.copy_(second.weight @ first.weight)
    if biases:
        both.bias.copy_(torch.stack(biases).sum(0))
    return both


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
    network = DescriptorNetwork(
        backbone,
        create_pooling(recipe.pooling, recipe.gem_p),
        min(recipe.dim, backbone.channels),
        bias=recipe.bias,
        normalise_pooled=recipe.normalise_pooled,
    )
    return network.eval()


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
            self.shape = network.backbone.early(blank).shape[1:]  # of a map or of tokens

    def pool_features(self, maps: Tensor) -> Tensor:
        """Pooled features (B, C) of flattened maps."""
        network = self.network
        maps = maps.to(network.device).float().view(-1, *self.shape)
        with computed_in(self.floats, network.device):
            late = network.backbone.late(maps, self.side)
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
