"""The charts of a run: along its training, and of its similarities."""

from dataclasses import dataclass
from typing import TypedDict

from insclr.report.charts import Mark, Series, histogram_chart, line_chart, used_range
from insclr.report.run_record import Record, RunRecord

# Colours keep their meaning on the whole page: 1 batch, 2 pool, 3 loss and mAP, 4 nearest, 5 all or random.
_BATCH, _POOL, _MAIN, _NEAREST, _GREY = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Figure:
    """A chart (SVG, its texts escaped) with its title and how to read it."""

    title: str
    about: str
    chart: str


class _Drawn(TypedDict, total=False):
    percent: bool
    from_zero: bool


# Title, how to read it, the logged values with their names and colours, and how they are drawn.
_CHARTS: dict[str, tuple[str, tuple[tuple[str, str, int], ...], _Drawn]] = {
    "Loss": ("The value that training minimises.", (("loss", "loss", _MAIN),), {}),
    "Similarity of pairs": (
        "Mean cosine of the pairs that the loss pulls together and pushes apart.",
        (
            ("positive_similarity", "positive pairs", _MAIN),
            ("negative_similarity", "negative pairs", _GREY),
        ),
        {},
    ),
    "Positives in the batch": (
        "Neighbours in the tuple that are selected as photos of the same thing.",
        (("batch_positives", "per anchor", _BATCH),),
        {"from_zero": True},
    ),
    "Positives from the candidate pool": (
        "Further photos of the same thing, mined among the images nearest to the anchor.",
        (("bank_positives", "per anchor", _POOL),),
        {"from_zero": True},
    ),
    "Precision in the batch": (
        "Share of the selected that are right, by the labels; nn would select all neighbours.",
        (("batch_precision", "selected", _BATCH), ("nn_precision", "nn: all neighbours", _GREY)),
        {"percent": True},
    ),
    "Precision from the candidate pool": (
        "Share of the mined that are right, by the labels. The easiest ones are in the tuple already.",
        (("memory_precision", "mined", _POOL),),
        {"percent": True},
    ),
    "Active negatives": (
        "Negatives still more similar than the margin, per query image: what is left to push apart.",
        (("active_negatives", "above the margin", _NEAREST),),
        {"from_zero": True},
    ),
}


def training_curves(run: RunRecord) -> list[Figure]:
    """Loss and mAP; number and precision of the positives (the paper's analysis figure); similarities."""
    charts = {title: _chart(run, title) for title in _CHARTS}
    if not any(value for _, value in run.curve("bank_positives")):
        charts["Positives from the candidate pool"] = (
            None  # a method that takes positives from the batch only
        )
    # Panels that belong together stand side by side, with labels (mAP beside the loss) and without.
    loss, pairs, *others = charts.values()
    maps = _map_chart(run)
    figures = (loss, maps, *others, pairs) if maps else (loss, pairs, *others)
    return [figure for figure in figures if figure is not None]


def round_marks(run: RunRecord) -> list[Mark]:
    """Where each round begins on the common axis; none for a single round."""
    if len(run.rounds) < 2:
        return []
    word = "round " if len(run.rounds) <= 6 else ""
    return [Mark(one.offset, f"{word}{one.number}") for one in run.rounds]


def similarity_histograms(run: RunRecord) -> list[Figure]:
    """At every inspected moment: random pairs, nearest neighbours, tuple members, the mined."""
    inspections = [(name, one) for name, one in run.inspections if one.get("histograms")]
    if not inspections:
        return []
    edges = inspections[0][1]["histograms"]["edges"]
    counts = (numbers for _, one in inspections for numbers in one["histograms"]["counts"].values())
    reach = used_range(edges, counts)
    return [_histogram(name, one, reach) for name, one in inspections]


def _chart(run: RunRecord, title: str) -> Figure | None:
    about, wanted, drawn = _CHARTS[title]
    series = [Series(name, run.curve(key), colour, dashed=colour == _GREY) for key, name, colour in wanted]
    if not series[0].points:
        return None
    chart = line_chart(title, series, marks=round_marks(run), x_names=run.step_names(), **drawn)
    return Figure(title, about, chart)


def _map_chart(run: RunRecord) -> Figure | None:
    # Two measurements at one place are the same network measured twice: the later one is drawn.
    points = sorted(dict(run.maps()).items())
    if len(points) < 2:
        return None
    names = {float(x): f"after {x:,} steps" for x, _ in points}
    chart = line_chart(
        "mAP",
        [Series("mAP", [(float(x), y) for x, y in points], _MAIN, dots=True)],
        marks=round_marks(run),
        x_names=names,
        breaks=False,
    )
    seen = "training learns from them." if run.learned_from_labels else "training never sees them."
    return Figure("mAP", f"Mean average precision by the labels; {seen}", chart)


def _histogram(title: str, inspection: Record, reach: tuple[float, float]) -> Figure:
    colours = {
        "random pairs": _GREY,
        "nearest neighbour": _NEAREST,
        "tuple members": _BATCH,
        "mined": _POOL,
    }
    counts = inspection["histograms"]["counts"]
    criteria = inspection.get("criteria") or {}
    marks = [
        Mark(criteria[key], text)
        for key, text in (("margin", "margin"), ("batch_threshold", "T_b"))
        if isinstance(criteria.get(key), int | float)
    ]
    chart = histogram_chart(
        title,
        inspection["histograms"]["edges"],
        counts,
        colours=[colours.get(series, _MAIN) for series in counts],
        reach=reach,
        marks=sorted(marks, key=lambda mark: mark.x),
    )
    return Figure(title, "", chart)
