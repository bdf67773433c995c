"""Compare models on the same queries, with confidence intervals."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from insclr.errors import UserError
from insclr.evaluation.results import RECALL_AT, LabelResult

_DRAWN = 2**22  # resampling weights held at once
Unit = Literal["query", "instance"]


class Interval(NamedTuple):
    """A value with the range that holds it in 95 % of the resamples, in percent."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Compared:
    """One model: its mAP, and how far it is from the first model on the same resamples."""

    name: str
    map: Interval
    difference: Interval
    better: float  # share of the resamples in which it beats the first model
    recall: dict[int, float]


@dataclass(frozen=True)
class Comparison:
    """Models in the order given; the first is the one the others are measured against."""

    results: Mapping[str, LabelResult]
    models: tuple[Compared, ...]
    resamples: int
    unit: Unit

    def to_json(self) -> dict[str, object]:
        """Everything a program wants, ready for json.dumps."""
        return {
            "unit": self.unit,
            "resamples": self.resamples,
            "models": [
                {
                    "name": model.name,
                    "map": model.map._asdict(),
                    "difference": model.difference._asdict(),
                    "better": model.better,
                    **{f"r@{k}": value for k, value in model.recall.items()},
                }
                for model in self.models
            ],
        }

    def table(self) -> str:
        """What a person wants: one line a model."""
        width = max(len(model.name) for model in self.models) + 2
        first = self.models[0].name
        head = f"{'':{width}}{'mAP [95 %]':>22}" + "".join(f"{f'R@{k}':>8}" for k in RECALL_AT)
        lines = [f"{head}{'difference [95 %]':>24}"]
        for model in self.models:
            recalls = "".join(f"{model.recall[k]:8.2f}" for k in RECALL_AT)
            apart = "" if model.name == first else f"{model.difference!s:>24}"
            lines.append(f"{model.name:{width}}{model.map!s:>22}{recalls}{apart}".rstrip())
        lines.append(
            f"Differences from {first}; paired bootstrap, {self.resamples} resamples by {self.unit}."
        )
        return "\n".join(lines)


def compare(
    results: Mapping[str, LabelResult], *, resamples: int = 2000, seed: int = 0, unit: Unit = "query"
) -> Comparison:
    """Paired bootstrap over the queries: every model is scored on the same resampled queries.

    With the unit "instance" all queries of an instance are drawn together: wider, and the honest choice when a
    statement about new instances is wanted, for queries of one instance share their fate.
    """
    if not results:
        raise UserError("Nothing to compare: name at least one model.")
    first = next(iter(results.values()))
    for name, result in results.items():
        asked = [result.labels.paths[q] for q in result.queries]
        if asked != [first.labels.paths[q] for q in first.queries]:
            raise UserError(
                f"{name} was asked other queries than {next(iter(results))}: use the same labels for all."
            )
    ap = 100 * np.stack([result.ap for result in results.values()], axis=1)  # (queries, models)
    groups = np.arange(len(ap)) if unit == "query" else first.labels.instance_ids()[first.queries]
    drawn = _bootstrap_means(ap, groups, resamples, seed)  # (resamples, models)
    differences = drawn - drawn[:, :1]
    models = tuple(
        Compared(
            name=name,
            map=_interval(result.map, drawn[:, i]),
            difference=_interval(result.map - first.map, differences[:, i]),
            better=float((differences[:, i] > 0).mean()),
            recall={k: result.recall(k) for k in RECALL_AT},
        )
        for i, (name, result) in enumerate(results.items())
    )
    return Comparison(results, models, resamples, unit)


def _bootstrap_means(
    values: NDArray[np.float64], groups: NDArray[np.int64], resamples: int, seed: int
) -> NDArray[np.float64]:
    """Means of the columns over resampled groups of rows, the same ones for every column."""
    _, group = np.unique(groups, return_inverse=True)
    sizes = np.bincount(group).astype(float)  # (groups,)
    sums = np.stack([np.bincount(group, column) for column in values.T], axis=1)  # (groups, columns)
    generator = np.random.default_rng(seed)
    even = np.full(len(sizes), 1 / len(sizes))
    means = np.empty((resamples, values.shape[1]))
    rows = max(1, _DRAWN // len(sizes))
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        # How often each group is drawn: the same as drawing with replacement, without the long index lists.
        times = generator.multinomial(len(sizes), even, size=count).astype(float)  # (rows, groups)
        means[start : start + count] = (times @ sums) / (times @ sizes)[:, None]
    return means


def _interval(value: float, drawn: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Interval(value, float(low), float(high))
