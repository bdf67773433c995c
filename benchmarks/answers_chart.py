"""The answer curves as a chart.

python benchmarks/answers_chart.py OUT.svg TITLE=FOLDER/curve.jsonl [TITLE=...]
"""

import json
import sys
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 48, 190, 20, 44
DISPLAY_THRESHOLD = 15  # pixels between two names
COLOURS = ("#4f46e5", "#12915a", "#b45309", "#be185d", "#64748b", "#0e7490")


def chart(curves: dict[str, list[tuple[int, float]]]) -> str:
    """Lines of mAP over screens, named at their ends."""
    points = [point for curve in curves.values() for point in curve]
    most = max(x for x, _ in points)
    low, high = 5 * (min(y for _, y in points) // 5), 5 * -(-max(y for _, y in points) // 5)

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + x / most * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="12">',
        "<title>mAP after so many answered screens</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for y in range(int(low), int(high) + 1, 5):
        (x0, height), (x1, _) = at(0, y), at(most, y)
        parts.append(f'<path d="M{x0:.0f} {height:.1f}H{x1:.0f}" stroke="#e3e3ec"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end" fill="#555">{y}</text>')
    for x in sorted({x for x, _ in points}):
        place = at(x, low)
        parts.append(
            f'<text x="{place[0]:.1f}" y="{place[1] + 18:.1f}" text-anchor="middle" fill="#555">{x}</text>'
        )
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle" fill="#555">screens answered</text>'
    )
    ends = []
    for (title, curve), colour in zip(curves.items(), COLOURS, strict=False):
        places = [at(x, y) for x, y in curve]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        ends.append((places[-1], title, colour))
    lowest = 0.0
    for (x, y), title, colour in sorted(ends, key=lambda end: end[0][1]):  # type: ignore[assignment]
        lowest = max(y, lowest + DISPLAY_THRESHOLD)  # below the name before it
        edge = WIDTH - RIGHT + 10
        parts.append(
            f'<path d="M{x:.1f} {y:.1f}L{edge} {lowest:.1f}" stroke="{colour}" stroke-dasharray="1 3" fill="none"/>'
        )
        parts.append(f'<text x="{edge + 4}" y="{lowest + 4:.1f}" fill="{colour}">{escape(title)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    out, *named = sys.argv[1:]
    curves = {}
    for one in named:
        title, _, file = one.partition("=")
        lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
        curves[title] = [(line["screens"], line["map"]) for line in lines]
    Path(out).write_text(chart(curves))


if __name__ == "__main__":
    main()
