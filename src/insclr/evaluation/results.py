"""The results of a measurement, in percent: numbers for programs, a table for people."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Ids
from insclr.data.labels import Labels
from insclr.data.table import one_line
from insclr.evaluation.calibration import ANSWERS, Calibration
from insclr.evaluation.protocol import Ranks, Score
from insclr.recipe import DescriptorRecipe

RECALL_AT = (1, 5, 10)
SHOWN = 10  # results kept for each query, and worst queries reported


class QueryResult(NamedTuple):
    """One query: its AP in percent and the 1-based rank of the first right result."""

    path: str
    instance: str
    ap: float
    first: int


@dataclass(frozen=True)
class LabelResult:
    """Leave-one-out retrieval over a labels file, query by query. Numbers in percent."""

    labels: Labels
    queries: Ids  # (Q,) rows of the labels that were asked; those without a positive are left out
    ap: NDArray[np.float64]  # (Q,) average precision of each query, a fraction
    first: Ranks  # (Q,) 0-based rank of the first positive
    top: Ids  # (Q, shown) rows of the labels found first, -1 where there are no more
    images: int  # size of the database
    calibration: Calibration | None = None  # of the score, where it was measured
    answered: Calibration | None = None  # after some pairs were answered
    box_iou: float | None = (
        None  # mean IoU, a fraction, of the boxes found in right results among the first SHOWN
    )
    boxes: int = 0  # how many boxes that is the mean of

    @property
    def map(self) -> float:
        """Mean average precision."""
        return 100 * float(self.ap.mean())

    def recall(self, k: int) -> float:
        """Share of the queries with a positive among their first k results."""
        return 100 * float((self.first < k).mean())

    def per_instance(self) -> dict[str, float]:
        """Mean AP of each instance's queries, lowest first."""
        instances = np.array(self.labels.instances)[self.queries]
        names, which = np.unique(instances, return_inverse=True)
        means = 100 * np.bincount(which, weights=self.ap) / np.bincount(which)
        order = np.argsort(means, kind="stable")
        return {str(names[i]): float(means[i]) for i in order}

    def worst(self, count: int = SHOWN) -> list[QueryResult]:
        """The queries with the lowest AP."""
        order = np.argsort(self.ap, kind="stable")[:count]
        paths, instances = self.labels.paths, self.labels.instances
        return [
            QueryResult(paths[row], instances[row], 100 * float(ap), int(first) + 1)
            for row, ap, first in zip(self.queries[order], self.ap[order], self.first[order], strict=True)
        ]

    def to_json(self) -> dict[str, object]:
        """Everything a program wants, ready for json.dumps."""
        return {
            "map": self.map,
            **{f"r@{k}": self.recall(k) for k in RECALL_AT},
            "queries": len(self.queries),
            "images": self.images,
            **({} if self.box_iou is None else {"box_iou": 100 * self.box_iou, "boxes": self.boxes}),
            "instances": self.per_instance(),
            "worst": [query._asdict() for query in self.worst()],
            **(self.calibration.to_json() if self.calibration else {}),
            **({f"with_{ANSWERS}_answers": self.answered.to_json()} if self.answered else {}),
        }

    def table(self) -> str:
        """What a person wants: the numbers, the weakest instances, the worst queries."""
        head = "".join(f"{name:>9}" for name in ("mAP", *(f"R@{k}" for k in RECALL_AT), "queries", "images"))
        values = "".join(f"{value:9.2f}" for value in (self.map, *(self.recall(k) for k in RECALL_AT)))
        lines = [head, f"{values}{len(self.queries):9d}{self.images:9d}"]
        if self.box_iou is not None:
            lines.append(f"{100 * self.box_iou:9.2f}  mean IoU of {self.boxes} boxes found in right results")
        if self.calibration is not None and self.answered is not None:
            lines += ["", f"score: {self.calibration.line()}"]
            lines.append(f"after {ANSWERS} answered pairs: {self.answered.line()}")
        lines += ["", "mAP per instance, lowest first"]
        lines += [f"{value:9.2f}  {one_line(name)}" for name, value in self.per_instance().items()]
        lines += ["", "worst queries (AP, rank of the first right result)"]
        lines += [f"{query.ap:9.2f} {query.first:8d}  {one_line(query.path)}" for query in self.worst()]
        return "\n".join(lines)


@dataclass(frozen=True)
class ProtocolResult:
    """A public benchmark, setting by setting."""

    name: str
    scores: Mapping[str, Score]
    queries: int
    images: int  # size of the database, distractors included
    missing: tuple[str, ...] = ()  # images left out because they were not there or not readable
    described: DescriptorRecipe | None = None  # how images were described, where that is known

    def to_json(self) -> dict[str, object]:
        """Everything a program wants, ready for json.dumps; a benchmark without settings has no sub-tables."""
        how = self.described
        told: dict[str, object] = {
            "protocol": self.name,
            **({} if how is None else {"size": how.size, "fit": how.fit, "scales": list(how.scales)}),
            "queries": self.queries,
            "images": self.images,
            "missing": list(self.missing),
        }
        for setting, score in self.scores.items():
            # A setting without any positive has no mean; JSON knows no nan.
            percent: dict[str, object] = {
                name: None if np.isnan(mean) else 100 * mean for name, mean in score.means.items()
            }
            percent["queries"] = int((~np.isnan(score.ap)).sum())
            told |= percent if setting == "all" else {setting: percent}
        return told

    def table(self) -> str:
        """What a person wants: one line a setting."""
        columns = list(next(iter(self.scores.values())).means)
        width = max(10, *(len(setting) + 2 for setting in self.scores))
        lines = [f"{self.name}: {self.queries} queries, {self.images} images"]
        if (how := self.described) is not None:
            scales = ", ".join(f"{scale:.3g}" for scale in how.scales)
            lines[0] += f"; described at {how.size} px, {how.fit}, scales {scales}"
        lines.append(
            " " * width
            + "".join(f"{column.replace('map', 'mAP').replace('mp', 'mP'):>9}" for column in columns)
        )
        for setting, score in self.scores.items():
            lines.append(
                f"{setting:{width}}" + "".join(f"{100 * score.means[column]:9.2f}" for column in columns)
            )
        if self.missing:
            lines.append(f"{len(self.missing)} images were left out: not comparable with published numbers.")
        return "\n".join(lines)
