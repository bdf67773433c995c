"""Measure the calibration of the score with labels: 72 % of the matches scored 72 % should be right."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from insclr.arrays import Descriptors, Ids
from insclr.data.labels import Labels
from insclr.neighbours.exact import largest, score_blocks
from insclr.retrieval.rerank import rank
from insclr.retrieval.score import ScoreCurve, fit_answers, fit_score_curve
from insclr.store import Neighbours

BINS = 10
DEPTH = 50  # results of each query that count for the expected calibration error
ANSWERS = 200  # pairs that a person is supposed to have answered, for the second measurement
_STEPS = 20_000  # cut-offs tried for the best F1, evenly spaced cosines

Shares = NDArray[np.float64]
Flags = NDArray[np.bool_]


class ReliabilityBin(NamedTuple):
    """Matches of nearly one score: how many, their mean score and the share of them that is right."""

    pairs: int
    score: float
    right: float


@dataclass(frozen=True)
class Calibration:
    """How far scores and the labels' truth are apart; `ece` from 0 to 1, the others in percent.

    The line is a score of 0.25. `best_f1` is the largest F1 of any single cut-off.
    """

    ece: float
    line_precision: float
    line_recall: float
    line_f1: float
    best_f1: float
    bins: tuple[ReliabilityBin, ...]

    def to_json(self) -> dict[str, object]:
        """The numbers by name, and the bins of the reliability chart."""
        values = asdict(self)
        values["reliability"] = [one._asdict() for one in self.bins]
        del values["bins"]
        return values

    def line(self) -> str:
        """One line for people."""
        return (
            f"expected calibration error {self.ece:.3f}; at the line: precision {self.line_precision:.1f}, "
            f"recall {self.line_recall:.1f}, F1 {self.line_f1:.1f} (best cut-off {self.best_f1:.1f})"
        )


def reliability(scores: Shares, right: Flags, bins: int = BINS) -> tuple[ReliabilityBin, ...]:
    """Matches in bins of equal count, by ascending score."""
    order = np.argsort(scores, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return tuple(ReliabilityBin(len(p), float(scores[p].mean()), float(right[p].mean())) for p in parts)


def expected_calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """The mean distance between score and share of right matches, weighted by the bins' counts."""
    total = sum(one.pairs for one in bins)
    return sum(one.pairs * abs(one.score - one.right) for one in bins) / total if total else 0.0


def f1(found: float, right: float, wanted: float) -> float:
    """F1 in percent of `found` matches, `right` of them right, where `wanted` there are."""
    return 200 * right / (found + wanted) if found + wanted else 0.0


def measure_calibration(rows: Descriptors, labels: Labels) -> tuple[Calibration, Calibration]:
    """Calibrate the index images without labels, score every query with all of them, and compare with the labels.

    `rows` are unit descriptors (N, D) in the order of the labels. Queries without a positive count too: their matches
    are all wrong. The second measurement is of the score after ANSWERS pairs, taken from the labels, have moved it.
    """
    index, queries = labels.role_ids("index"), labels.role_ids("query")
    curve = fit_score_curve(ArrayRows(rows[index]))
    pairs = _pairs(rows, labels, queries, index)
    shown = np.isfinite(pairs.first)
    answers = _simulate_answers(pairs, curve)
    return _calibration(pairs, curve, shown), _calibration(pairs, answers, shown)


@dataclass(frozen=True)
class _Pairs:
    """All (query, result) pairs: the first results one by one, the others counted by cosine."""

    first: Shares  # (Q, depth) cosines, -inf where there is no such result
    right: Flags  # (Q, depth)
    counts: Ids  # (steps,) pairs by cosine, ascending
    positives: Ids  # (steps,) those of them that are right


def _pairs(rows: Descriptors, labels: Labels, queries: Ids, index: Ids) -> _Pairs:
    instances = labels.instance_ids()
    found = instances[index]
    place = np.full(len(rows), -1)
    place[index] = np.arange(len(index))
    own = torch.from_numpy(place[queries])
    depth = min(DEPTH, len(index))
    first, right = np.empty((len(queries), depth)), np.zeros((len(queries), depth), dtype=bool)
    counts, positives = np.zeros(_STEPS, dtype=np.int64), np.zeros(_STEPS, dtype=np.int64)
    database = torch.from_numpy(rows[index])
    for block, products in score_blocks(torch.from_numpy(rows[queries]), database, own=own):
        same = found[None] == instances[queries[block]][:, None]  # (block, index)
        values, columns = largest(products, depth)
        first[block] = values.numpy()
        right[block] = np.take_along_axis(same, columns.numpy(), axis=1)
        cosines = products.numpy()
        there = np.isfinite(cosines)
        steps = _step(cosines[there])
        counts += np.bincount(steps, minlength=_STEPS)
        positives += np.bincount(steps[same[there]], minlength=_STEPS)
    return _Pairs(first, right, counts, positives)


def _step(cosines: NDArray[np.float32] | float) -> Ids:
    return np.clip((np.asarray(cosines) + 1) / 2 * _STEPS, 0, _STEPS - 1).astype(np.int64)


def _simulate_answers(pairs: _Pairs, curve: ScoreCurve) -> ScoreCurve:
    """The curve after answers about random results among the first ones of random queries."""
    generator = np.random.default_rng(0)
    queries, depth = pairs.first.shape
    rows = generator.integers(0, queries, ANSWERS)
    ranks = generator.integers(0, depth, ANSWERS)
    chosen = np.isfinite(pairs.first[rows, ranks])
    rows, ranks = rows[chosen], ranks[chosen]
    cosines = pairs.first[rows, ranks].astype(np.float32)
    scale, offset = fit_answers(curve.score(cosines), pairs.right[rows, ranks])
    return curve.move(scale, offset, len(rows))


def _calibration(pairs: _Pairs, curve: ScoreCurve, shown: Flags) -> Calibration:
    bins = reliability(curve.score(pairs.first[shown].astype(np.float32)), pairs.right[shown])
    wanted = float(pairs.positives.sum())
    # From the highest cosine down: pairs and positives at or above each step.
    above, right = np.cumsum(pairs.counts[::-1])[::-1], np.cumsum(pairs.positives[::-1])[::-1]
    line = int(_step(curve.cutoff))
    best = max(f1(float(n), float(p), wanted) for n, p in zip(above, right, strict=True))
    return Calibration(
        ece=expected_calibration_error(bins),
        line_precision=100 * float(right[line]) / max(1.0, float(above[line])),
        line_recall=100 * float(right[line]) / max(1.0, wanted),
        line_f1=f1(float(above[line]), float(right[line]), wanted),
        best_f1=best,
        bins=bins,
    )


class ArrayRows:
    """Descriptors in memory as the calibration wants them; a row's id is its place."""

    def __init__(self, rows: Descriptors) -> None:
        self._rows = np.ascontiguousarray(rows)

    def ids(self) -> Ids:
        """Every id."""
        return np.arange(len(self._rows))

    def descriptors(self, ids: Sequence[int] | Ids) -> Descriptors:
        """The descriptors of these ids."""
        return self._rows[np.asarray(ids, dtype=np.int64)]

    def search(self, queries: Descriptors, top: int) -> Neighbours:
        """The `top` nearest rows of every query."""
        found = rank(queries, self._rows, depth=top)
        return Neighbours(found.ids, found.scores)
