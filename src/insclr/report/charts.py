"""Small charts as inline SVG: no dependency, colours from the page's CSS variables, values on hover."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 440, 250
_LEFT, _RIGHT, _BOTTOM = 46, 12, 34
_LEGEND_ROW = 18
_MARK_ROW = 14
_CHARACTER = 6.1  # mean width of a legend character, in units of the view box


@dataclass(frozen=True)
class Series:
    """A named line of (x, y) points in ascending x; `colour` is the N of the CSS variable --series-N."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 1
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Mark:
    """A vertical line at `x` with a word beside it."""

    x: float
    name: str


@dataclass(frozen=True)
class Scale:
    """Maps the values low ... high to the coordinates start ... end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The coordinate of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) that reach from low to high or beyond."""
    if not high > low:
        reach = abs(low) / 2 or 1.0
        low, high = low - reach, high + reach
    rough = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def short(value: float) -> str:
    """A number for people: three significant digits, thousands with a separator."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percentage(value: float) -> str:
    """A share for people: 0.8319 as 83.2 %."""
    return f"{100 * value:.1f} %"


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    marks: Sequence[Mark] = (),
    x_names: Mapping[float, str] | None = None,
    x_label: str = "step",
    percent: bool = False,
    from_zero: bool = False,
    breaks: bool = True,
) -> str:
    """Lines over a common x, broken at the marks unless `breaks` is off; hovering over an x shows its values."""
    series = [one for one in series if one.points]
    if not series:
        return ""
    show = percentage if percent else short
    xs = sorted({x for one in series for x, _ in one.points})
    values = [y for one in series for _, y in one.points]
    legend, top = _legend(series)
    ticks = nice_ticks(min(0.0, *values) if from_zero else min(values), max(values))
    along = Scale(min(0.0, xs[0]), max(xs[-1], xs[0] + 1), _LEFT, WIDTH - _RIGHT)
    # The names of the marks stand above the lines, in one row or two.
    head = _MARK_ROW * (1 + _is_crowded(marks, along)) if marks else 0
    up = Scale(ticks[0], ticks[-1], HEIGHT - _BOTTOM, top + head)
    parts = [
        _y_axis(ticks, up, percent),
        _x_axis([x for x in nice_ticks(along.low, along.high) if x <= along.high], along, x_label),
        _marks(marks, along, top),
        *(_line(one, marks if breaks else (), along, up) for one in series),
        legend,
        _hover(xs, series, along, top, x_names or {}, show),
    ]
    return _svg(title, parts)


def histogram_chart(
    title: str,
    edges: Sequence[float],
    counts: Mapping[str, Sequence[int]],
    *,
    colours: Sequence[int],
    reach: tuple[float, float] | None = None,
    marks: Sequence[Mark] = (),
) -> str:
    """Overlaid histograms over common bins, each drawn to the same height; `reach` = part of x to show."""
    shown = [
        (Series(name, [(0.0, 0.0)], colour), numbers)
        for (name, numbers), colour in zip(counts.items(), colours, strict=True)
        if sum(numbers)
    ]
    if not shown:
        return ""
    low, high = reach or used_range(edges, counts.values())
    bins = [i for i in range(len(edges) - 1) if edges[i] >= low - 1e-9 and edges[i + 1] <= high + 1e-9]
    legend, top = _legend([one for one, _ in shown])
    along = Scale(low, high, _LEFT - 24, WIDTH - _RIGHT)
    head = _MARK_ROW * (1 + _is_crowded(marks, along)) if marks else 0
    up = Scale(0.0, 1.0, HEIGHT - _BOTTOM, top + head)
    ticks = [tick for tick in nice_ticks(low, high, 7) if low - 1e-9 <= tick <= high + 1e-9]
    parts = [_x_axis(ticks, along, "similarity", decimals=1)]
    for one, numbers in shown:
        used = [i for i in bins if numbers[i]]
        if used:
            reached = range(used[0], used[-1] + 1)
            parts.append(_steps(edges, numbers, reached, along, up, one.colour))
    parts += [_marks(marks, along, top), legend]
    for i in bins:
        lines = [f"{edges[i]:.3f} … {edges[i + 1]:.3f}"]
        lines += [f"{one.name}: {percentage(numbers[i] / sum(numbers))}" for one, numbers in shown]
        parts.append(_hover_area(along(edges[i]), along(edges[i + 1]), top, lines))
    return _svg(title, parts)


def used_range(edges: Sequence[float], histograms: Iterable[Sequence[int]]) -> tuple[float, float]:
    """The stretch of the bins in which any of the histograms counts something."""
    used = [i for numbers in histograms for i, number in enumerate(numbers) if number]
    return (edges[min(used)], edges[max(used) + 1]) if used else (edges[0], edges[-1])


def _svg(title: str, parts: Iterable[str]) -> str:
    body = "\n".join(part for part in parts if part)
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg class="chart" {box} role="img" aria-label="{escape(title)}">\n{body}\n</svg>'


def _legend(series: Sequence[Series]) -> tuple[str, float]:
    """The names with their colours, in as many rows as they need, and where the plot may begin below them.

    A single line needs none beside the title.
    """
    if len(series) < 2:
        return "", 12.0
    x, y, items = 4.0, 12.0, []
    for one in series:
        width = 24 + _CHARACTER * len(one.name) + 12
        if x + width > WIDTH and x > 4:
            x, y = 4.0, y + _LEGEND_ROW
        dash = ' stroke-dasharray="4 3"' if one.dashed else ""
        items.append(
            f'<line class="s{one.colour}" x1="{x:.1f}" x2="{x + 16:.1f}" y1="{y - 4:.1f}" y2="{y - 4:.1f}"{dash}/>'
            f'<text class="legend" x="{x + 22:.1f}" y="{y:.1f}">{escape(one.name)}</text>'
        )
        x += width
    return "".join(items), y + 12


def _y_axis(ticks: Sequence[float], up: Scale, percent: bool) -> str:
    decimals = _decimals(ticks, percent)
    lines = []
    for tick in ticks:
        text = f"{100 * tick:.{decimals}f} %" if percent else f"{tick:,.{decimals}f}"
        lines.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{up(tick) + 4:.1f}" text-anchor="end">{text}</text>'
        )
    return "".join(lines)


def _x_axis(ticks: Sequence[float], along: Scale, label: str, decimals: int = 0) -> str:
    base = HEIGHT - _BOTTOM
    texts = [
        f'<text class="tick" x="{along(tick):.1f}" y="{base + 15}" text-anchor="middle">{tick:,.{decimals}f}</text>'
        for tick in ticks
    ]
    line = f'<line class="axis" x1="{along.start}" x2="{along.end}" y1="{base}" y2="{base}"/>'
    name = f'<text class="tick" x="{along.end}" y="{HEIGHT - 4}" text-anchor="end">{escape(label)}</text>'
    return line + "".join(texts) + name


def _decimals(ticks: Sequence[float], percent: bool) -> int:
    """As many as the distance of two ticks needs."""
    step = (ticks[1] - ticks[0]) * (100 if percent else 1)
    return max(0, -math.floor(math.log10(step) + 1e-9))


def _marks(marks: Sequence[Mark], along: Scale, top: float) -> str:
    inside = [mark for mark in marks if along.low <= mark.x <= along.high]
    lines = []
    for number, mark in enumerate(inside):
        x = along(mark.x)
        # Names of neighbours take turns in height, and stay inside on the right.
        y = top + 9 + _MARK_ROW * (number % 2 if _is_crowded(marks, along) else 0)
        side, anchor = (-4, "end") if x > WIDTH - 90 else (4, "start")
        lines.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{HEIGHT - _BOTTOM}"/>'
            f'<text class="note" x="{x + side:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(mark.name)}</text>'
        )
    return "".join(lines)


def _is_crowded(marks: Sequence[Mark], along: Scale) -> bool:
    return any(abs(along(b.x) - along(a.x)) < 10 + _CHARACTER * len(a.name) for a, b in pairwise(marks))


def _line(one: Series, marks: Sequence[Mark], along: Scale, up: Scale) -> str:
    pieces: dict[int, list[str]] = {}
    for x, y in one.points:
        piece = sum(mark.x < x for mark in marks)
        pieces.setdefault(piece, []).append(f"{along(x):.1f},{up(y):.1f}")
    dash = ' stroke-dasharray="4 3"' if one.dashed else ""
    drawn = [
        f'<polyline class="s{one.colour}" points="{" ".join(points)}"{dash}/>' for points in pieces.values()
    ]
    if one.dots or any(len(points) == 1 for points in pieces.values()):
        drawn += [
            f'<circle class="d{one.colour}" cx="{along(x):.1f}" cy="{up(y):.1f}" r="3.5"/>'
            for x, y in one.points
        ]
    return "".join(drawn)


def _steps(
    edges: Sequence[float],
    numbers: Sequence[int],
    bins: Sequence[int],
    along: Scale,
    up: Scale,
    colour: int,
) -> str:
    """One histogram as a filled staircase with an outline."""
    most = max(numbers)
    corners = [f"{along(edges[i + side]):.1f},{up(numbers[i] / most):.1f}" for i in bins for side in (0, 1)]
    first, last = along(edges[bins[0]]), along(edges[bins[-1] + 1])
    closed = [f"{first:.1f},{up(0):.1f}", *corners, f"{last:.1f},{up(0):.1f}"]
    return (
        f'<polygon class="f{colour}" points="{" ".join(closed)}"/>'
        f'<polyline class="s{colour}" points="{" ".join(closed)}"/>'
    )


def _hover(
    xs: Sequence[float],
    series: Sequence[Series],
    along: Scale,
    top: float,
    names: Mapping[float, str],
    show: Callable[[float], str],
) -> str:
    """An invisible column around every x, lit up under the pointer, with the values there."""
    values = [dict(one.points) for one in series]
    places = [along(x) for x in xs]
    borders = [along.start, *((a + b) / 2 for a, b in pairwise(places)), along.end]
    columns = []
    for x, (left, right) in zip(xs, pairwise(borders), strict=True):
        lines = [names.get(x, short(x))]
        lines += [f"{one.name}: {show(at[x])}" for one, at in zip(series, values, strict=True) if x in at]
        columns.append(_hover_area(left, right, top, lines))
    return "".join(columns)


def _hover_area(left: float, right: float, top: float, lines: Sequence[str]) -> str:
    text = escape("\n".join(lines))
    return (
        f'<rect class="hover" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
        f'height="{HEIGHT - _BOTTOM - top:.1f}"><title>{text}</title></rect>'
    )
