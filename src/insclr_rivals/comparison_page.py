"""The comparison with the rivals as a page: the paper's Figure 1 for every set, and the numbers below it."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from insclr.report.charts import Scale, nice_ticks
from insclr.report.page import write_page

_WIDTH, _LEFT, _RIGHT = 760, 150, 60
_BAR, _GAP, _TOP, _BOTTOM = 18, 6, 26, 24
_COLOURS = {"baseline": 5, "ours": 3, "rival": 1, "supervised": 2}


@dataclass(frozen=True)
class RivalRow:
    """A contender on one set; numbers in percent, means over seeds."""

    collection: str
    name: str
    group: str  # baseline, ours, rival or supervised
    map: float
    interval: str  # half width of the 95 % interval, empty for one seed
    maps: tuple[float, ...]  # seed by seed
    recall: float  # R@1
    minutes: float  # of training; 0 where nothing is trained
    images: int  # augmented views seen; 0 where nothing is trained
    share: float | None  # of the gap between pretrained and oracle
    rate: str | None  # the learning rate and the start that were best for it
    grid: dict[str, float]  # mAP of the first seed by learning rate and start
    beats_ours: bool
    runs: tuple[str, ...]  # folders, beside the page


@dataclass(frozen=True)
class _Figure:
    """A set: its bars (SVG, texts escaped) and its rows."""

    name: str
    chart: str
    rows: list[RivalRow]


def write_rivals(
    file: Path, rows: Sequence[RivalRow], *, about: str, lines: Sequence[str], without: Sequence[str] = ()
) -> None:
    """Write the page; the values of the rows named `lines` are drawn across all bars of their set.

    `without` holds the reasons why contenders have no result.
    """
    names = dict.fromkeys(row.collection for row in rows)
    figures = []
    for name in names:
        own = [row for row in rows if row.collection == name]
        figures.append(_Figure(name, bar_chart(name, own, lines), own))
    write_page(
        file, "rivals.html", package="insclr_rivals", figures=figures, about=about, without=without, jpegs={}
    )


def bar_chart(title: str, rows: Sequence[RivalRow], lines: Sequence[str]) -> str:
    """One horizontal bar a row, coloured by its kind, with vertical lines at the rows named `lines`."""
    marks = [row for row in rows if row.name in lines]
    bars = [row for row in rows if row.name not in lines]
    height = _TOP + len(bars) * (_BAR + _GAP) + _BOTTOM
    ticks = nice_ticks(0, max(row.map for row in rows), 8)
    along = Scale(0, ticks[-1], _LEFT, _WIDTH - _RIGHT)
    base = height - _BOTTOM
    parts = [
        f'<line class="grid" x1="{along(tick):.1f}" x2="{along(tick):.1f}" y1="{_TOP}" y2="{base}"/>'
        f'<text class="tick" x="{along(tick):.1f}" y="{base + 15}" text-anchor="middle">{tick:g}</text>'
        for tick in ticks
    ]
    parts += [
        _bar(row, _TOP + place * (_BAR + _GAP), along) for place, row in enumerate(bars)
    ]  # fmt: skip
    for place, row in enumerate(sorted(marks, key=lambda row: row.map)):
        x, anchor = along(row.map), "end" if place == 0 and len(marks) > 1 else "start"
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{base}"/>'
            f'<text class="note" x="{x + (-4 if anchor == "end" else 4):.1f}" y="{_TOP - 10}" '
            f'text-anchor="{anchor}">{escape(row.name)} {row.map:.1f}</text>'
        )
    box = f'viewBox="0 0 {_WIDTH} {height}"'
    body = "\n".join(parts)
    return f'<svg class="chart bars" {box} role="img" aria-label="mAP on {escape(title)}">\n{body}\n</svg>'


def _bar(row: RivalRow, y: float, along: Scale) -> str:
    middle = y + _BAR / 2 + 4
    title = f"{row.name}: mAP {row.map:.1f}{row.interval}, R@1 {row.recall:.1f}"
    return (
        f'<text class="legend" x="{_LEFT - 8}" y="{middle:.1f}" text-anchor="end">{escape(row.name)}</text>'
        f'<rect class="d{_COLOURS[row.group]}" x="{along(0):.1f}" y="{y:.1f}" '
        f'width="{max(0.0, along(row.map) - along(0)):.1f}" height="{_BAR}">'
        f"<title>{escape(title)}</title></rect>"
        f'<text class="tick" x="{along(row.map) + 5:.1f}" y="{middle:.1f}">{row.map:.1f}</text>'
    )
