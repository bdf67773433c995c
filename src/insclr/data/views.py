"""The two forms in which a picture enters the network: plain and augmented (paper, implementation details).

Views are uint8 tensors: normalising belongs to the network, which knows its own mean and deviation.
"""

import math
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from insclr.data.decode import Box

Fit = Literal["square", "longest"]

# After so many shapes that do not fit into the picture the largest one that does is taken.
_ATTEMPTS = 10


def plain_view(image: Image.Image, size: int, fit: Fit = "square") -> Tensor:
    """The whole picture, only resized (bicubic, antialiased): uint8 (3, H, W).

    "square" squashes it to size x size, so that views stack into a batch; "longest" keeps the aspect and
    gives the longest side `size`. Small pictures are enlarged.
    """
    if fit == "square":
        target = (size, size)
    else:
        scale = size / max(image.size)
        target = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return _to_tensor(np.asarray(image.resize(target, Image.Resampling.BICUBIC)))


def augmented_view(
    image: Image.Image,
    size: int,
    generator: torch.Generator,
    scale: tuple[float, float] = (0.4, 1.0),
    ratio: tuple[float, float] = (0.75, 1.33),
    flip: float = 0.5,
) -> Tensor:
    """A random part of the picture, resized and perhaps mirrored: uint8 (3, size, size).

    All chance comes from `generator`, of which every call takes the same number of draws.
    """
    mirrored = float(torch.rand((), generator=generator)) < flip
    box = random_box(image.width, image.height, generator, scale, ratio)
    # Crop and resize in one call: the crop is never copied, and its edges need not fall on whole pixels.
    pixels = np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box=box))  # (size, size, 3)
    return _to_tensor(pixels[:, ::-1] if mirrored else pixels)


def random_box(
    width: int,
    height: int,
    generator: torch.Generator,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Box:
    """Where a random resized crop is taken: left, top, right, bottom, in fractions of pixels.

    Area uniform in `scale` times the picture's, width / height log-uniform in `ratio`, place uniform: the
    distribution of the usual random resized crop, whose library versions draw from the global generator and
    round to whole pixels. Without rounding, a picture decoded at half size gives the same part.
    """
    low, high = (math.log(r) for r in ratio)
    for area, shape, x, y in torch.rand(_ATTEMPTS, 4, generator=generator).tolist():
        part = width * height * (scale[0] + area * (scale[1] - scale[0]))
        aspect = math.exp(low + shape * (high - low))
        w, h = math.sqrt(part * aspect), math.sqrt(part / aspect)
        if w <= width and h <= height:
            left, top = x * (width - w), y * (height - h)
            # The sum may pass the edge by a rounding error, which the resizer refuses.
            return left, top, min(left + w, width), min(top + h, height)
    aspect = min(max(width / height, ratio[0]), ratio[1])
    w, h = min(float(width), height * aspect), min(float(height), width / aspect)
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, min(left + w, width), min(top + h, height)


def _to_tensor(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())  # (3, H, W)
