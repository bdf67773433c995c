"""Comparisons of `insclr paper rivals` as one table and one chart: how much of the supervised gap each closes.

python benchmarks/rivals_chart.py OUT.svg FOLDER/rivals.json [FOLDER/rivals.json ...]
"""

import json
import sys
from itertools import cycle
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, ROW, BOTTOM = 760, 150, 20, 52, 22, 40
LOW, HIGH = -20, 140  # percent of the gap; what lies outside is drawn at the edge
COLOURS = ("#4f46e5", "#12915a", "#b45309", "#be185d", "#0e7490")
GROUPS = ("baseline", "ours", "rival", "supervised")

Row = dict[str, Any]


def chart(rows: list[Row]) -> str:
    """A line a method, a dot a set."""
    sets, names = _in_order(rows, "collection"), _in_order(rows, "name")
    height = TOP + ROW * len(names) + BOTTOM

    def x(share: float) -> float:
        inside = min(max(100 * share, LOW), HIGH)
        return LEFT + (inside - LOW) / (HIGH - LOW) * (WIDTH - LEFT - RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="sans-serif" font-size="12">',
        "<title>Share of the gap between the pretrained network and the oracle that each method closes</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for percent in range(LOW, HIGH + 1, 20):
        at = x(percent / 100)
        colour = "#8a8a99" if percent in (0, 100) else "#e3e3ec"
        parts.append(f'<path d="M{at:.1f} {TOP - 8}V{height - BOTTOM}" stroke="{colour}"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{height - BOTTOM + 16}" text-anchor="middle" fill="#555">{percent} %</text>'
        )
    for number, (name, colour) in enumerate(zip(sets, cycle(COLOURS), strict=False)):
        at = LEFT + number * 120
        parts.append(f'<circle cx="{at}" cy="18" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{at + 10}" y="22" fill="#333">{escape(name)}</text>')
    for number, name in enumerate(names):
        y = TOP + ROW * number + ROW / 2
        own = [row for row in rows if row["name"] == name]
        weight = ' font-weight="bold"' if own[0]["group"] == "ours" else ""
        parts.append(
            f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end" fill="#333"{weight}>{escape(name)}</text>'
        )
        parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#f0f0f5"/>')
        for row in own:
            if row["share"] is not None:
                colour = COLOURS[sets.index(row["collection"]) % len(COLOURS)]
                parts.append(
                    f'<circle cx="{x(row["share"]):.1f}" cy="{y}" r="5" fill="{colour}" fill-opacity="0.8"/>'
                )
    return "\n".join([*parts, "</svg>", ""])


def table(rows: list[Row]) -> str:
    """mAP and share of the gap by method and set; bold where a rival is above all of ours."""
    sets = _in_order(rows, "collection")
    lines = ["| | kind | " + " | ".join(sets) + " |", "|---" * (len(sets) + 2) + "|"]
    for name in _in_order(rows, "name"):
        own = {row["collection"]: row for row in rows if row["name"] == name}
        kind = next(iter(own.values()))["group"]
        lines.append(f"| {name} | {kind} | " + " | ".join(_cell(own.get(one)) for one in sets) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    value = f"{row['map']:.1f}{row['interval']}"
    share = "" if row["share"] is None else f" ({100 * row['share']:.0f} %)"
    return f"**{value}**{share}" if row["beats_ours"] else value + share


def _in_order(rows: list[Row], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in sorted(rows, key=lambda row: GROUPS.index(row["group"]))))


def main() -> None:
    out, *files = sys.argv[1:]
    rows = [row for file in files for row in json.loads(Path(file).read_text())["rows"]]
    Path(out).write_text(chart(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
