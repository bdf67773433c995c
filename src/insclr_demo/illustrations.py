"""The pictures printed on the demo's things, each drawn in a unit square with the inks of one print."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from insclr_demo.pen import Colour, Pen, Point, mix, on_circle


@dataclass(frozen=True)
class Inks:
    """The colours of one print: ground, dark text, two accents, light."""

    ground: Colour
    dark: Colour
    accent: Colour
    second: Colour
    light: Colour


Picture = Callable[[Pen, Inks], None]


def _citrus(pen: Pen, inks: Inks) -> None:
    pen.circle((0.5, 0.5), 0.46, inks.accent)
    pen.circle((0.5, 0.5), 0.40, inks.light)
    for slice_ in range(8):
        pen.pie((0.5, 0.5), 0.36, (slice_ / 8 + 0.012, (slice_ + 1) / 8 - 0.012), inks.accent)
    pen.circle((0.5, 0.5), 0.05, inks.light)


def _fruit(pen: Pen, inks: Inks) -> None:
    pen.circle((0.42, 0.6), 0.3, inks.accent)
    pen.circle((0.58, 0.6), 0.3, inks.accent)
    pen.ellipse((0.24, 0.42, 0.12, 0.2), mix(inks.accent, inks.light, 0.6))
    pen.line([(0.5, 0.38), (0.52, 0.2), (0.58, 0.1)], inks.dark, 0.035)
    _leaf(pen, (0.53, 0.26), (0.85, 0.12), inks.second)


def _leaf(pen: Pen, start: Point, end: Point, fill: Colour) -> None:
    (x, y), (dx, dy) = start, (end[0] - start[0], end[1] - start[1])
    edge: list[Point] = []
    for side, steps in ((1, range(9)), (-1, range(8, -1, -1))):
        for step in steps:
            along = step / 8
            bulge = side * 0.28 * math.sin(math.pi * along)
            edge.append((x + dx * along - dy * bulge, y + dy * along + dx * bulge))
    pen.polygon(edge, fill)


def _cherries(pen: Pen, inks: Inks) -> None:
    for x, y in ((0.3, 0.7), (0.68, 0.76)):
        pen.line([(x, y), ((x + 0.56) / 2, 0.35), (0.58, 0.12)], inks.dark, 0.03)
        pen.circle((x, y), 0.19, inks.accent)
        pen.circle((x - 0.06, y - 0.06), 0.045, inks.light)
    _leaf(pen, (0.58, 0.12), (0.95, 0.28), inks.second)


def _sprig(pen: Pen, inks: Inks) -> None:
    pen.line([(0.5, 0.97), (0.48, 0.5), (0.52, 0.1)], inks.dark, 0.03)
    for rung in range(4):
        y = 0.85 - 0.19 * rung
        reach = 0.36 - 0.05 * rung
        _leaf(pen, (0.5, y), (0.5 - reach, y - 0.2), inks.second)
        _leaf(pen, (0.5, y - 0.06), (0.5 + reach, y - 0.26), inks.accent)


def _mountains(pen: Pen, inks: Inks) -> None:
    pen.circle((0.68, 0.32), 0.17, inks.accent)
    pen.polygon([(0.0, 0.9), (0.36, 0.2), (0.72, 0.9)], inks.dark)
    pen.polygon([(0.36, 0.2), (0.26, 0.4), (0.34, 0.36), (0.4, 0.43), (0.47, 0.41)], inks.light)
    pen.polygon([(0.4, 0.9), (0.72, 0.42), (1.0, 0.9)], inks.second)
    pen.rectangle((0, 0.88, 1, 0.05), inks.accent)


def _boat(pen: Pen, inks: Inks) -> None:
    pen.line([(0.5, 0.75), (0.5, 0.08)], inks.dark, 0.03)
    pen.polygon([(0.53, 0.1), (0.53, 0.62), (0.9, 0.62)], inks.accent)
    pen.polygon([(0.47, 0.2), (0.47, 0.62), (0.18, 0.62)], inks.light)
    pen.polygon([(0.12, 0.68), (0.9, 0.68), (0.76, 0.86), (0.26, 0.86)], inks.dark)
    for row in range(2):
        wave = [(step / 24, 0.9 + 0.06 * row + 0.02 * math.sin(step * 1.6 + row)) for step in range(25)]
        pen.line(wave, inks.second, 0.03)


def _moon(pen: Pen, inks: Inks) -> None:
    pen.circle((0.45, 0.52), 0.38, inks.accent)
    pen.circle((0.6, 0.43), 0.32, inks.ground)
    for x, y, size in ((0.62, 0.4, 0.13), (0.85, 0.66, 0.08), (0.82, 0.16, 0.07), (0.12, 0.1, 0.06)):
        star = [on_circle((x, y), size * (1 if tip % 2 == 0 else 0.42), tip / 10) for tip in range(10)]
        pen.polygon(star, inks.light)


def _cat(pen: Pen, inks: Inks) -> None:
    for side in (-1, 1):
        pen.polygon([(0.5 + side * 0.4, 0.08), (0.5 + side * 0.4, 0.5), (0.5 + side * 0.05, 0.3)], inks.dark)
    pen.ellipse((0.08, 0.24, 0.84, 0.68), inks.dark)
    for side in (-1, 1):
        pen.circle((0.5 + side * 0.19, 0.52), 0.09, inks.accent)
        pen.ellipse((0.48 + side * 0.19, 0.45, 0.04, 0.14), inks.dark)
        for whisker in (-1, 0, 1):
            ends = [(0.5 + side * 0.14, 0.7), (0.5 + side * 0.5, 0.7 + whisker * 0.1)]
            pen.line(ends, inks.light, 0.014)
    pen.polygon([(0.44, 0.64), (0.56, 0.64), (0.5, 0.71)], inks.second)


def _bird(pen: Pen, inks: Inks) -> None:
    pen.pie((0.46, 0.42), 0.36, (0.25, 0.75), inks.accent)
    pen.circle((0.74, 0.36), 0.15, inks.accent)
    pen.polygon([(0.86, 0.3), (1.0, 0.38), (0.86, 0.42)], inks.dark)
    pen.polygon([(0.14, 0.42), (0.0, 0.2), (0.3, 0.42)], inks.second)
    pen.pie((0.42, 0.42), 0.24, (0.3, 0.72), inks.second)
    pen.circle((0.77, 0.33), 0.03, inks.dark)
    for x in (0.42, 0.52):
        pen.line([(x, 0.76), (x, 0.95), (x + 0.08, 0.95)], inks.dark, 0.025)


def _fish(pen: Pen, inks: Inks) -> None:
    pen.polygon([(0.28, 0.5), (0.02, 0.24), (0.02, 0.76)], inks.second)
    pen.ellipse((0.18, 0.24, 0.8, 0.52), inks.accent)
    for column in range(3):
        for row in range(-1, 2):
            pen.pie((0.38 + 0.13 * column, 0.5 + 0.12 * row), 0.06, (0.0, 0.5), inks.light)
    pen.circle((0.82, 0.44), 0.06, inks.light)
    pen.circle((0.83, 0.44), 0.03, inks.dark)


def _flower(pen: Pen, inks: Inks) -> None:
    pen.line([(0.5, 0.4), (0.5, 1.0)], inks.second, 0.04)
    _leaf(pen, (0.5, 0.92), (0.85, 0.7), inks.second)
    _leaf(pen, (0.5, 0.98), (0.15, 0.76), inks.second)
    for petal in range(8):
        pen.circle(on_circle((0.5, 0.38), 0.22, petal / 8), 0.12, inks.accent)
    pen.circle((0.5, 0.38), 0.15, inks.light)
    pen.circle((0.5, 0.38), 0.08, inks.dark)


def _mushroom(pen: Pen, inks: Inks) -> None:
    pen.rectangle((0.4, 0.45, 0.2, 0.48), inks.light, radius=0.08)
    pen.pie((0.5, 0.55), 0.44, (-0.25, 0.25), inks.accent)
    for x, y, radius in ((0.34, 0.4, 0.07), (0.55, 0.28, 0.08), (0.72, 0.45, 0.06)):
        pen.circle((x, y), radius, inks.light)
    pen.rectangle((0.1, 0.92, 0.8, 0.04), inks.second)


def _cactus(pen: Pen, inks: Inks) -> None:
    pen.rectangle((0.41, 0.1, 0.18, 0.62), inks.second, radius=0.09)
    for x, top, inner in ((0.14, 0.28, 0.23), (0.74, 0.2, 0.55)):
        pen.rectangle((x, top, 0.12, 0.3), inks.second, radius=0.06)
        pen.rectangle((inner, top + 0.2, 0.25, 0.1), inks.second, radius=0.05)
    pen.polygon([(0.26, 0.7), (0.74, 0.7), (0.68, 0.96), (0.32, 0.96)], inks.accent)
    pen.rectangle((0.22, 0.67, 0.56, 0.08), inks.dark)
    pen.circle((0.5, 0.1), 0.06, inks.light)


def _lighthouse(pen: Pen, inks: Inks) -> None:
    pen.polygon([(0.5, 0.2), (0.02, 0.05), (0.02, 0.35)], inks.light)
    pen.polygon([(0.4, 0.27), (0.6, 0.27), (0.68, 0.9), (0.32, 0.9)], inks.light)
    for band in range(3):
        top, spread = 0.36 + 0.2 * band, 0.012 + 0.026 * band
        pen.polygon(
            [
                (0.4 - spread, top),
                (0.6 + spread, top),
                (0.615 + spread, top + 0.1),
                (0.385 - spread, top + 0.1),
            ],
            inks.accent,
        )
    pen.rectangle((0.42, 0.14, 0.16, 0.13), inks.dark)
    pen.polygon([(0.38, 0.14), (0.62, 0.14), (0.5, 0.03)], inks.accent)
    pen.ellipse((0.1, 0.84, 0.8, 0.16), inks.second)


def _skyline(pen: Pen, inks: Inks) -> None:
    pen.circle((0.3, 0.3), 0.2, inks.accent)
    towers = ((0.0, 0.5, 0.2), (0.18, 0.32, 0.17), (0.37, 0.58, 0.22), (0.57, 0.18, 0.2), (0.78, 0.42, 0.22))
    for number, (x, top, width) in enumerate(towers):
        pen.rectangle((x, top, width, 0.95 - top), inks.dark if number % 2 else inks.second)
        for row in range(int((0.9 - top) / 0.11)):
            for column in range(2):
                window = (x + width * (0.2 + 0.38 * column), top + 0.05 + row * 0.11, width * 0.22, 0.05)
                pen.rectangle(window, inks.light)


def _rocket(pen: Pen, inks: Inks) -> None:
    pen.polygon([(0.32, 0.55), (0.12, 0.86), (0.36, 0.76)], inks.second)
    pen.polygon([(0.68, 0.55), (0.88, 0.86), (0.64, 0.76)], inks.second)
    pen.polygon([(0.42, 0.78), (0.58, 0.78), (0.5, 1.0)], inks.accent)
    pen.ellipse((0.3, 0.04, 0.4, 0.78), inks.light)
    pen.polygon([(0.355, 0.2), (0.645, 0.2), (0.5, 0.0)], inks.accent)
    pen.circle((0.5, 0.4), 0.1, inks.dark)
    pen.circle((0.5, 0.4), 0.065, inks.second)


def _balloon(pen: Pen, inks: Inks) -> None:
    pen.polygon([(0.14, 0.48), (0.86, 0.48), (0.58, 0.8), (0.42, 0.8)], inks.accent)
    pen.circle((0.5, 0.4), 0.38, inks.accent)
    pen.ellipse((0.3, 0.02, 0.4, 0.76), inks.light)
    pen.ellipse((0.42, 0.02, 0.16, 0.76), inks.second)
    pen.rectangle((0.41, 0.85, 0.18, 0.13), inks.dark, radius=0.03)


def _eye(pen: Pen, inks: Inks) -> None:
    _leaf_shape = [(step / 20, 0.5 - 0.3 * math.sin(math.pi * step / 20)) for step in range(21)]
    pen.polygon(_leaf_shape + [(x, 1 - y) for x, y in reversed(_leaf_shape)], inks.light)
    pen.circle((0.5, 0.5), 0.25, inks.accent)
    pen.circle((0.5, 0.5), 0.14, inks.dark)
    pen.circle((0.57, 0.43), 0.05, inks.light)
    for lash in range(-3, 4):
        x = 0.5 + 0.13 * lash
        pen.line([(x, 0.17 + 0.012 * lash**2), (x + 0.03 * lash, 0.03 + 0.02 * lash**2)], inks.dark, 0.03)


def _cup(pen: Pen, inks: Inks) -> None:
    pen.ring((0.76, 0.6), 0.15, inks.accent, 0.05)
    pen.polygon([(0.16, 0.42), (0.78, 0.42), (0.68, 0.84), (0.26, 0.84)], inks.accent)
    pen.ellipse((0.16, 0.36, 0.62, 0.12), inks.dark)
    pen.ellipse((0.06, 0.84, 0.82, 0.1), inks.second)
    for x in (0.34, 0.5, 0.66):
        steam = [(x + 0.04 * math.sin(step), 0.32 - 0.04 * step) for step in range(7)]
        pen.line(steam, inks.light, 0.03)


def _bauhaus(pen: Pen, inks: Inks) -> None:
    pen.rectangle((0.05, 0.05, 0.55, 0.55), inks.second)
    pen.circle((0.62, 0.62), 0.32, inks.accent)
    pen.pie((0.05, 0.95), 0.5, (0.0, 0.25), inks.dark)
    pen.polygon([(0.6, 0.05), (0.97, 0.05), (0.97, 0.42)], inks.light)
    pen.line([(0.02, 0.98), (0.98, 0.02)], inks.dark, 0.02)


def _arches(pen: Pen, inks: Inks) -> None:
    for ring, ink in enumerate((inks.accent, inks.light, inks.second, inks.light, inks.dark)):
        reach = 0.46 - 0.085 * ring
        pen.pie((0.5, 0.6), reach, (-0.25, 0.25), ink)
        pen.rectangle((0.5 - reach, 0.6, 2 * reach, 0.34), ink)


PICTURES: tuple[Picture, ...] = (
    _citrus, _cherries, _mountains, _cat, _boat, _flower, _rocket, _fish, _moon, _mushroom, _lighthouse,
    _fruit, _skyline, _bird, _cactus, _balloon, _eye, _cup, _sprig, _bauhaus, _arches,
)  # fmt: skip
