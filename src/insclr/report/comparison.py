"""One HTML page, complete in itself, of the queries where two models differ most."""

import base64
import io
from collections import Counter
from collections.abc import Callable
from functools import cache
from html import escape
from pathlib import Path

import numpy as np

from insclr.data.decode import BadImage, crop_box, decode
from insclr.data.labels import Ids, Labels
from insclr.errors import UserError
from insclr.evaluation.compare import Comparison
from insclr.evaluation.results import LabelResult
from insclr.files import whole_file

_SIDE = 128  # pixels of a thumbnail
_PER_INSTANCE = 2  # queries of one instance on the page
Tile = Callable[[int], str]  # the <img> of a row of the labels


def write_compare_page(comparison: Comparison, out: Path | str, a: str, b: str, *, queries: int = 24) -> None:
    """Write the page for the models named `a` and `b`: pictures inside, nothing loaded from elsewhere."""
    for name in (a, b):
        if name not in comparison.results:
            raise UserError(f"{name} is not among the compared models: {', '.join(comparison.results)}.")
    left, right = comparison.results[a], comparison.results[b]
    apart = right.ap - left.ap  # (queries,)
    chosen = _varied(np.argsort(-np.abs(apart), kind="stable"), left)
    chosen = chosen[apart[chosen] != 0][:queries]
    tile = cache(_tile_of(left.labels))
    body = [_head(comparison, a, b), _scatter(left, right, a, b)]
    for title, some in (
        (f"{b} finds more", chosen[apart[chosen] > 0]),
        (f"{a} finds more", chosen[apart[chosen] < 0]),
    ):
        if len(some):
            body.append(f"<h2>{escape(title)}</h2>")
            body += [_query(int(q), (a, left), (b, right), tile) for q in some]
    if len(chosen) == 0:
        body.append("<p>The two models agree on every query.</p>")
    with whole_file(out) as scratch:
        scratch.write_text(_PAGE.format(title=escape(f"{a} and {b}"), body="\n".join(body)), encoding="utf-8")


def _varied(order: Ids, result: LabelResult) -> Ids:
    """The queries in this order, but no more than a few of one instance: they tend to fail alike."""
    seen, kept = Counter[str](), []
    for query in order.tolist():
        instance = result.labels.instances[result.queries[query]]
        seen[instance] += 1
        if seen[instance] <= _PER_INSTANCE:
            kept.append(query)
    return np.array(kept, dtype=np.int64)


def _head(comparison: Comparison, a: str, b: str) -> str:
    rows = "".join(
        f"<tr><th>{escape(model.name)}</th><td>{model.map.value:.2f}</td>"
        f"<td class=soft>{model.map.low:.2f} to {model.map.high:.2f}</td>"
        + "".join(f"<td>{value:.2f}</td>" for value in model.recall.values())
        + (
            "<td class=soft colspan=2>measured against</td>"
            if model is comparison.models[0]
            else f"<td>{model.difference.value:+.2f}</td>"
            f"<td class=soft>{model.difference.low:+.2f} to {model.difference.high:+.2f}</td>"
        )
        + "</tr>"
        for model in comparison.models
    )
    recalls = "".join(f"<th>R@{k}</th>" for k in comparison.models[0].recall)
    return (
        f"<h1>{escape(a)} <span class=soft>and</span> {escape(b)}</h1>"
        f"<div class=wide><table><tr><th>model</th><th>mAP</th><th>95 %</th>{recalls}"
        f"<th>difference</th><th>95 %</th></tr>{rows}</table></div>"
        f"<p class=soft>Paired bootstrap, {comparison.resamples} resamples by {comparison.unit}. Below: the queries "
        "where the two differ most, with the first results of each. "
        "<b class=right>✓</b> the same thing, <b class=wrong>✗</b> another.</p>"
    )


def _scatter(left: LabelResult, right: LabelResult, a: str, b: str) -> str:
    """Every query as a dot: its AP with one model across, with the other up."""
    # Thousands of dots on one spot tell no more than a few: draw each cell of a fine grid once.
    cells = np.unique(np.round(np.stack([left.ap, right.ap], axis=1) * 80), axis=0) / 80 * 260
    dots = "".join(f'<circle cx="{x + 10:.0f}" cy="{270 - y:.0f}" r="1.6"/>' for x, y in cells)
    wins, losses = int((right.ap > left.ap).sum()), int((right.ap < left.ap).sum())
    return (
        '<figure><svg viewBox="0 0 280 280" role="img" aria-label="AP of every query with both models">'
        f'<rect x="10" y="10" width="260" height="260"/>{dots}'
        '<line x1="10" y1="270" x2="270" y2="10"/></svg>'
        f"<figcaption>AP of every query: across {escape(a)}, up {escape(b)}. Above the line "
        f"{escape(b)} is better ({wins} of {len(left.ap)}), below {escape(a)} ({losses}).</figcaption></figure>"
    )


