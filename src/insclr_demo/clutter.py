"""Busy photos: a thing small among many others, and the box around it."""

import numpy as np
from PIL import Image, ImageFilter

from insclr_demo import backdrops
from insclr_demo.photo import develop
from insclr_demo.scene import Distractor, cut_out
from insclr_demo.solids import Solid

PixelBox = tuple[int, int, int, int]  # left, top, right, bottom

SHARES = (0.15, 0.4)  # longest side of the thing, of the photo's
_DISTRACTORS = (7, 13)
_DISTRACTOR_SHARES = (0.15, 0.5)
_IN_FRONT = 3  # distractors added after the thing; they do not touch its box


def busy_photo(
    solid: Solid, distractor: Distractor, size: int, rng: np.random.Generator
) -> tuple[Image.Image, PixelBox]:
    """A photo of `size` x `size` pixels full of distractors with the solid among them, and where it is."""
    picture = backdrops.random_room(rng).resize((size, size), Image.Resampling.BICUBIC).convert("RGBA")
    others = int(rng.integers(*_DISTRACTORS))
    for _ in range(others):
        _paste(picture, _other(distractor, size, rng), rng)
    longest = round(float(rng.uniform(*SHARES)) * size)
    box = _paste(picture, cut_out(solid, longest, rng), rng)
    for _ in range(_IN_FRONT):
        _paste(picture, _other(distractor, size, rng), rng, free=box)
    return develop(picture.convert("RGB"), rng), box


def _other(distractor: Distractor, size: int, rng: np.random.Generator) -> Image.Image:
    longest = round(float(rng.uniform(*_DISTRACTOR_SHARES)) * size)
    return cut_out(distractor(bool(rng.random() < 0.4), rng), longest, rng)


def _paste(
    picture: Image.Image, cut: Image.Image, rng: np.random.Generator, free: PixelBox | None = None
) -> PixelBox:
    """Put the cut-out somewhere with a soft shadow under it; not at all where it would touch `free`."""
    left = int(rng.integers(0, picture.width - cut.width + 1))
    top = int(rng.integers(0, picture.height - cut.height + 1))
    box = left, top, left + cut.width, top + cut.height
    if free is not None and _touch(box, free):
        return box
    soft = max(2, cut.width // 25)
    shadow = Image.new("RGBA", picture.size)
    shadow.paste((0, 0, 0, 110), (left + soft // 2, top + soft), cut.getchannel("A"))
    picture.alpha_composite(shadow.filter(ImageFilter.GaussianBlur(soft)))
    picture.alpha_composite(cut, (left, top))
    return box


def _touch(one: PixelBox, other: PixelBox) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
