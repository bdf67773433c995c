"""Augmented views for training: a random crop, and what else another package does to it.

All chance comes from a generator, of which every call takes the same number of draws, so that a view depends on its
place in a run alone. Written for uint8 tensors: torch's uint8 kernel resizes a crop in a third of Pillow's time.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from insclr.recipe.tables import find_entry_points

# View `number` of an image, uint8 (3, H, W), with other colours.
Recolour = Callable[[Tensor, int, torch.Generator], Tensor]
_ATTEMPTS = 10  # after so many shapes that do not fit into the image, the largest one that fits is taken


def augmented_view(
    pixels: Tensor,
    size: int,
    generator: torch.Generator,
    scale: tuple[float, float] = (0.4, 1.0),
    ratio: tuple[float, float] = (0.75, 1.33),
    flip: float = 0.5,
) -> Tensor:
    """A random part of an image (3, H, W), resized and perhaps mirrored: uint8 (3, size, size).

    All chance comes from `generator`, of which every call takes the same number of draws.
    """
    _, height, width = pixels.shape
    mirrored = float(torch.rand((), generator=generator)) < flip
    left, top, right, bottom = random_box(width, height, generator, scale, ratio)
    part = pixels[None, :, top:bottom, left:right]
    view = functional.interpolate(part, size=(size, size), mode="bicubic", antialias=True)[0]
    return view.flip(2) if mirrored else view


def random_box(
    width: int,
    height: int,
    generator: torch.Generator,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[int, int, int, int]:
    """Where a random resized crop is taken: left, top, right, bottom in pixels.

    Area uniform in `scale` times the image's, width / height log-uniform in `ratio`, place uniform: the
    distribution of torchvision's RandomResizedCrop, which can draw from the global generator only. The same
    draws take the same part of an image whatever the size it was decoded at.
    """
    low, high = (math.log(r) for r in ratio)
    for area, shape, x, y in torch.rand(_ATTEMPTS, 4, generator=generator).tolist():
        part = width * height * (scale[0] + area * (scale[1] - scale[0]))
        aspect = math.exp(low + shape * (high - low))
        w, h = math.sqrt(part * aspect), math.sqrt(part / aspect)
        if w <= width and h <= height:
            return _whole_pixels(x * (width - w), y * (height - h), w, h)
    aspect = min(max(width / height, ratio[0]), ratio[1])
    w, h = min(float(width), height * aspect), min(float(height), width / aspect)
    return _whole_pixels((width - w) / 2, (height - h) / 2, w, h)


def _whole_pixels(left: float, top: float, width: float, height: float) -> tuple[int, int, int, int]:
    x, y = round(left), round(top)
    return x, y, max(x + 1, round(left + width)), max(y + 1, round(top + height))


@cache
def find_augmentation(name: str) -> Recolour | None:
    """What is done to the colours of a view; nothing in the paper."""
    if name == "paper":
        return None
    found: Recolour = find_entry_points("insclr.augmentations")[name].load()
    return found
