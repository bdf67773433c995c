"""The chart of the comparison with the rivals: how much of the supervised gap each closes, on every set."""

from collections.abc import Callable, Sequence
from html import escape
from itertools import cycle
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from insclr_rivals.comparison import RivalRow

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW, _BOTTOM = 760, 150, 20, 52, 22, 40
_LOW, _HIGH = -20, 140  # percent of the gap; what lies outside is drawn at the edge
_COLOURS = ("#4f46e5", "#12915a", "#b45309", "#be185d", "#0e7490")
_GROUPS = ("baseline", "ours", "rival", "supervised")


def draw_shares(rows: "Sequence[RivalRow]") -> str:
    """A standalone SVG: a line a method, a dot a set."""
    sets, names = _in_order(rows, lambda row: row.collection), _in_order(rows, lambda row: row.name)
    height = _TOP + _ROW * len(names) + _BOTTOM

    def x(share: float) -> float:
        inside = min(max(100 * share, _LOW), _HIGH)
        return _LEFT + (inside - _LOW) / (_HIGH - _LOW) * (_WIDTH - _LEFT - _RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'font-family="sans-serif" font-size="12">',
        "<title>Share of the gap between the pretrained network and the oracle that each method closes</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for percent in range(_LOW, _HIGH + 1, 20):
        at = x(percent / 100)
        colour = "#8a8a99" if percent in (0, 100) else "#e3e3ec"
        parts.append(f'<path d="M{at:.1f} {_TOP - 8}V{height - _BOTTOM}" stroke="{colour}"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{height - _BOTTOM + 16}" text-anchor="middle" fill="#555">{percent} %</text>'
        )
    for number, (name, colour) in enumerate(zip(sets, cycle(_COLOURS), strict=False)):
        at = _LEFT + number * 120
        parts.append(f'<circle cx="{at}" cy="18" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{at + 10}" y="22" fill="#333">{escape(name)}</text>')
    for number, name in enumerate(names):
        y = _TOP + _ROW * number + _ROW / 2
        own = [row for row in rows if row.name == name]
        weight = ' font-weight="bold"' if own[0].group == "ours" else ""
        parts.append(
            f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end" fill="#333"{weight}>{escape(name)}</text>'
        )
        parts.append(f'<path d="M{_LEFT} {y}H{_WIDTH - _RIGHT}" stroke="#f0f0f5"/>')
        for row in own:
            if row.share is not None:
                colour = _COLOURS[sets.index(row.collection) % len(_COLOURS)]
                parts.append(
                    f'<circle cx="{x(row.share):.1f}" cy="{y}" r="5" fill="{colour}" fill-opacity="0.8"/>'
                )
    return "\n".join([*parts, "</svg>", ""])


def _in_order(rows: "Sequence[RivalRow]", key: "Callable[[RivalRow], str]") -> list[str]:
    ordered = sorted(rows, key=lambda row: _GROUPS.index(row.group))
    return list(dict.fromkeys(key(row) for row in ordered))
