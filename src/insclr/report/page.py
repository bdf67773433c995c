"""The page around a report: one HTML text with its style inside, light and dark, wide and narrow."""

from html import escape

_LIGHT = """
  --page: #f6f7f9; --card: #ffffff; --text: #1b2230; --soft: #5d6778; --line: #e2e6ec; --grid: #edf0f4;
  --accent: #0f766e; --right: #15803d; --wrong: #dc2626; --missed: #b45309; --tile: #eef1f5;
  --warn-line: #d97706; --warn: #fff7e8; --hover: rgba(30, 50, 90, .08);
  --series-1: #2563eb; --series-2: #ea6a12; --series-3: #0f766e; --series-4: #8b4fd0; --series-5: #8792a2;
"""
_DARK = """
  --page: #10141b; --card: #181e28; --text: #e6eaf1; --soft: #9aa5b6; --line: #2b3442; --grid: #242c38;
  --accent: #2dd4bf; --right: #4ade80; --wrong: #f87171; --missed: #fbbf24; --tile: #222a36;
  --warn-line: #f59e0b; --warn: #2a2214; --hover: rgba(200, 215, 255, .09);
  --series-1: #6ea0ff; --series-2: #fb923c; --series-3: #2dd4bf; --series-4: #bf94f5; --series-5: #8b97a9;
"""
_STYLE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  -webkit-text-size-adjust: 100%; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: clamp(26px, 4vw, 38px); line-height: 1.15; letter-spacing: -.02em; margin: 4px 0 8px;
  overflow-wrap: anywhere; }
