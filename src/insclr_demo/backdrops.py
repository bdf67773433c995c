"""Walls, floors and table tops, drawn at random for every photo."""

import colorsys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from insclr_demo.pen import Colour, mix

SIDE = 256  # pixels of a backdrop's square

Backdrop = Callable[[np.random.Generator], Image.Image]


def random_backdrop(rng: np.random.Generator) -> Image.Image:
    """A square of some material in some colour."""
    return _MATERIALS[int(rng.integers(len(_MATERIALS)))](rng)


def random_room(rng: np.random.Generator) -> Image.Image:
    """What stands far behind the things: a material, or a room out of focus."""
    return _blurred_room(rng) if rng.random() < 0.4 else random_backdrop(rng)


def random_colour(rng: np.random.Generator, saturation: float = 0.16, value: float = 0.7) -> Colour:
    """A colour around the given strength and brightness."""
    strength = float(np.clip(rng.normal(saturation, 0.1), 0, 0.8))
    brightness = float(np.clip(rng.normal(value, 0.15), 0.2, 0.97))
    red, green, blue = colorsys.hsv_to_rgb(float(rng.random()), strength, brightness)
    return round(red * 255), round(green * 255), round(blue * 255)


def _noise(rng: np.random.Generator, *cells: tuple[int, int]) -> NDArray[np.float32]:
    """Smooth noise around 0 (SIDE, SIDE): the sum of random grids of the given numbers of cells, enlarged."""
    total = np.zeros((SIDE, SIDE), np.float32)
    for strength, (across, down) in enumerate(cells, start=1):
        grid = Image.fromarray(rng.random((down, across), np.float32) - np.float32(0.5))
        total += np.asarray(grid.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) / strength
    return total


def _tint(colour: Colour, level: NDArray[np.float32]) -> Image.Image:
    """The colour made lighter and darker by `level` (SIDE, SIDE) around 1."""
    return Image.fromarray(np.clip(level[..., None] * np.array(colour, np.float32), 0, 255).astype(np.uint8))


def _wood(rng: np.random.Generator) -> Image.Image:
    planks = int(rng.integers(3, 9))
    brown: Colour = mix((150, 98, 52), random_colour(rng, 0.35), float(rng.uniform(0, 0.6)))
    level = 1 + 0.35 * _noise(rng, (3, 40), (6, 120)) + 0.08 * _noise(rng, (4, 4))
    tone = rng.uniform(0.8, 1.12, planks).astype(np.float32)
    rows = np.arange(SIDE) * planks // SIDE
    level *= tone[rows][:, None]
    level[np.flatnonzero(np.diff(rows))] *= 0.45
    return _tint(brown, level).rotate(90 * int(rng.integers(2)))


def _brick(rng: np.random.Generator) -> Image.Image:
    return _lay_bricks(rng, rows=int(rng.integers(8, 15)), aspect=2.2, stagger=0.5)


def _tiles(rng: np.random.Generator) -> Image.Image:
    return _lay_bricks(
        rng, rows=int(rng.integers(4, 11)), aspect=float(rng.choice((1.0, 1.0, 2.0))), stagger=0.0
    )


def _lay_bricks(rng: np.random.Generator, rows: int, aspect: float, stagger: float) -> Image.Image:
    """Rows of bricks or tiles, each a little different, with joints between."""
    colour, joint = random_colour(rng), random_colour(rng, 0.1, 0.7)
    varied = float(rng.uniform(0.02, 0.16))
    square = Image.new("RGB", (SIDE, SIDE), joint)
    draw = ImageDraw.Draw(square)
    height, gap = SIDE / rows, float(rng.uniform(1, 3))
    for row in range(rows):
        x = -height * aspect * (stagger if row % 2 else 0)
        while x < SIDE:
            level = 1 + float(rng.normal(0, varied))
            red, green, blue = (min(255, max(0, round(value * level))) for value in colour)
            draw.rectangle(
                (x + gap, row * height + gap, x + height * aspect, (row + 1) * height),
                fill=(red, green, blue),
            )
            x += height * aspect
    grain = 1 + 0.14 * _noise(rng, (64, 64), (128, 128))
    return Image.fromarray(np.clip(np.asarray(square) * grain[..., None], 0, 255).astype(np.uint8))


def _plaster(rng: np.random.Generator) -> Image.Image:
    return _tint(random_colour(rng, 0.3, 0.7), 1 + 0.16 * _noise(rng, (3, 3), (20, 20), (120, 120)))


def _stone(rng: np.random.Generator) -> Image.Image:
    veins = np.abs(np.sin(9 * _noise(rng, (4, 4), (9, 9), (24, 24)))) ** 0.35
    return _tint(random_colour(rng, 0.15, 0.8), (0.72 + 0.3 * veins).astype(np.float32))


def _cloth(rng: np.random.Generator) -> Image.Image:
    first, second = random_colour(rng, 0.3), random_colour(rng, 0.1, 0.9)
    count = int(rng.integers(4, 14))
    stripe = (np.arange(SIDE) * count // SIDE % 2).astype(np.float32)
    share = stripe[:, None] if rng.random() < 0.4 else (stripe[:, None] + stripe) / 2
    weave = 1 + 0.1 * _noise(rng, (128, 128))
    blend = share[..., None] * np.array(first, np.float32) + (1 - share[..., None]) * np.array(
        second, np.float32
    )
    level = np.broadcast_to(blend, (SIDE, SIDE, 3)) * weave[..., None]
    return Image.fromarray(np.clip(level, 0, 255).astype(np.uint8))


def _chips(rng: np.random.Generator) -> Image.Image:
    square = Image.new("RGB", (SIDE, SIDE), random_colour(rng, 0.2))
    draw = ImageDraw.Draw(square)
    colours = [random_colour(rng) for _ in range(4)]
    places, radii = rng.uniform(0, SIDE, (260, 2)), rng.uniform(1.5, 9, (260, 2))
    for number, ((x, y), (a, b)) in enumerate(zip(places, radii, strict=True)):
        draw.ellipse((x - a, y - b, x + a, y + b), fill=colours[number % 4])
    return square


def _grass(rng: np.random.Generator) -> Image.Image:
    green = mix((86, 118, 62), random_colour(rng), 0.3)
    return _tint(green, 1 + 0.6 * _noise(rng, (120, 40), (200, 60)) + 0.3 * _noise(rng, (6, 6)))


def _blurred_room(rng: np.random.Generator) -> Image.Image:
    """Soft lights and coloured blocks out of focus."""
    room = Image.new("RGB", (SIDE // 2, SIDE // 2), random_colour(rng, 0.4, 0.45))
    draw = ImageDraw.Draw(room)
    for _ in range(int(rng.integers(6, 16))):
        x, y = rng.uniform(0, SIDE / 2, 2)
        width, height = rng.uniform(5, 40, 2)
        draw.rectangle((x, y, x + width, y + height), fill=random_colour(rng))
    room = room.filter(ImageFilter.GaussianBlur(float(rng.uniform(2, 6))))
    lights = ImageDraw.Draw(room)
    for _ in range(int(rng.integers(0, 12))):
        x, y, radius = float(rng.uniform(0, 128)), float(rng.uniform(0, 128)), float(rng.uniform(2, 7))
        lights.circle((x, y), radius, fill=random_colour(rng, 0.3, 0.9))
    return room.filter(ImageFilter.GaussianBlur(1.2)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


_MATERIALS: tuple[Backdrop, ...] = (
    _plaster, _plaster, _plaster, _wood, _wood, _stone, _stone, _brick, _tiles, _cloth, _chips, _grass,
)  # fmt: skip
