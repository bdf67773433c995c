"""The two forms in which an image enters the network: plain and augmented (paper, implementation details).

Views are uint8 tensors: normalising belongs to the network, which knows its own mean and deviation. They are
resized by torch's uint8 kernel, which agrees with Pillow's to a grey level or two at a third of the time.
"""

import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from insclr.data.pixels import Fit

# After so many shapes that do not fit into the image the largest one that does is taken.
_ATTEMPTS = 10


def to_pixels(image: Image.Image) -> Tensor:
    """The image as uint8 (3, H, W), colours side by side in memory; convert once to make several views."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def plain_view(image: Image.Image | Tensor, size: int, fit: Fit = "square") -> Tensor:
    """The whole image, only resized (bicubic, antialiased): uint8 (3, H, W).

    "square" squashes it to size x size, so that views stack into a batch; "longest" keeps the aspect and
    gives the longest side `size`. Small images are enlarged.
    """
    pixels = to_pixels(image) if isinstance(image, Image.Image) else image
    _, height, width = pixels.shape
    if fit == "square":
        return resized(pixels, size, size)
    scale = size / max(height, width)
    return resized(pixels, max(1, round(height * scale)), max(1, round(width * scale)))


def at_scale(views: Tensor, scale: float) -> Tensor:
    """Views (B, 3, H, W) of scale 1 at another scale: bilinear, not antialiased, as cnnimageretrieval does.

    Scale 1 gives the views themselves, every other one float32 pixels.
    """
    if scale == 1:
        return views
    # The smallest view keeps a pixel: torch rounds sizes down.
    factors = tuple(max(scale, (1 + 1e-9) / side) for side in views.shape[-2:])
    return functional.interpolate(views.float(), scale_factor=factors, mode="bilinear", align_corners=False)


def augmented_view(
    image: Image.Image | Tensor,
    size: int,
    generator: torch.Generator,
    scale: tuple[float, float] = (0.4, 1.0),
    ratio: tuple[float, float] = (0.75, 1.33),
    flip: float = 0.5,
) -> Tensor:
    """A random part of the image, resized and perhaps mirrored: uint8 (3, size, size).

    All chance comes from `generator`, of which every call takes the same number of draws.
    """
    pixels = to_pixels(image) if isinstance(image, Image.Image) else image
    _, height, width = pixels.shape
    mirrored = float(torch.rand((), generator=generator)) < flip
    left, top, right, bottom = random_box(width, height, generator, scale, ratio)
    view = resized(pixels[:, top:bottom, left:right], size, size)
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


def resized(pixels: Tensor, height: int, width: int) -> Tensor:
    """Bicubic, antialiased resize of uint8 (3, H, W) to (3, height, width)."""
    if pixels.shape[1:] == (height, width):
        return pixels.clone()
    target = (height, width)
    return functional.interpolate(pixels[None], size=target, mode="bicubic", antialias=True)[0]


def _whole_pixels(left: float, top: float, width: float, height: float) -> tuple[int, int, int, int]:
    x, y = round(left), round(top)
    return x, y, max(x + 1, round(left + width)), max(y + 1, round(top + height))
