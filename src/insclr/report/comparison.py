"""Two pages about evaluations: the queries where two models differ most, and the reliability of scores."""

from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Ids
from insclr.data.labels import Labels
from insclr.errors import UserError
from insclr.evaluation.compare import Comparison
from insclr.evaluation.results import LabelResult
from insclr.report.page import Sample, Thumbnails, Tile, TileGroup, write_page

_SIDE = 128  # pixels of a thumbnail
_BUDGET = 4_000_000  # characters of all thumbnails
_PER_INSTANCE = 2  # queries of one instance on the page
_CELLS = 80  # of the scatter plot, along each side


def write_comparison(comparison: Comparison, out: Path | str, a: str, b: str, *, queries: int = 24) -> None:
    """Write the page for the models named `a` and `b`: at most so many queries, with the first results of each."""
    for name in (a, b):
        if name not in comparison.results:
            raise UserError(f"{name} is not among the compared models: {', '.join(comparison.results)}.")
    left, right = comparison.results[a], comparison.results[b]
    gain = right.ap - left.ap  # (queries,)
    chosen = _vary_instances(np.argsort(-np.abs(gain), kind="stable"), left)
    chosen = chosen[gain[chosen] != 0][:queries]
    thumbnails = Thumbnails(left.labels.root, side=_SIDE, budget=_BUDGET)
    samples = [(gain[query], _sample(int(query), {a: left, b: right}, thumbnails)) for query in chosen]
    write_page(
        Path(out),
        "comparison.html",
        comparison=comparison,
        a=a,
        b=b,
        dots=_dots(left.ap, right.ap),
        wins=int((gain > 0).sum()),
        losses=int((gain < 0).sum()),
        queries=len(gain),
        parts=[
            (b, [sample for better, sample in samples if better > 0]),
            (a, [sample for better, sample in samples if better < 0]),
        ],
        jpegs=thumbnails.jpegs,
    )


def _vary_instances(order: Ids, result: LabelResult) -> Ids:
    """The queries in this order, but no more than a few of one instance: they tend to fail alike."""
    seen, kept = Counter[str](), []
    for query in order.tolist():
        instance = result.labels.instances[result.queries[query]]
        seen[instance] += 1
        if seen[instance] <= _PER_INSTANCE:
            kept.append(query)
    return np.array(kept, dtype=np.int64)


def _dots(left: NDArray[np.float64], right: NDArray[np.float64]) -> list[tuple[float, float]]:
    """(AP with one model, AP with the other) of the queries; those in one cell of a fine grid are one dot."""
    cells = np.unique(np.round(np.stack([left, right], axis=1) * _CELLS), axis=0) / _CELLS  # (dots, 2)
    return [(float(x), float(y)) for x, y in cells]


def _sample(query: int, models: dict[str, LabelResult], thumbnails: Thumbnails) -> Sample:
    first = next(iter(models.values()))
    labels, row = first.labels, int(first.queries[query])
    groups = [
        TileGroup(
            name,
            [_tile(labels, row, int(i), thumbnails) for i in result.top[query] if i >= 0],
            ap=float(result.ap[query]),
        )
        for name, result in models.items()
    ]
    return Sample(labels.paths[row], _thumbnail(labels, row, thumbnails), groups, labels.instances[row])


def _tile(labels: Labels, query: int, found: int, thumbnails: Thumbnails) -> Tile:
    right = labels.instances[found] == labels.instances[query]
    return Tile(
        path=labels.paths[found],
        thumbnail=_thumbnail(labels, found, thumbnails),
        kind="right" if right else "wrong",
        symbol="✓" if right else "✗",
        title=f"{labels.instances[found]}: {labels.paths[found]}",
    )


def _thumbnail(labels: Labels, row: int, thumbnails: Thumbnails) -> str:
    """The image as it was compared: cut to its box only where it is a query."""
    boxes = labels.query_boxes
    return thumbnails.css_class(labels.paths[row], boxes[row] if boxes is not None else None)
