"""The colours of the published image-level methods' views; each operation follows torchvision's definition."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

_PUBLISHED_SIDE = 224  # the side for which the strength of the blur was chosen
_GREY = torch.tensor([0.299, 0.587, 0.114])


@dataclass(frozen=True)
class Photometry:
    """What is done to the colours of a view, and how likely."""

    brightness: float  # factors are drawn from 1 - value ... 1 + value
    contrast: float
    saturation: float
    hue: float  # largest shift, as a share of the colour circle
    blur: float  # probability; sigma from 0.1 to 2 pixels of a view of 224
    solarise: float = 0.0
    jitter: float = 0.8  # probability of all four changes of colour, in random order
    grey: float = 0.2


# One for each view of a pair; a method with more cached views than that starts over.
PUBLISHED: dict[str, tuple[Photometry, ...]] = {
    "simclr": (Photometry(0.8, 0.8, 0.8, 0.2, blur=0.5),),
    "moco-v2": (Photometry(0.4, 0.4, 0.4, 0.1, blur=0.5),),
    "byol": (
        Photometry(0.4, 0.4, 0.2, 0.1, blur=1.0),
        Photometry(0.4, 0.4, 0.2, 0.1, blur=0.1, solarise=0.2),
    ),
    "swav": (Photometry(0.8, 0.8, 0.8, 0.2, blur=0.5),),
    # As in OpenSelfSup, without its rotation by two degrees; Caron et al. (2018) have crops and flips alone.
    "deepcluster": (Photometry(0.4, 0.4, 1.0, 0.5, blur=0.0, jitter=1.0),),
}


def recolour(kinds: tuple[Photometry, ...], view: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """View `number` of an image, uint8 (3, H, W), with the colours that an augmentation gives it."""
    kind = kinds[number % len(kinds)]
    chance, factors = torch.rand(4, generator=generator).tolist(), torch.rand(5, generator=generator).tolist()
    order = torch.randperm(4, generator=generator).tolist()
    pixels = view.float() / 255
    if chance[0] < kind.jitter:
        pixels = _jitter(pixels, kind, factors, order)
    if chance[1] < kind.grey:
        pixels = _grey(pixels).expand_as(pixels)
    if chance[2] < kind.blur:
        sigma = (0.1 + 1.9 * factors[4]) * view.shape[1] / _PUBLISHED_SIDE
        pixels = blur(pixels, sigma)
    if chance[3] < kind.solarise:
        pixels = torch.where(pixels >= 128 / 255, 1 - pixels, pixels)
    return (pixels * 255).round().clamp(0, 255).to(torch.uint8)


def shifted_hue(pixels: Tensor, shift: float) -> Tensor:
    """Pixels 0..1 (3, H, W) with every hue moved by `shift` of the colour circle; brightness and purity stay."""
    red, green, blue = pixels
    value, purity = pixels.amax(0), pixels.amax(0) - pixels.amin(0)
    safe = purity.clamp(min=1e-8)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = (hue + 6 * shift) % 6  # sixths of the circle, red at 0
    # Each channel falls from its own hue: full within a sixth of it, none beyond two.
    far = torch.stack([(hue + place) % 6 for place in (5, 3, 1)])  # (3, H, W)
    return value - purity * torch.minimum(far, 4 - far).clamp(0, 1)


def blur(pixels: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of pixels (3, H, W), reflected at the borders."""
    reach = min(max(1, math.ceil(3 * sigma)), min(pixels.shape[1:]) - 1)
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
    weights = (weights / weights.sum())[None, None]
    padded = functional.pad(pixels[:, None], (reach, reach, reach, reach), mode="reflect")
    return functional.conv2d(functional.conv2d(padded, weights[..., None]), weights[:, :, None])[:, 0]


def _jitter(pixels: Tensor, kind: Photometry, factors: list[float], order: list[int]) -> Tensor:
    """Brightness, contrast, saturation and hue changed in this order, each by its factor 0..1 of its range."""
    ranges = (kind.brightness, kind.contrast, kind.saturation, kind.hue)
    drawn = [reach * (2 * factor - 1) for reach, factor in zip(ranges, factors, strict=False)]
    for change in order:
        if change == 3:
            pixels = shifted_hue(pixels, drawn[3])
            continue
        black = torch.zeros(())
        towards = (black, _grey(pixels).mean(), _grey(pixels))[change]
        pixels = torch.lerp(towards.expand_as(pixels), pixels, 1 + drawn[change]).clamp(0, 1)
    return pixels


def _grey(pixels: Tensor) -> Tensor:
    return (pixels * _GREY[:, None, None]).sum(0, keepdim=True)  # (1, H, W)


SIMCLR, MOCO_V2, BYOL, SWAV, DEEPCLUSTER = (partial(recolour, kinds) for kinds in PUBLISHED.values())
