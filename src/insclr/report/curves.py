"""The charts of a run: along its training, and of its similarities."""

from collections.abc import Iterable
from typing import Any

from insclr.report.charts import Mark, Series, histogram_chart, line_chart, used_range
from insclr.report.page import figure
from insclr.report.run_record import RoundRecord, RunRecord

# Colours keep their meaning on the whole page: 1 batch, 2 memory, 3 loss and mAP, 4 nearest, 5 all or random.
_BATCH, _MEMORY, _MAIN, _NEAREST, _GREY = 1, 2, 3, 4, 5


def training_curves(run: RunRecord) -> str:
    """Loss and mAP; number and precision of the positives (the paper's analysis figure); similarities."""
    # Panels that belong together stand side by side, with labels (mAP beside the loss) and without.
    figures = [
        _chart(run, "Loss", "What training makes smaller.", [("loss", "loss", _MAIN)]),
        _map_chart(run) or _pairs_chart(run),
        _chart(
            run,
            "Positives in the batch",
            "Neighbours in the tuple that an anchor takes for pictures of the same thing.",
            [("batch_positives", "per anchor", _BATCH)],
            from_zero=True,
        ),
        _chart(
            run,
            "Positives from the memory",
            "Further pictures of the same thing, mined from the anchor's candidate pool.",
            [("bank_positives", "per anchor", _MEMORY)],
            from_zero=True,
        ),
        _chart(
            run,
            "Precision in the batch",
            "Share of the selected that are right, by the labels; nn would take all neighbours.",
            [("batch_precision", "selected", _BATCH), ("nn_precision", "nn: all neighbours", _GREY)],
            percent=True,
        ),
        _chart(
            run,
            "Precision from the memory",
            "Share of the mined that are right, by the labels. The easiest ones are in the tuple already.",
            [("memory_precision", "mined", _MEMORY)],
            percent=True,
        ),
        _chart(
            run,
            "Active negatives",
            "Negatives still more similar than the margin, per query image: what is left to push apart.",
            [("active_negatives", "above the margin", _NEAREST)],
            from_zero=True,
        ),
        _pairs_chart(run) if _map_chart(run) else "",
    ]
    return f'<div class="grid">{"".join(figures)}</div>' if any(figures) else ""


def round_marks(run: RunRecord) -> list[Mark]:
    """Where each round begins on the common axis; none for a single round."""
    if len(run.rounds) < 2:
        return []
    word = "round " if len(run.rounds) <= 6 else ""
    return [Mark(one.offset, f"{word}{one.number}") for one in run.rounds]


def similarity_histograms(run: RunRecord) -> str:
    """Per round, at its start and its end: random pairs, nearest neighbours, tuple members, the mined."""
    looks = [
        (one, name, one.inspections[name])
        for one in run.rounds
        for name in ("start", "end")
        if one.inspections.get(name, {}).get("histograms")
    ]
    if not looks:
        return ""
    edges = looks[0][2]["histograms"]["edges"]
    reach = used_range(edges, (h for _, _, look in looks for h in look["histograms"]["counts"].values()))
    figures = [_histogram(one, name, look, reach) for one, name, look in looks]
    return f'<div class="grid">{"".join(figures)}</div>'


def _chart(
    run: RunRecord,
    title: str,
    about: str,
    wanted: Iterable[tuple[str, str, int]],
    *,
    percent: bool = False,
    from_zero: bool = False,
) -> str:
    series = [Series(name, run.curve(key), colour, dashed=colour == _GREY) for key, name, colour in wanted]
    if not series[0].points:
        return ""
    chart = line_chart(
        title,
        series,
        marks=round_marks(run),
        x_names=run.step_names(),
        percent=percent,
        from_zero=from_zero,
    )
    return figure(title, about, chart)


def _pairs_chart(run: RunRecord) -> str:
    return _chart(
        run,
        "Similarity of pairs",
        "Mean cosine of the pairs that the loss pulls together and pushes apart.",
        [("positive_similarity", "positive pairs", _MAIN), ("negative_similarity", "negative pairs", _GREY)],
    )


def _map_chart(run: RunRecord) -> str:
    # Two measurements at one place are the same network measured twice: the later one is drawn.
    points = sorted(dict(run.maps()).items())
    if len(points) < 2:
        return ""
    names = {float(x): f"after {x:,} steps" for x, _ in points}
    chart = line_chart(
        "mAP",
        [Series("mAP", [(float(x), y) for x, y in points], _MAIN, dots=True)],
        marks=round_marks(run),
        x_names=names,
        breaks=False,
    )
    return figure("mAP", "Mean average precision by the labels; training never sees them.", chart)


def _histogram(one: RoundRecord, name: str, look: dict[str, Any], reach: tuple[float, float]) -> str:
    colours = {
        "random pairs": _GREY,
        "nearest neighbour": _NEAREST,
        "tuple members": _BATCH,
        "mined": _MEMORY,
    }
    counts = look["histograms"]["counts"]
    title = f"Round {one.number}, {name}"
    criteria = look.get("criteria", {})
    marks = [
        Mark(criteria[key], text)
        for key, text in (("margin", "margin"), ("batch_threshold", "T_b"))
        if isinstance(criteria.get(key), int | float)
    ]
    chart = histogram_chart(
        title,
        look["histograms"]["edges"],
        counts,
        colours=[colours.get(series, _MAIN) for series in counts],
        reach=reach,
        marks=sorted(marks, key=lambda mark: mark.x),
    )
    return figure(title, "", chart)