def _query(query: int, a: tuple[str, LabelResult], b: tuple[str, LabelResult], tile: Tile) -> str:
    labels, row = a[1].labels, int(a[1].queries[query])
    strips = "".join(
        f"<div class=model><span class=name>{escape(name)}</span>"
        f'<span class=bar><i style="width:{100 * result.ap[query]:.1f}%"></i></span>'
        f"<span class=ap>AP {100 * result.ap[query]:.1f}</span>"
        f"<ol>{_results(labels, row, result.top[query], tile)}</ol></div>"
        for name, result in (a, b)
    )
    return (
        f"<section><div class=asked>{tile(row)}<b>{escape(labels.instances[row])}</b>"
        f"<span class=soft>{escape(labels.paths[row])}</span></div><div class=models>{strips}</div></section>"
    )


def _results(labels: Labels, row: int, found: Ids, tile: Tile) -> str:
    items = []
    for i in found[found >= 0].tolist():
        right = labels.instances[i] == labels.instances[row]
        kind, mark = ("right", "✓") if right else ("wrong", "✗")
        items.append(f"<li class={kind}>{tile(i)}<b>{mark}</b></li>")
    return "".join(items)


def _tile_of(labels: Labels) -> Tile:
    def tile(row: int) -> str:
        title = escape(f"{labels.instances[row]}: {labels.paths[row]}", quote=True)
        box = labels.boxes[row] if labels.boxes is not None else None
        try:
            # A box counts in pixels of the file, so that picture is decoded whole.
            image = decode(labels.images.file(row), longest=None if box else _SIDE)
        except BadImage as error:
            return f'<span class=none title="{title}">{escape(error.reason)}</span>'
        image = crop_box(image, box) if box else image
        image.thumbnail((_SIDE, _SIDE))
        jpeg = io.BytesIO()
        image.save(jpeg, "JPEG", quality=80)
        data = base64.b64encode(jpeg.getvalue()).decode()
        return f'<img src="data:image/jpeg;base64,{data}" alt="{title}" title="{title}">'

    return tile


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1c2024; --soft: #6b7280; --paper: #f7f7f5; --card: #fff;
  --edge: #e3e4e2; --right: #15803d; --wrong: #c2410c; --accent: #3b6fd4; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e7e9ec; --soft: #9aa3af; --paper: #14171a;
  --card: #1d2125; --edge: #30363c; --right: #4ade80; --wrong: #fb923c; --accent: #7aa5f5; }} }}
* {{ box-sizing: border-box }}
body {{ margin: 0 auto; max-width: 1180px; padding: 2rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif }}
h1 {{ font-size: 1.7rem; margin: 0 0 1rem }} h2 {{ font-size: 1.15rem; margin: 2.2rem 0 .6rem }}
.soft {{ color: var(--soft); font-weight: normal }}
.wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: .35rem .9rem .35rem 0; text-align: right; border-bottom: 1px solid var(--edge) }}
th:first-child {{ text-align: left }}
figure {{ display: flex; flex-wrap: wrap; gap: 1rem; align-items: end; margin: 1.2rem 0 }}
figcaption {{ max-width: 22rem; color: var(--soft) }}
svg {{ width: 260px; height: 260px }} svg rect {{ fill: var(--card); stroke: var(--edge) }}
svg line {{ stroke: var(--soft); stroke-dasharray: 4 4 }} svg circle {{ fill: var(--accent); opacity: .55 }}
section {{ display: flex; gap: 1.2rem; background: var(--card); border: 1px solid var(--edge);
  border-radius: 10px; padding: 1rem; margin: .8rem 0 }}
.asked {{ flex: 0 0 132px; display: flex; flex-direction: column; gap: .3rem; overflow-wrap: anywhere }}
.asked img {{ width: 128px; border-radius: 6px; outline: 3px solid var(--accent) }}
.asked span {{ font-size: .75rem }}
.models {{ flex: 1; min-width: 0 }}
.model {{ display: flex; flex-wrap: wrap; gap: .2rem .7rem; align-items: center }}
.model + .model {{ margin-top: .9rem }}
.name {{ font-weight: 600; min-width: 13rem }} .ap {{ font-variant-numeric: tabular-nums; color: var(--soft) }}
.bar {{ width: 120px; height: 6px; border-radius: 3px; background: var(--edge); overflow: hidden }}
.bar i {{ display: block; height: 100%; background: var(--accent) }}
ol {{ flex: 1 0 100%; min-width: 0; list-style: none; display: flex; gap: .4rem; margin: 0; padding: 4px;
  overflow-x: auto }}
li {{ position: relative; flex: 0 0 76px; height: 76px; border-radius: 6px; border: 3px solid; overflow: hidden }}
li img {{ width: 100%; height: 100%; object-fit: cover; display: block }}
li b {{ position: absolute; right: 0; bottom: 0; width: 1.3em; text-align: center; background: var(--card);
  border-top-left-radius: 6px; line-height: 1.3 }}
.right {{ color: var(--right); border-color: var(--right) }}
.wrong {{ color: var(--wrong); border-color: var(--wrong) }}
.none {{ display: grid; place-items: center; min-height: 64px; font-size: .65rem; text-align: center;
  color: var(--soft) }}
@media (max-width: 640px) {{ section {{ flex-direction: column }} }}
</style></head><body>
{body}
</body></html>
"""
