"""Drawn pictures with points everywhere, and photos that show one of them again."""

import numpy as np
from PIL import Image, ImageDraw, ImageFilter


def textured(seed: int, side: int = 240) -> Image.Image:
    """Blots of many sizes: points everywhere, no two alike."""
    generator = np.random.default_rng(seed)
    picture = Image.new("RGB", (side, side), (120, 120, 120))
    draw = ImageDraw.Draw(picture)
    for _ in range(160):
        x, y = generator.uniform(0, side, 2)
        a, b = generator.uniform(3, side / 10, 2)
        colour = tuple(int(value) for value in generator.integers(0, 256, 3))
        (draw.ellipse if generator.random() < 0.5 else draw.rectangle)(
            (x - a, y - b, x + a, y + b), fill=colour
        )
    return picture.filter(ImageFilter.GaussianBlur(0.7))


def placed(
    thing: Image.Image, angle: float, scale: float, at: tuple[int, int], seed: int = 99
) -> Image.Image:
    """A larger photo of something else with the thing turned, scaled and pasted into it."""
    photo = textured(seed, 480)
    small = thing.resize((round(thing.width * scale), round(thing.height * scale)), Image.Resampling.LANCZOS)
    turned = small.convert("RGBA").rotate(angle, expand=True, resample=Image.Resampling.BICUBIC)
    photo.paste(turned, at, turned)
    return photo
