"""The pooling layers of instance retrieval: from a feature map to one vector."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from insclr.errors import UserError
from insclr.model.backbones import FeatureMap

_SMALLEST = 1e-6  # smaller activations are raised to it: a root has no gradient at 0
_OVERLAP = 0.4  # of neighbouring regions of R-MAC


class GeM(nn.Module):
    """Generalised mean (Radenovic 2018): p = 1 is the average (SPoC), p -> infinity the maximum (MAC)."""

    def __init__(self, p: float = 3.0, learned: bool = False) -> None:
        super().__init__()
        self.p: nn.Parameter | float = nn.Parameter(torch.tensor(p)) if learned else p

    def forward(self, features: FeatureMap) -> Tensor:
        """Pool (batch, channels, height, width) to (batch, channels)."""
        # In float32 even under autocast: a cube overflows half precision.
        powered = features.map.float().clamp(min=_SMALLEST).pow(self.p)
        return powered.mean(dim=(2, 3)).pow(1.0 / self.p)


class MAC(nn.Module):
    """Maximum activation of each channel."""

    def forward(self, features: FeatureMap) -> Tensor:
        """Pool (batch, channels, height, width) to (batch, channels)."""
        return features.map.float().amax(dim=(2, 3))


class SPoC(nn.Module):
    """Average of each channel."""

    def forward(self, features: FeatureMap) -> Tensor:
        """Pool (batch, channels, height, width) to (batch, channels)."""
        return features.map.float().mean(dim=(2, 3))


class RMAC(nn.Module):
    """Regional maxima (Tolias 2016): unit-length MACs of overlapping squares at several scales, summed."""

    def __init__(self, levels: int = 3) -> None:
        super().__init__()
        self.levels = levels

    def forward(self, features: FeatureMap) -> Tensor:
        """Pool (batch, channels, height, width) to (batch, channels)."""
        maps = features.map.float()
        total = functional.normalize(maps.amax(dim=(2, 3)), dim=1)
        for top, left, side in self.regions(maps.shape[2], maps.shape[3]):
            region = maps[:, :, top : top + side, left : left + side]
            total = total + functional.normalize(region.amax(dim=(2, 3)), dim=1)
        return total

    def regions(self, height: int, width: int) -> list[tuple[int, int, int]]:
        """Squares (top, left, side): at level l, l of them along the shorter side."""
        shorter, longer = min(height, width), max(height, width)
        # As many extra squares along the longer side as bring neighbours nearest to the wanted overlap.
        extra = 0
        if longer > shorter:
            overlaps = [1 - (longer - shorter) / steps / shorter for steps in range(1, 7)]
            extra = 1 + min(range(6), key=lambda i: abs(overlaps[i] - _OVERLAP))
        squares = []
        for level in range(1, self.levels + 1):
            side = max(1, 2 * shorter // (level + 1))
            down = level + (extra if height > width else 0)
            across = level + (extra if width > height else 0)
            for top in _starts(height, side, down):
                squares += [(top, left, side) for left in _starts(width, side, across)]
        return squares


def _starts(length: int, side: int, count: int) -> list[int]:
    if count == 1:
        return [(length - side) // 2]
    return [round(i * (length - side) / (count - 1)) for i in range(count)]


class ClassToken(nn.Module):
    """The class token of a vision transformer."""

    def forward(self, features: FeatureMap) -> Tensor:
        """Give the tokens (batch, channels)."""
        if features.cls is None:
            raise UserError("This backbone has no class token: choose another pooling, such as gem.")
        return features.cls.float()


def create_pooling(name: str, p: float = 3.0) -> nn.Module:
    """The pooling layer that a recipe names."""
    if name in ("gem", "gem-learned"):
        return GeM(p, learned=name == "gem-learned")
    return {"mac": MAC, "spoc": SPoC, "rmac": RMAC, "cls": ClassToken}[name]()
