"""A calibrated "same instance" score from the collection itself, without labels.

Images of the same instance have the same neighbours, images of different instances have not. So the share of
neighbours that two images have in common, averaged over pairs of one similarity, tells which part of such
pairs shows the same instance: `overlap = p * same + (1 - p) * different`. What "same" looks like is read off pairs
that are each other's nearest, what "different" looks like off random pairs; the rest is solved for p.
"""

import json
import logging
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Ids, Scores
from insclr.retrieval.store import Store

_log = logging.getLogger(__name__)

LIKELY = 0.5  # the cut-off: above it a match is more likely right than wrong
NEIGHBOURS = 10  # about half the images one expects of an instance
_QUERIES = 300
_FIRST, _FURTHER, _DEPTH = 10, 14, 100  # per query: the first results, and a sample of the rest
_BINS = 25
_SAME_PAIRS = 20
_RECALIBRATE_AFTER = 0.05  # share of rows that came or went
_NOTE = "calibration"


@dataclass(frozen=True)
class ScoreCurve:
    """A rising line from cosine to score through a few points, and what it was measured on."""

    similarities: tuple[float, ...]
    scores: tuple[float, ...]
    rows: int
    pairs: int  # 0: too few rows, a plain guess

    @property
    def cutoff(self) -> float:
        """The cosine at which the score reaches the cut-off."""
        return self.similarity_at(LIKELY)

    def similarity_at(self, score: float) -> float:
        """The cosine at which the score reaches `score`."""
        return float(np.interp(score, self.scores, self.similarities))

    def score(self, similarities: Scores) -> NDArray[np.float64]:
        """The scores (0 to 1) of cosines."""
        return np.interp(similarities, self.similarities, self.scores)


# Without enough images to learn from: what pretrained networks need about.
UNCALIBRATED = ScoreCurve((0.4, 0.75, 1.0), (0.0, LIKELY, 1.0), rows=0, pairs=0)


def score_curve_of(store: Store) -> ScoreCurve:
    """The score curve kept in the store."""
    found = store.note(_NOTE)
    if found is None:
        return UNCALIBRATED
    try:
        values = json.loads(found)
        return ScoreCurve(
            tuple(values["similarities"]), tuple(values["scores"]), values["rows"], values["pairs"]
        )
    except (ValueError, TypeError, KeyError):
        _log.warning("the calibration of %s is damaged: the next `insclr index` makes it again", store.uri)
        return UNCALIBRATED


def calibrate_store(store: Store, *, always: bool = False) -> ScoreCurve:
    """Calibrate the store and keep the result in it, unless its rows are nearly those of the last time."""
    kept, rows = score_curve_of(store), store.count()
    if not always and store.note(_NOTE) and abs(rows - kept.rows) <= _RECALIBRATE_AFTER * rows:
        return kept
    found = fit_score_curve(store)
    store.set_note(_NOTE, json.dumps(asdict(found)))
    return found


