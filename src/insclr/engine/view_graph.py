"""The views of `insclr.data.views` as a torch module, so that an exported graph makes them itself.

Resizing is a product with two matrices of the weights of Pillow's filters: every runtime has these operations.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from insclr.model.network import DescriptorNetwork
from insclr.recipe import DescriptorRecipe

_Kernel = Callable[[Tensor], Tensor]
_Sides = Sequence[Tensor | int]  # height and width
_CUBIC = -0.5  # Pillow's parameter of the bicubic filter


class ViewsOf(nn.Module):
    """All views of images (B, 3, H, W) of any size, each (B, 3, h, w), in the order of `descriptor_views`."""

    def __init__(self, settings: DescriptorRecipe) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, images: Tensor) -> list[Tensor]:
        """The views at scale 1, then those at the other scales."""
        height, width = images.shape[2], images.shape[3]
        views = [self._fit(images, (height, width), (0, 0))]
        if zoom := self.settings.zoom:
            inside = [torch.clamp(torch.round(zoom * number(side)), min=1) for side in (height, width)]
            start = [
                torch.floor((number(side) - own) / 2)
                for side, own in zip((height, width), inside, strict=True)
            ]
            views.append(self._fit(images, inside, start).flip(3))
        return [_at_scale(view, scale) for scale in self.settings.scales for view in views]

    def _fit(self, images: Tensor, part: _Sides, start: _Sides) -> Tensor:
        """A part of the images, which begins at `start`, resized like `fit_image` does it."""
        size, fit = self.settings.size, self.settings.fit
        sides: list[Tensor] = [torch.tensor(float(size))] * 2
        if fit != "square":
            scale = size / torch.maximum(*map(number, part))
            if fit == "thumbnail":  # never enlarged
                scale = torch.clamp(scale, max=1.0)
            sides = [torch.clamp(torch.round(number(side) * scale), min=1) for side in part]
        kernel = _lanczos if fit == "thumbnail" else cubic
        rows = resize_matrix(images.shape[2], number(part[0]), start[0], sides[0], kernel)
        columns = resize_matrix(images.shape[3], number(part[1]), start[1], sides[1], kernel)
        return _grey_levels(rows @ _grey_levels(images @ columns.T))


class WholeDescriptor(nn.Module):
    """Map and pooled features of the first view, and the descriptor of all views together."""

    def __init__(self, network: DescriptorNetwork, settings: DescriptorRecipe) -> None:
        super().__init__()
        self.network = network
        self.views = ViewsOf(settings)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """For images (B, 3, H, W) of any size in the range 0..255."""
        views = self.views(images)
        seen = [self.network.backbone(view) for view in views]
        pooled = [self.network.pool(one) for one in seen]
        total = torch.stack([self.network.head(one) for one in pooled]).sum(0)
        return seen[0].map, pooled[0], nn.functional.normalize(total, dim=1)


def _grey_levels(pixels: Tensor) -> Tensor:
    """Whole ones, as Pillow keeps after either direction; halves go up in every runtime."""
    return torch.clamp(torch.floor(pixels + 0.5005), 0, 255)


def _range(size: Tensor) -> Tensor:
    counted: Any = torch.arange  # which takes a traced tensor too
    found: Tensor = counted(size)
    return found


def number(side: Tensor | int) -> Tensor:
    """A side, which is traced or not, as a tensor."""
    return torch.as_tensor(side).float()


def resize_matrix(
    whole: Tensor | int, part: Tensor, start: Tensor | int, size: Tensor, kernel: _Kernel
) -> Tensor:
    """Weights (size, whole) that resize `part` pixels, from `start` on, of a row of `whole` pixels, antialiased."""
    scale = part / size
    centres = (_range(size) + 0.5) * scale  # (size,), in pixels of the part
    places = _range(number(whole)) - start  # (whole,)
    weights = kernel((places[None] + 0.5 - centres[:, None]) / torch.clamp(scale, min=1.0))
    weights = weights * ((places >= 0) & (places < part)).float()
    return torch.div(weights, weights.sum(1, keepdim=True))


def cubic(at: Tensor) -> Tensor:
    """The bicubic kernel."""
    x = at.abs()
    near = ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1
    far = ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _lanczos(at: Tensor) -> Tensor:
    def sinc(x: Tensor) -> Tensor:
        turn = torch.where(x == 0, torch.ones_like(x), math.pi * x)
        return torch.where(x == 0, torch.ones_like(x), torch.sin(turn) / turn)

    return torch.where(at.abs() < 3, sinc(at) * sinc(at / 3), torch.zeros_like(at))


def _at_scale(view: Tensor, scale: float) -> Tensor:
    """As `insclr.data.views.at_scale`: bilinear, not antialiased."""
    if scale == 1:
        return view
    rows, columns = (_linear(view.shape[axis], scale) for axis in (2, 3))
    return rows @ view @ columns.T


def _linear(side: Tensor | int, scale: float) -> Tensor:
    whole = number(side)
    size = torch.clamp(torch.floor(whole * scale + 1e-6), min=1)
    factor = torch.clamp(1 / whole, min=scale)
    centres = torch.clamp((_range(size) + 0.5) / factor - 0.5, min=0)
    centres = torch.minimum(centres, whole - 1)
    return torch.clamp(1 - (_range(whole)[None] - centres[:, None]).abs(), min=0)
