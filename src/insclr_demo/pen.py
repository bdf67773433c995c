"""A pen over a Pillow canvas: shapes in the unit square of a box, and lettering that fills a box."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, width, height


def mix(first: Colour, second: Colour, share: float) -> Colour:
    """The colour `share` of the way from `first` to `second`."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def on_circle(centre: Point, radius: float, turns: float) -> Point:
    """The point of a circle after so many `turns` clockwise from the top."""
    angle = 2 * math.pi * turns
    return centre[0] + radius * math.sin(angle), centre[1] - radius * math.cos(angle)


@lru_cache(maxsize=8)
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)  # the embedded scalable one
    return font


@dataclass(frozen=True)
class Voice:
    """How a brand writes: weight of the strokes, slant, space between letters, capitals."""

    weight: int = 0
    slant: float = 0.0
    tracking: int = 0
    capitals: bool = False


class Pen:
    """Draws on a part of a canvas; (0, 0) and (1, 1) are the corners of its box."""

    def __init__(self, canvas: Image.Image, box: Box | None = None) -> None:
        self.canvas = canvas
        whole: Box = (0.0, 0.0, float(canvas.width), float(canvas.height))
        self.left, self.top, self.width, self.height = box or whole
        self._draw = ImageDraw.Draw(canvas)

    def inside(self, box: Box) -> "Pen":
        """A pen for a box given in this pen's own units."""
        left, top = self._at((box[0], box[1]))
        return Pen(self.canvas, (left, top, box[2] * self.width, box[3] * self.height))

    def square(self, centre: Point, side: float) -> "Pen":
        """A pen for a square box whose side is a share of this box's shorter side."""
        pixels = side * min(self.width, self.height)
        middle = self._at(centre)
        return Pen(self.canvas, (middle[0] - pixels / 2, middle[1] - pixels / 2, pixels, pixels))

    def _at(self, point: Point) -> Point:
        return self.left + point[0] * self.width, self.top + point[1] * self.height

    def _length(self, share: float) -> float:
        return share * min(self.width, self.height)

    def rectangle(self, box: Box, fill: Colour, radius: float = 0.0) -> None:
        """A rectangle, with round corners when `radius` is given."""
        start, end = self._at((box[0], box[1])), self._at((box[0] + box[2], box[1] + box[3]))
        self._draw.rounded_rectangle((*start, *end), self._length(radius), fill=fill)

    def fill(self, colour: Colour) -> None:
        """Paint the whole box."""
        self.rectangle((0, 0, 1, 1), colour)

    def polygon(self, points: Sequence[Point], fill: Colour) -> None:
        """A filled polygon."""
        self._draw.polygon([self._at(point) for point in points], fill=fill)

    def line(self, points: Sequence[Point], fill: Colour, width: float) -> None:
        """A line with round joints; `width` is a share of the box's shorter side."""
        pixels = max(1, round(self._length(width)))
        self._draw.line([self._at(point) for point in points], fill=fill, width=pixels, joint="curve")

    def circle(self, centre: Point, radius: float, fill: Colour) -> None:
        """A true circle, its radius a share of the box's shorter side."""
        self._draw.circle(self._at(centre), self._length(radius), fill=fill)

    def ring(self, centre: Point, radius: float, fill: Colour, width: float) -> None:
        """The outline of a circle."""
        pixels = max(1, round(self._length(width)))
        self._draw.circle(self._at(centre), self._length(radius), outline=fill, width=pixels)

    def pie(self, centre: Point, radius: float, turns: tuple[float, float], fill: Colour) -> None:
        """A slice of a circle between two angles, in turns clockwise from the top."""
        (x, y), r = self._at(centre), self._length(radius)
        self._draw.pieslice((x - r, y - r, x + r, y + r), turns[0] * 360 - 90, turns[1] * 360 - 90, fill=fill)

    def ellipse(self, box: Box, fill: Colour) -> None:
        """An ellipse that fills a box."""
        self._draw.ellipse(
            (*self._at((box[0], box[1])), *self._at((box[0] + box[2], box[1] + box[3]))), fill=fill
        )

    def letter(
        self, text: str, box: Box, fill: Colour, voice: Voice, turn: int = 0, stretch: float = 1.6
    ) -> None:
        """Write `text` as large as fits the box, stretched at most `stretch` times, `turn` degrees round."""
        mask = _lettering(text, voice).rotate(turn, expand=True)
        across, down = box[2] * self.width / mask.width, box[3] * self.height / mask.height
        across, down = min(across, down * stretch), min(down, across * stretch)
        size = max(1, round(mask.width * across)), max(1, round(mask.height * down))
        middle = self._at((box[0] + box[2] / 2, box[1] + box[3] / 2))
        corner = round(middle[0] - size[0] / 2), round(middle[1] - size[1] / 2)
        self.canvas.paste(fill, corner, mask.resize(size, Image.Resampling.BICUBIC))


@lru_cache(maxsize=256)
def _lettering(text: str, voice: Voice) -> Image.Image:
    """The text as a mask cut to its ink."""
    text = text.upper() if voice.capitals else text
    font, edge = _font(72), 12 + voice.weight
    length = sum(font.getlength(character) + voice.tracking for character in text)
    mask = Image.new("L", (round(length) + 2 * edge + 40, 130))
    draw, x = ImageDraw.Draw(mask), float(edge)
    for character in text:
        draw.text((x, edge), character, fill=255, font=font, stroke_width=voice.weight)
        x += font.getlength(character) + voice.tracking + voice.weight
    if voice.slant:
        coefficients = (1, voice.slant, -voice.slant * 65, 0, 1, 0)
        mask = mask.transform(mask.size, Image.Transform.AFFINE, coefficients, Image.Resampling.BICUBIC)
    return mask.crop(mask.getbbox())