h2 { font-size: 22px; letter-spacing: -.01em; margin: 56px 0 4px; }
h3 { font-size: 16px; margin: 0; }
p { margin: 0 0 12px; max-width: 72ch; }
.soft, .lead { color: var(--soft); }
.lead { font-size: 17px; }
.over { color: var(--accent); font-size: 13px; font-weight: 600; letter-spacing: .06em; text-transform: uppercase; }
code, pre { font: 13px/1.55 ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, monospace; }
code { overflow-wrap: anywhere; }
.card, figure.panel, details { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(158px, 1fr)); gap: 12px; margin: 24px 0 0; }
.card { padding: 14px 16px; }
.card.wide { grid-column: span 2; }
.card b { display: block; font-size: 24px; line-height: 1.25; font-weight: 650; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.card span { color: var(--soft); font-size: 14px; line-height: 1.35; display: inline-block; }
.card .up { color: var(--right); } .card .down { color: var(--wrong); }
.note-box { background: var(--warn); border: 1px solid var(--warn-line); border-left-width: 5px; border-radius: 10px;
  padding: 12px 16px; margin: 16px 0 0; }
.note-box b { display: block; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 16px;
  margin-top: 16px; }
figure { margin: 0; }
figure.panel { padding: 16px 16px 8px; display: flex; flex-direction: column; }
figure.panel figcaption { margin-bottom: 8px; flex: 1; }
figure.panel figcaption span { display: block; color: var(--soft); font-size: 14px; line-height: 1.4; }
.chart { width: 100%; height: auto; display: block; }
.chart text { font-size: 11.5px; fill: var(--soft); font-family: inherit; }
.chart .legend { fill: var(--text); }
.chart .grid { stroke: var(--grid); } .chart .axis { stroke: var(--soft); }
.chart .mark { stroke: var(--soft); stroke-dasharray: 2 3; }
.chart .note { paint-order: stroke; stroke: var(--card); stroke-width: 3px; stroke-linejoin: round; }
.chart .hover { fill: transparent; } .chart .hover:hover { fill: var(--hover); }
SERIES
.scroll { overflow-x: auto; margin-top: 16px; }
.scroll { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 9px 14px; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child > td { border-bottom: 0; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td:last-child { min-width: 22ch; }
td.number:last-child { min-width: 0; }
td .soft { display: block; font-size: 13px; min-width: 22ch; }
td.path { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px; overflow-wrap: anywhere; }
details { margin-top: 16px; }
details > summary { cursor: pointer; padding: 12px 16px; font-weight: 600; }
details > pre { margin: 0; padding: 4px 16px 16px; overflow-x: auto; }
details > .scroll { margin: 0; border: 0; border-top: 1px solid var(--line); border-radius: 0 0 12px 12px; }
ul.plain { margin: 12px 0 0; padding-left: 20px; }
.tabs { display: flex; flex-wrap: wrap; gap: 8px; margin: 16px 0; }
.tabs label { border: 1px solid var(--line); background: var(--card); border-radius: 99px; padding: 5px 14px;
  font-size: 14px; cursor: pointer; }
.look { position: absolute; opacity: 0; pointer-events: none; }
.state { display: none; }
.legend-row { display: flex; flex-wrap: wrap; gap: 6px 18px; color: var(--soft); font-size: 14px; margin: 0 0 14px; }
.key { display: inline-block; width: 14px; height: 14px; border-radius: 4px; border: 2px solid var(--line);
  vertical-align: -2px; margin-right: 6px; }
.key.right { border-color: var(--right); } .key.wrong { border-color: var(--wrong); }
.key.missed { border: 2px dashed var(--missed); }
.tuple { display: grid; grid-template-columns: 112px 1fr; gap: 20px; background: var(--card); margin-bottom: 12px;
  border: 1px solid var(--line); border-radius: 12px; padding: 16px; }
.groups { display: flex; flex-wrap: wrap; gap: 12px 28px; min-width: 0; }
.group h4, .anchor h4 { margin: 0 0 6px; font-size: 13px; font-weight: 600; color: var(--soft); }
.row { display: flex; flex-wrap: wrap; gap: 8px; }
.pic { display: block; background: var(--tile) center / contain no-repeat; border-radius: 6px; overflow: hidden;
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.anchor .pic { width: 112px; height: 112px; border-radius: 8px; }
.anchor span { display: block; font-size: 12px; color: var(--soft); overflow-wrap: anywhere; margin-top: 6px;
  line-height: 1.3; }
.tile { position: relative; width: 72px; }
.tile .pic { width: 72px; height: 72px; border: 2px solid var(--line); font-size: 10px; padding: 2px;
  color: var(--soft); overflow-wrap: anywhere; line-height: 1.2; }
.tile.right .pic { border-color: var(--right); } .tile.wrong .pic { border-color: var(--wrong); }
.tile.left .pic { opacity: .55; } .tile.missed .pic { border: 2px dashed var(--missed); opacity: .75; }
.tile figcaption { font-size: 12px; text-align: center; color: var(--soft); font-variant-numeric: tabular-nums; }
.tile figcaption em { font-style: normal; font-weight: 700; }
.right em { color: var(--right); } .wrong em { color: var(--wrong); } .missed em { color: var(--missed); }
.tile .badge { position: absolute; top: -5px; left: -5px; min-width: 18px; height: 18px; border-radius: 9px;
  background: var(--text); color: var(--card); font-size: 11px; line-height: 18px; font-weight: 700;
  text-align: center; }
.chips { display: flex; flex-wrap: wrap; gap: 8px; margin-bottom: 16px; font-size: 13px; color: var(--soft); }
.chips span { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 4px 10px; }
.chips b { color: var(--text); text-transform: capitalize; margin-right: 4px; }
.more { align-self: center; color: var(--soft); font-size: 13px; }
footer { margin-top: 56px; color: var(--soft); font-size: 13px; }
@media (max-width: 640px) {
  main { padding: 24px 16px 48px; }
  h2 { margin-top: 44px; }
  figure.panel { padding: 14px 10px 6px; }
  .chart text { font-size: 13px; }
  .tuple { grid-template-columns: 1fr; gap: 12px; padding: 14px; }
  .anchor { display: grid; grid-template-columns: 88px 1fr; gap: 0 12px; align-items: center; }
  .anchor h4 { grid-column: 2; align-self: end; margin: 0; }
  .anchor .pic { width: 88px; height: 88px; grid-row: 1 / 3; grid-column: 1; }
  .anchor span { grid-column: 2; align-self: start; }
  .tile, .tile .pic { width: 62px; } .tile .pic { height: 62px; }
}
@media print { body { background: none; } figure.panel, .tuple { break-inside: avoid; } }
"""


def page(title: str, body: str, extra_style: str = "") -> str:
    """The whole HTML text; nothing in it points outside."""
    series = "\n".join(
        f".s{n} {{ stroke: var(--series-{n}); stroke-width: 1.8; fill: none; stroke-linejoin: round; }} "
        f".d{n} {{ fill: var(--series-{n}); }} .f{n} {{ fill: var(--series-{n}); fill-opacity: .14; }}"
        for n in range(1, 6)
    )
    style = (
        f":root {{ color-scheme: light dark;{_LIGHT}}}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{{_DARK}}} }}"
        f"{_STYLE.replace('SERIES', series)}{extra_style}"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}\n</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, about: str, body: str) -> str:
    """A headed part of the page; empty without a body."""
    lead = f'<p class="soft">{escape(about)}</p>' if about else ""
    return f"<section>\n<h2>{escape(title)}</h2>\n{lead}\n{body}\n</section>\n" if body else ""


def figure(title: str, about: str, chart: str) -> str:
    """A chart with its title and a line that says how to read it; empty without a chart."""
    if not chart:
        return ""
    line = f"<span>{escape(about)}</span>" if about else ""
    return f'<figure class="panel"><figcaption><h3>{escape(title)}</h3>{line}</figcaption>{chart}</figure>\n'
