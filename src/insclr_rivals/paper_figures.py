"""The figures of the paper: mAP by a setting, positives during training, first results of two models."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from insclr.api import load
from insclr.describe.descriptor_parts import DescriptorParts
from insclr.errors import UserError
from insclr.evaluation.protocol import Judgement, RetrievalProtocol, load_protocol
from insclr.report.charts import Series, line_chart
from insclr.report.page import Sample, Thumbnails, Tile, TileGroup
from insclr.retrieval.rerank import rank
from insclr.run_folder import RunReader
from insclr_rivals.runs import Entry, LabelledSet, Outcome

if TYPE_CHECKING:
    from insclr.arrays import Ids

_SHOWN = 5  # results of a query, as in the paper
_QUERIES = 12
_ENDS = 0.1  # share of a round at either end whose mean is given
Done = Sequence[tuple[Entry, list[Outcome]]]


@dataclass(frozen=True)
class Figure:
    """A chart (SVG) or queries with their results, and the same as Markdown and as values."""

    title: str
    lines: Sequence[str]
    values: Any
    chart: str = ""
    samples: Sequence[Sample] = ()
    jpegs: dict[str, str] = field(default_factory=dict)


def draw_lines(done: Done, places: Sequence[LabelledSet], out: Path) -> list[Figure]:  # noqa: ARG001
    """mAP by the setting of each row, a line for each kind of row; a row without a value is a level line."""
    columns = dict.fromkeys(name for _, outcomes in done for one in outcomes for name in one.measured)
    figures = []
    for column in columns:
        lines: dict[str, list[tuple[float | None, float]]] = {}
        for entry, outcomes in done:
            values = [one.measured[column] for one in outcomes if column in one.measured]
            lines.setdefault(entry.line, []).append((entry.x, mean(values)))
        xs = [x for points in lines.values() for x, _ in points if x is not None]
        series, values_of = [], {}
        for number, (name, points) in enumerate(lines.items(), start=1):
            level = points[0][0] is None
            where = [(x, points[0][1]) for x in (min(xs), max(xs))] if level and xs else []
            where = where or [(x, y) for x, y in points if x is not None]
            values_of[name] = where
            series.append(Series(name, where, colour=(number - 1) % 5 + 1, dashed=level, dots=not level))
        chart = line_chart(f"mAP on {column}", series, x_label="value", breaks=False)
        figures.append(Figure(f"mAP on {column}", (), values_of, chart))
    return figures


_CURVES = {
    "number": {"batch_positives": "mini-batch", "bank_positives": "memory"},
    "precision": {
        "batch_precision": "mini-batch",
        "memory_precision": "memory",
        "nn_precision": "nn (all of the tuple)",
    },
}
# (first, last) where the paper's text gives them.
_PRINTED = {
    ("number", "mini-batch"): "2.8 to 2.5",
    ("number", "memory"): "9 to 10.5",
    ("precision", "mini-batch"): "0.92 at the end",
    ("precision", "memory"): "0.60 to 0.65",
}


def draw_mining(done: Done, places: Sequence[LabelledSet], out: Path) -> list[Figure]:  # noqa: ARG001
    """Number and precision of the pseudo positives by step, in the last round of the first run."""
    outcome = done[0][1][0]
    records = [one for one in RunReader(out / outcome.run).metrics() if "batch_positives" in one]
    if not records:
        raise UserError(
            "The log of this run has no mined pairs to draw: it has every tenth step of a recipe that mines, "
            "so give rounds of at least 10 steps (rounds.steps, rounds.epochs)."
        )
    last = max(int(one["round"]) for one in records)
    records = [one for one in records if int(one["round"]) == last]
    figures = []
    for what, names in _CURVES.items():
        curves = {
            name: [(float(one["step"]), float(one[key])) for one in records if one.get(key) is not None]
            for key, name in names.items()
        }
        series = [
            Series(name, points, colour=number) for number, (name, points) in enumerate(curves.items(), 1)
        ]
        lines = ["| | first tenth | last tenth | paper |", "|---|---|---|---|"]
        for name, points in curves.items():
            if points:
                count = max(1, round(_ENDS * len(points)))
                first, end = (mean(y for _, y in part) for part in (points[:count], points[-count:]))
                lines.append(f"| {name} | {first:.2f} | {end:.2f} | {_PRINTED.get((what, name), '')} |")
        title = f"Pseudo positives of an anchor in round {last}: {what}"
        figures.append(Figure(title, lines, curves, line_chart(title, series, from_zero=True)))
    return figures


def draw_retrieval(done: Done, places: Sequence[LabelledSet], out: Path) -> list[Figure]:
    """The first results of each model for queries of every protocol, where the models differ most."""
    figures, thumbnails = [], Thumbnails(Path())
    for benchmark in places[0].benchmarks:
        if benchmark.distractors is None:
            protocol = load_protocol(benchmark.protocol, benchmark.root)
            ranked = {
                entry.name: _first_results(out / outcomes[0].run, protocol, places[0], out)
                for entry, outcomes in done
            }
            figures.append(_draw_queries(benchmark.label, protocol, ranked, thumbnails))
    return figures


def _first_results(run: Path, protocol: RetrievalProtocol, place: LabelledSet, out: Path) -> "Ids":
    """The database rows (queries, database) by similarity."""
    model = load(run, place.measuring, protocol=protocol.name)
    describe = DescriptorParts(model, out / "descriptors")
    queries, database = (
        describe(protocol.queries, protocol.boxes),
        describe(protocol.database, None),
    )
    return rank(queries, database).ids


def _draw_queries(
    label: str, protocol: RetrievalProtocol, ranked: "dict[str, Ids]", thumbnails: Thumbnails
) -> Figure:
    truth = protocol.settings["medium"] if "medium" in protocol.settings else _join_settings(protocol)
    shown = {
        name: [_without(ids[query], truth[query].junk)[:_SHOWN] for query in range(len(truth))]
        for name, ids in ranked.items()
    }
    right = {
        name: np.array(
            [np.isin(ids, judged.positives).sum() for ids, judged in zip(rows, truth, strict=True)]
        )
        for name, rows in shown.items()
    }
    spread = np.max(list(right.values()), axis=0) - np.min(list(right.values()), axis=0)
    chosen = np.argsort(-spread, kind="stable")[:_QUERIES].tolist()
    lines = ["| query | " + " | ".join(shown) + " |", "|---" * (len(shown) + 1) + "|"]
    samples, values = [], []
    for query in chosen:
        path = protocol.queries.paths[query]
        box = protocol.boxes[query] if protocol.boxes is not None else None
        groups, cells = [], []
        for name, rows in shown.items():
            good = np.isin(rows[query], truth[query].positives)
            tiles = [
                Tile(
                    protocol.database.paths[row],
                    thumbnails.css_class(str(protocol.database.file(row).absolute())),
                    kind="right" if is_right else "wrong",
                    symbol="✓" if is_right else "✗",
                )
                for row, is_right in zip(rows[query].tolist(), good.tolist(), strict=True)
            ]
            groups.append(TileGroup(name, tiles))
            cells.append("".join(tile.symbol for tile in tiles))
        asked = thumbnails.css_class(str(protocol.queries.file(query).absolute()), box)
        samples.append(Sample(path, asked, groups))
        lines.append(f"| {path} | {' | '.join(cells)} |")
        values.append({"query": path, "results": {n: rows[query].tolist() for n, rows in shown.items()}})
    return Figure(f"First {_SHOWN} results on {label}", lines, values, "", samples, thumbnails.jpegs)


def _join_settings(protocol: RetrievalProtocol) -> list[Judgement]:
    """The right images of each query in whatever setting it belongs to."""
    each = zip(*protocol.settings.values(), strict=True)
    return [Judgement(np.concatenate([one.positives for one in judged])) for judged in each]


def _without(row: "Ids", junk: "Ids") -> "Ids":
    return row[~np.isin(row, junk)]
