"""The patterns printed on the demo's things, each filling the pen's box."""

import math
from collections.abc import Callable

import numpy as np

from insclr_demo.illustrations import Inks
from insclr_demo.pen import Pen, on_circle

Pattern = Callable[[Pen, Inks, np.random.Generator], None]


def _stripes(pen: Pen, inks: Inks, rng: np.random.Generator) -> None:
    count, slope = int(rng.integers(6, 13)), rng.choice((0.0, 0.0, 0.3, 0.8))
    for stripe in range(-count, 2 * count, 2):
        left, right = stripe / count, (stripe + 1) / count
        pen.polygon([(left, 0), (right, 0), (right - slope, 1), (left - slope, 1)], inks.accent)


def _dots(pen: Pen, inks: Inks, rng: np.random.Generator) -> None:
    for x, y, odd in _grid(pen, int(rng.integers(5, 9))):
        pen.circle((x, y), 0.042, inks.light if odd else inks.accent)


def _checks(pen: Pen, inks: Inks, rng: np.random.Generator) -> None:
    count = int(rng.integers(4, 8))
    pen_ratio = pen.height / pen.width
    rows = max(1, round(count * pen_ratio))
    for row in range(rows):
        for column in range(row % 2, count, 2):
            pen.rectangle((column / count, row / rows, 1 / count, 1 / rows), inks.accent)


def _zigzag(pen: Pen, inks: Inks, rng: np.random.Generator) -> None:
    count = int(rng.integers(4, 8))
    for row in range(-1, count + 1):
        points = [(step / 10, (row + 0.25 + 0.5 * (step % 2)) / count) for step in range(11)]
        pen.line(points, inks.accent if row % 2 else inks.second, 0.05)


def _waves(pen: Pen, inks: Inks, rng: np.random.Generator) -> None:
    count, turns = int(rng.integers(5, 9)), float(rng.uniform(8, 16))
    for row in range(count + 1):
        points = [(step / 40, (row + 0.3 * math.sin(step / 40 * turns + row)) / count) for step in range(41)]
        pen.line(points, (inks.accent, inks.second, inks.light)[row % 3], 0.045)


def _terrazzo(pen: Pen, inks: Inks, rng: np.random.Generator) -> None:
    for chip in range(46):
        centre, radius = (float(rng.uniform()), float(rng.uniform())), float(rng.uniform(0.03, 0.075))
        corners = sorted(rng.uniform(0, 1, 5))
        points = [on_circle(centre, radius, float(turn)) for turn in corners]
        pen.polygon(points, (inks.accent, inks.second, inks.light, inks.dark)[chip % 4])


def _scales(pen: Pen, inks: Inks, rng: np.random.Generator) -> None:
    for x, y, odd in _grid(pen, int(rng.integers(5, 8))):
        pen.circle((x, y), 0.085, inks.second if odd else inks.accent)
        pen.circle((x, y), 0.05, inks.light)


def _petals(pen: Pen, inks: Inks, rng: np.random.Generator) -> None:
    for x, y, odd in _grid(pen, int(rng.integers(4, 6))):
        for petal in range(5):
            pen.circle(on_circle((x, y), 0.045, petal / 5), 0.03, inks.accent if odd else inks.light)
        pen.circle((x, y), 0.025, inks.second)


def _grid(pen: Pen, count: int) -> list[tuple[float, float, bool]]:
    """Staggered places with even spacing in both directions, and which of two kinds each is."""
    short = min(pen.width, pen.height)
    across, down = round(count * pen.width / short), round(count * pen.height / short)
    return [
        ((column + (0.5 if row % 2 else 0.0)) / across, row / down, (row + column) % 2 == 0)
        for row in range(down + 1)
        for column in range(across + 1)
    ]


PATTERNS: tuple[Pattern, ...] = (_stripes, _dots, _terrazzo, _checks, _waves, _petals, _zigzag, _scales)
