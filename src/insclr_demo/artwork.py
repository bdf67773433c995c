"""The prints: a flat picture for every face of a thing, from its brand, title, inks and layout."""

from collections.abc import Callable

import numpy as np
from PIL import Image

from insclr_demo.catalogue import Thing
from insclr_demo.illustrations import PICTURES, Inks
from insclr_demo.patterns import PATTERNS
from insclr_demo.pen import Box, Colour, Pen, Voice, mix, on_circle

_PLAIN = Voice()
_SMOOTH = 2  # prints are drawn this much larger and shrunk, for smooth edges

Layout = Callable[[Pen, Thing], None]


def front(thing: Thing, size: tuple[int, int]) -> Image.Image:
    """The face that carries the design."""
    canvas = _canvas(size, thing.inks.ground)
    _LAYOUTS[thing.layout % len(_LAYOUTS)](Pen(canvas), thing)
    return canvas.resize(size, Image.Resampling.LANCZOS)


def wrap(thing: Thing, size: tuple[int, int]) -> Image.Image:
    """A label once round a can or bottle: the design in the middle, small print behind."""
    width, height = size
    canvas = _canvas(size, thing.inks.ground)
    pen = Pen(canvas)
    if thing.style % 2:
        _draw_pattern(pen, (0, 0, 1, 1), thing)
    pen.rectangle((0, 0, 1, 0.05), thing.inks.accent)
    pen.rectangle((0, 0.95, 1, 0.05), thing.inks.accent)
    design = front(thing, (round(width * 0.4) * _SMOOTH, round(height * 0.9) * _SMOOTH))
    canvas.paste(design, ((canvas.width - design.width) // 2, (canvas.height - design.height) // 2))
    for left in (0.02, 0.82):
        _small_print(pen.inside((left, 0.14, 0.16, 0.72)), thing)
    return canvas.resize(size, Image.Resampling.LANCZOS)


def mug_wrap(thing: Thing, size: tuple[int, int]) -> Image.Image:
    """A mug's glaze: the picture on both sides, the title beneath, or a pattern all over."""
    canvas = _canvas(size, thing.inks.ground)
    pen = Pen(canvas)
    if thing.style % 2:
        _draw_pattern(pen, (0, 0, 1, 1), thing)
    pen.rectangle((0, 0, 1, 0.06), thing.inks.dark)
    inks, ink = thing.inks, _readable(thing.inks)
    if thing.style % 2:
        inks, ink = _on(inks, inks.light), inks.dark
    for middle in (0.25, 0.75):
        if thing.style % 2:
            pen.circle((middle, 0.5), 0.43, thing.inks.light)
            pen.ring((middle, 0.5), 0.43, thing.inks.dark, 0.02)
        PICTURES[thing.picture](pen.square((middle, 0.42), 0.5), inks)
        pen.letter(thing.title, (middle - 0.11, 0.72, 0.22, 0.12), ink, thing.voice)
    return canvas.resize(size, Image.Resampling.LANCZOS)


def lid(thing: Thing, size: int) -> Image.Image:
    """A round lid with the design in its middle."""
    canvas = _canvas((size, size), thing.inks.ground)
    pen, inks = Pen(canvas), thing.inks
    if thing.style % 2:
        for ray in range(0, 24, 2):
            pen.pie((0.5, 0.5), 0.8, (ray / 24, (ray + 1) / 24), inks.accent)
    else:
        pen.circle((0.5, 0.5), 0.46, inks.accent)
        pen.circle((0.5, 0.5), 0.43, inks.ground)
    pen.circle((0.5, 0.47), 0.27, inks.light)
    PICTURES[thing.picture](pen.square((0.5, 0.47), 0.38), _on(inks, inks.light))
    pen.letter(thing.brand, (0.25, 0.07, 0.5, 0.11), _readable(inks), thing.voice)
    pen.rectangle((0.2, 0.74, 0.6, 0.15), inks.dark, radius=0.04)
    pen.letter(thing.title, (0.25, 0.765, 0.5, 0.1), inks.light, thing.voice)
    return canvas.resize((size, size), Image.Resampling.LANCZOS)


def side(thing: Thing, size: tuple[int, int]) -> Image.Image:
    """A carton's side: the small print under the brand."""
    canvas = _canvas(size, thing.inks.ground)
    pen = Pen(canvas)
    pen.rectangle((0, 0, 1, 0.2), thing.inks.accent)
    pen.letter(thing.brand, (0.1, 0.05, 0.8, 0.1), _over(thing.inks, thing.inks.accent), thing.voice)
    _small_print(pen.inside((0.12, 0.27, 0.76, 0.64)), thing)
    return canvas.resize(size, Image.Resampling.LANCZOS)


def spine(thing: Thing, size: tuple[int, int]) -> Image.Image:
    """A book's spine."""
    canvas = _canvas(size, mix(thing.inks.ground, thing.inks.dark, 0.15))
    pen = Pen(canvas)
    pen.letter(thing.title, (0.2, 0.08, 0.6, 0.6), _readable(thing.inks), thing.voice, turn=-90)
    pen.rectangle((0, 0.78, 1, 0.02), thing.inks.accent)
    pen.square((0.5, 0.88), 0.6).circle((0.5, 0.5), 0.5, thing.inks.accent)
    return canvas.resize(size, Image.Resampling.LANCZOS)


def top(thing: Thing, size: tuple[int, int]) -> Image.Image:
    """A carton's top: the brand on a flap."""
    canvas = _canvas(size, mix(thing.inks.ground, thing.inks.accent, 0.25))
    pen = Pen(canvas)
    pen.rectangle((0, 0.48, 1, 0.04), mix(thing.inks.ground, thing.inks.dark, 0.3))
    pen.letter(thing.brand, (0.2, 0.56, 0.6, 0.34), thing.inks.dark, thing.voice)
    return canvas.resize(size, Image.Resampling.LANCZOS)


def board(thing: Thing, size: tuple[int, int]) -> Image.Image:
    """A shop sign or notice, cut to its outline."""
    canvas = _canvas(size, thing.inks.ground)
    pen, inks = Pen(canvas), thing.inks
    outline = Image.new("L", canvas.size)
    shape = thing.style % 3
    cut = Pen(outline.convert("RGB"))
    white: Colour = (255, 255, 255)
    if shape == 0:
        cut.circle((0.5, 0.5), 0.5, white)
        pen.circle((0.5, 0.5), 0.47, inks.light)
        pen.circle((0.5, 0.5), 0.44, inks.ground)
    else:
        radius = 0.12 if shape == 1 else 0.02
        cut.rectangle((0, 0, 1, 1), white, radius=radius)
        pen.rectangle((0.025, 0.03, 0.95, 0.94), inks.light, radius=radius)
        pen.rectangle((0.045, 0.055, 0.91, 0.89), inks.ground, radius=radius)
    ink = _readable(inks)
    PICTURES[thing.picture](pen.square((0.5, 0.34), 0.42), inks)
    pen.letter(thing.brand, (0.17, 0.6, 0.66, 0.15), ink, thing.voice)
    pen.letter(thing.title, (0.25, 0.79, 0.5, 0.08), inks.accent, _PLAIN)
    canvas.putalpha(cut.canvas.convert("L"))
    return canvas.resize(size, Image.Resampling.LANCZOS)


def _canvas(size: tuple[int, int], ground: Colour) -> Image.Image:
    return Image.new("RGB", (size[0] * _SMOOTH, size[1] * _SMOOTH), ground)


def _luminance(colour: Colour) -> float:
    return 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2]


def _over(inks: Inks, ground: Colour) -> Colour:
    """The ink to write with on a ground: dark on light ones, light on dark ones."""
    return inks.dark if _luminance(ground) > 120 else inks.light


def _readable(inks: Inks) -> Colour:
    return _over(inks, inks.ground)


def _on(inks: Inks, ground: Colour) -> Inks:
    """The same inks for a picture on another ground, so that what is drawn light does not vanish."""
    return Inks(ground, inks.dark, inks.accent, inks.second, mix(inks.ground, inks.light, 0.2))


def _draw_pattern(pen: Pen, box: Box, thing: Thing) -> None:
    """Fill a box with the thing's pattern, on a canvas of its own so that nothing sticks out."""
    size = max(1, round(box[2] * pen.width)), max(1, round(box[3] * pen.height))
    patch = Image.new("RGB", size, thing.inks.ground)
    PATTERNS[thing.pattern](Pen(patch), thing.inks, np.random.default_rng(thing.style))
    pen.canvas.paste(patch, (round(pen.left + box[0] * pen.width), round(pen.top + box[1] * pen.height)))


def _small_print(pen: Pen, thing: Thing) -> None:
    """Lines of unreadable text and a bar code on a light panel."""
    rng = np.random.default_rng(thing.style)
    pen.rectangle((-0.05, -0.03, 1.1, 1.06), thing.inks.light)
    pen.letter(thing.title, (0.05, 0.02, 0.9, 0.12), thing.inks.dark, thing.voice)
    for line in range(8):
        length = float(rng.uniform(0.5, 1.0))
        pen.rectangle((0, 0.2 + line * 0.055, length, 0.022), mix(thing.inks.dark, thing.inks.light, 0.35))
    x = 0.1
    while x < 0.86:
        width = float(rng.uniform(0.012, 0.035))
        pen.rectangle((x, 0.74, width, 0.22), thing.inks.dark)
        x += width + float(rng.uniform(0.015, 0.04))


def _medallion(pen: Pen, thing: Thing) -> None:
    inks = thing.inks
    pen.rectangle((0, 0.74, 1, 0.26), inks.accent)
    pen.rectangle((0, 0.72, 1, 0.02), inks.dark)
    pen.circle((0.5, 0.46), 0.36, inks.light)
    pen.ring((0.5, 0.46), 0.36, inks.dark, 0.015)
    PICTURES[thing.picture](pen.square((0.5, 0.46), 0.48), _on(inks, inks.light))
    pen.letter(thing.brand, (0.1, 0.05, 0.8, 0.13), _readable(inks), thing.voice)
    pen.letter(thing.title, (0.14, 0.79, 0.72, 0.13), _over(inks, inks.accent), thing.voice)


def _frame(pen: Pen, thing: Thing) -> None:
    inks = thing.inks
    _draw_pattern(pen, (0, 0, 1, 1), thing)
    pen.rectangle((0.12, 0.1, 0.76, 0.8), inks.dark)
    pen.rectangle((0.14, 0.115, 0.72, 0.77), inks.light)
    PICTURES[thing.picture](pen.square((0.5, 0.44), 0.5), _on(inks, inks.light))
    pen.letter(thing.brand, (0.2, 0.14, 0.6, 0.09), inks.dark, thing.voice)
    pen.letter(thing.title, (0.2, 0.7, 0.6, 0.12), inks.accent, thing.voice)


def _swiss(pen: Pen, thing: Thing) -> None:
    inks = thing.inks
    pen.polygon([(0, 1), (0, 0.62), (1, 0.3), (1, 1)], inks.accent)
    pen.letter(thing.title[0], (-0.05, 0.18, 0.85, 0.62), inks.dark, Voice(weight=5), stretch=2)
    PICTURES[thing.picture](pen.square((0.72, 0.66), 0.46), inks)
    pen.letter(thing.brand, (0.07, 0.05, 0.86, 0.11), _readable(inks), thing.voice)
    pen.letter(thing.title, (0.07, 0.88, 0.86, 0.08), _over(inks, inks.accent), thing.voice)


def _landscape(pen: Pen, thing: Thing) -> None:
    inks = thing.inks
    for band in range(7):
        pen.rectangle((0, band / 10, 1, 0.11), mix(inks.second, inks.light, band / 7))
    PICTURES[thing.picture](pen.square((0.5, 0.4), 0.78), inks)
    pen.rectangle((0, 0.7, 1, 0.3), inks.ground)
    pen.rectangle((0, 0.7, 1, 0.015), inks.dark)
    pen.letter(thing.brand, (0.08, 0.745, 0.84, 0.12), _readable(inks), thing.voice)
    pen.letter(thing.title, (0.2, 0.89, 0.6, 0.07), _readable(inks), _PLAIN)


def _sunburst(pen: Pen, thing: Thing) -> None:
    inks = thing.inks
    for ray in range(0, 28, 2):
        pen.polygon(
            [(0.5, 0.5), on_circle((0.5, 0.5), 1.2, ray / 28), on_circle((0.5, 0.5), 1.2, (ray + 1) / 28)],
            mix(inks.ground, inks.accent, 0.55),
        )
    pen.circle((0.5, 0.42), 0.33, inks.ground)
    PICTURES[thing.picture](pen.square((0.5, 0.42), 0.52), inks)
    pen.polygon([(0.0, 0.72), (1.0, 0.68), (1.0, 0.83), (0.0, 0.87)], inks.dark)
    pen.letter(thing.brand, (0.12, 0.725, 0.76, 0.1), inks.light, thing.voice)
    pen.letter(thing.title, (0.2, 0.89, 0.6, 0.08), _readable(inks), thing.voice)


def _tiles(pen: Pen, thing: Thing) -> None:
    inks, rng = thing.inks, np.random.default_rng(thing.style)
    colours = (inks.accent, inks.second, inks.dark, inks.light, inks.ground)
    for row in range(4):
        for column in range(3):
            ground, ink = (colours[number] for number in rng.permutation(5)[:2])
            _tile(pen, (column / 3, row / 5, 1 / 3, 1 / 5), ground, ink, int(rng.integers(4)))
    pen.rectangle((1 / 3, 0.2, 2 / 3, 0.4), inks.light)
    PICTURES[thing.picture](
        pen.inside((1 / 3, 0.2, 2 / 3, 0.4)).square((0.5, 0.5), 0.85), _on(inks, inks.light)
    )
    pen.rectangle((0, 0.8, 1, 0.2), inks.ground)
    pen.letter(thing.brand, (0.06, 0.82, 0.88, 0.09), _readable(inks), thing.voice)
    pen.letter(thing.title, (0.06, 0.925, 0.88, 0.055), _readable(inks), _PLAIN)


def _tile(pen: Pen, box: Box, ground: Colour, ink: Colour, turn: int) -> None:
    size = round(box[2] * pen.width) + 1, round(box[3] * pen.height) + 1
    patch = Image.new("RGB", size, ground)
    corner = ((0, 0), (1, 0), (1, 1), (0, 1))[turn]
    Pen(patch).circle((float(corner[0]), float(corner[1])), 0.95, ink)
    Pen(patch).circle((float(corner[0]), float(corner[1])), 0.45, ground)
    pen.canvas.paste(patch, (round(pen.left + box[0] * pen.width), round(pen.top + box[1] * pen.height)))


def _label(pen: Pen, thing: Thing) -> None:
    inks = thing.inks
    _draw_pattern(pen, (0, 0, 1, 0.66), thing)
    pen.rectangle((0, 0.62, 1, 0.38), inks.dark)
    pen.circle((0.5, 0.6), 0.27, inks.dark)
    PICTURES[thing.picture](pen.square((0.5, 0.58), 0.4), _on_dark(inks))
    pen.rectangle((0.08, 0.06, 0.84, 0.16), inks.light, radius=0.03)
    pen.letter(thing.brand, (0.13, 0.085, 0.74, 0.11), inks.dark, thing.voice)
    pen.letter(thing.title, (0.1, 0.83, 0.8, 0.1), inks.accent, thing.voice)


def _on_dark(inks: Inks) -> Inks:
    """The same inks on the dark one."""
    return Inks(inks.dark, inks.light, inks.accent, inks.second, mix(inks.dark, inks.light, 0.85))


def _column(pen: Pen, thing: Thing) -> None:
    inks = thing.inks
    pen.rectangle((0, 0, 0.26, 1), inks.accent)
    pen.letter(thing.brand, (0.05, 0.06, 0.16, 0.88), _over(inks, inks.accent), thing.voice, turn=90)
    PICTURES[thing.picture](pen.square((0.63, 0.36), 0.62), inks)
    pen.rectangle((0.32, 0.68, 0.62, 0.012), _readable(inks))
    pen.letter(thing.title, (0.32, 0.71, 0.62, 0.13), _readable(inks), thing.voice)
    for line in range(3):
        pen.rectangle((0.32, 0.88 + 0.03 * line, 0.5 - 0.1 * line, 0.012), _readable(inks))


_LAYOUTS: tuple[Layout, ...] = (
    _medallion, _frame, _swiss, _landscape, _sunburst, _tiles, _label, _column,
)  # fmt: skip