def fit_score_curve(store: Store, neighbours: int = NEIGHBOURS, seed: int = 0) -> ScoreCurve:
    """Measure how the share of common neighbours grows with similarity, and turn it into a score."""
    ids = store.ids()
    neighbours = min(neighbours, len(ids) // 4)
    if neighbours < 2:
        return UNCALIBRATED
    generator = np.random.default_rng(seed)
    queries = generator.choice(ids, min(_QUERIES, len(ids)), replace=False)
    near, similar = _nearest(store, queries, min(_DEPTH, len(ids) - 1))  # (queries, depth)
    picked = _picked(generator, near.shape)
    results = np.take_along_axis(near, picked, axis=1)  # (queries, picked)
    pair_similarities = np.take_along_axis(similar, picked, axis=1).ravel()

    lists = dict(zip(queries.tolist(), near[:, :neighbours], strict=True))
    others = np.setdiff1d(results, queries)
    lists |= dict(zip(others.tolist(), _nearest(store, others, neighbours)[0], strict=True))
    pairs = [(a, b) for a, row in zip(queries.tolist(), results.tolist(), strict=True) for b in row]
    overlaps = np.array([_overlap(lists[a], lists[b]) for a, b in pairs])
    same = _overlap_of_the_same(queries, near, lists, overlaps, pair_similarities)
    strangers, unlike = _strangers(store, generator, queries, lists)
    from scipy.optimize import isotonic_regression  # half a second that a search need not wait

    order = np.argsort(pair_similarities)
    bins = np.array_split(order, min(_BINS, max(1, len(order) // 20)))
    at = np.array([pair_similarities[part].mean() for part in bins])
    share = np.array([overlaps[part].mean() for part in bins])
    scores = np.clip((share - strangers) / max(same - strangers, 1e-6), 0.0, 0.99)
    return _line(at, isotonic_regression(scores).x, unlike, rows=len(ids), pairs=len(pairs))


def _nearest(store: Store, ids: Ids, top: int) -> tuple[Ids, Scores]:
    """The `top` nearest other rows of stored rows, and their similarities."""
    near = np.empty((len(ids), top), dtype=np.int64)
    similar = np.empty((len(ids), top), dtype=np.float32)
    for start in range(0, len(ids), 256):
        part = ids[start : start + 256]
        found = store.search(store.descriptors(part), top + 1)
        # A row is its own nearest; among twins it may be missing, then the last result goes.
        own = found.ids == part[:, None]
        own[~own.any(1), -1] = True
        near[start : start + 256] = found.ids[~own].reshape(len(part), top)
        similar[start : start + 256] = found.similarities[~own].reshape(len(part), top)
    return near, similar


def _picked(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Which places of each query's results are looked at: the first ones and some of the others."""
    queries, depth = shape
    further = generator.integers(min(_FIRST, depth - 1), depth, (queries, _FURTHER))
    return np.concatenate([np.tile(np.arange(min(_FIRST, depth)), (queries, 1)), further], axis=1)


def _overlap(one: Ids, other: Ids) -> float:
    return len(set(one.tolist()) & set(other.tolist())) / len(one)


def _overlap_of_the_same(
    queries: Ids, near: Ids, lists: dict[int, Ids], overlaps: NDArray[np.float64], similarities: Scores
) -> float:
    """How much two images have in common that are each other's nearest: nearly always the same instance."""
    mutual = [
        _overlap(lists[a], lists[b])
        for a, b in zip(queries.tolist(), near[:, 0].tolist(), strict=True)
        if lists[b][0] == a
    ]
    if len(mutual) < _SAME_PAIRS:
        return float(overlaps[np.argsort(-similarities)[:_SAME_PAIRS]].mean())
    # Each is in the other's list but not in its own: one place fewer can agree.
    places = len(next(iter(lists.values())))
    return float(np.mean(mutual)) * places / (places - 1)


def _strangers(
    store: Store, generator: np.random.Generator, queries: Ids, lists: dict[int, Ids]
) -> tuple[float, float]:
    """What random pairs have in common, and their median similarity."""
    shuffled = generator.permutation(queries)
    different = queries != shuffled
    pairs = list(zip(queries[different].tolist(), shuffled[different].tolist(), strict=True))
    overlap = float(np.mean([_overlap(lists[a], lists[b]) for a, b in pairs])) if pairs else 0.0
    products = (store.descriptors(queries) * store.descriptors(shuffled)).sum(1)[different]
    return overlap, float(np.median(products)) if len(products) else 0.0


def _line(
    at: NDArray[np.float64], scores: NDArray[np.float64], unlike: float, rows: int, pairs: int
) -> ScoreCurve:
    """Points of a strictly rising line: score 0 at the similarity of strangers, 1 at the same image."""
    at = np.minimum(at, 0.999)  # half precision may take twins a little above 1
    similarities = np.array([min(unlike, float(at[0]) - 1e-3), *at, 1.0])
    values = np.array([0.0, *scores, 1.0])
    values = np.maximum.accumulate(values) + np.linspace(0, 1e-6, len(values))  # strictly: it is inverted
    values = np.clip(values / values[-1], 0, 1)
    return ScoreCurve(
        tuple(round(float(x), 5) for x in similarities),
        tuple(round(float(y), 7) for y in values),
        rows,
        pairs,
    )
