"""How likely a match shows the same instance: a score from the collection itself, without labels.

Images of one instance have the same neighbours, images of different instances have not. The *agreement* of two images
is the share of neighbours they have in common, beyond chance, averaged over neighbourhoods of several sizes (an
instance may have 3 images or 150). A fixed logistic function turns an agreement into a probability; averaged over
pairs of one similarity it gives this collection's curve from cosine to score. Its two constants were learned with the
labels of two sets (landmarks44, nyala237) and checked on others
(docs/research/results-search.md).

Pairs that a person has answered, or labels, move the curve to where it belongs: `calibrate_from_answers`.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Descriptors, Ids, Scores
from insclr.store import Neighbours, Store

_log = logging.getLogger(__name__)

Band = Literal["sure", "maybe", "other"]
SURE = 0.8  # "sure": at least four of five such matches are right
LIKELY = 0.5  # more likely right than wrong
# One in four. The cut-off with the best F1 lies at half of that F1 (Lipton et al., 2014): 0.5 would leave out most
# right matches of every collection that is searched less than perfectly.
DISPLAY_THRESHOLD = 0.25
# "maybe" begins at the display threshold once there are enough answers, and lower before: without labels a score may
# be far too low, and hardly any right match should be called "other".
_WIDE = 0.05
_ENOUGH_ANSWERS = 100

_SIZES = (5, 10, 20, 50, 100)  # neighbours compared; those up to a quarter of the collection
_SLOPE, _INTERCEPT = 6.6, -3.5  # agreement to log-odds; learned on landmarks44 and nyala237
_METHOD = 2  # of calibration; a store calibrated by another one is calibrated anew by the next `insclr index`
_QUERIES = 200
_FIRST, _FURTHER, _DEPTH = 10, 10, 100  # per query: the first results, and a sample of the rest
_BINS = 25
_RECALIBRATE_AFTER = 0.05  # share of rows that came or went
_NOTE = "calibration"
# What is assumed before any answer: the curve as it is, its log-odds scaled by 1 +- 0.5 and moved by 0 +- 3.
_SCALE_SPREAD, _OFFSET_SPREAD, _LEAST_SCALE = 0.5, 3.0, 0.05
_SURELY_NOT = 0.005  # scores are kept this far from 0 and 1 when their log-odds are taken


class SearchableRows(Protocol):
    """What the calibration needs of a store."""

    def ids(self) -> Ids:
        """Every id, ascending."""

    def descriptors(self, ids: Sequence[int] | Ids) -> Descriptors:
        """The descriptors of these ids in this order."""

    def search(self, queries: Descriptors, top: int) -> Neighbours:
        """The `top` nearest rows of every query."""


class Answer(NamedTuple):
    """Two rows, and whether they show the same instance by a person or a label."""

    one: int
    other: int
    same: bool


@dataclass(frozen=True)
class ScoreCurve:
    """A rising curve from cosine to score through a few points, and what it was measured on."""

    similarities: tuple[float, ...]
    scores: tuple[float, ...]
    rows: int
    pairs: int  # 0: too few rows, a plain guess
    answers: int = 0  # how many moved it
    scale: float = 1.0  # what they did to the log-odds
    offset: float = 0.0
    sure_from: float = SURE  # the score that became SURE by `stretch`
    method: int = _METHOD

    @property
    def cutoff(self) -> float:
        """The cosine of the display threshold."""
        return self.similarity_at(DISPLAY_THRESHOLD)

    @property
    def maybe(self) -> float:
        """The score at which "maybe" begins."""
        return DISPLAY_THRESHOLD if self.answers >= _ENOUGH_ANSWERS else _WIDE

    def band(self, score: float) -> Band:
        """What a score means: sure from 0.8 on; maybe from 0.25 on, before there are 100 answers from 0.05 on."""
        return "sure" if score >= SURE else "maybe" if score >= self.maybe else "other"

    def similarity_at(self, score: float) -> float:
        """The cosine at which the score reaches `score`."""
        return float(np.interp(score, self.scores, self.similarities))

    def score(self, similarities: Scores) -> NDArray[np.float64]:
        """The scores (0 to 1) of cosines."""
        return np.interp(similarities, self.similarities, self.scores)

    def move(self, scale: float, offset: float, answers: int) -> "ScoreCurve":
        """The curve with its log-odds scaled and moved; random pairs keep score 0, the same image keeps 1."""
        odds = scale * _log_odds(np.array(self.scores[1:-1])) + offset
        inner = np.maximum.accumulate(1 / (1 + np.exp(-odds)))
        inner = inner + np.linspace(0, 1e-6, len(inner))  # strictly: it is inverted
        scores = (0.0, *(round(float(value), 7) for value in np.minimum(inner, 0.99999)), 1.0)
        return replace(self, scores=scores, answers=answers, scale=scale, offset=offset)

    def stretch(self, sure_from: float) -> "ScoreCurve":
        """The curve with a score of `sure_from` made SURE; random pairs keep score 0, the same image keeps 1."""
        sure_from = float(np.clip(sure_from, _SURELY_NOT, 1 - _SURELY_NOT))
        at = self.similarity_at(sure_from)
        similarities = sorted({*self.similarities, round(at, 7)})
        scores = np.interp(self.score(np.array(similarities)), [0, sure_from, 1], [0, SURE, 1])
        scores[similarities.index(round(at, 7))] = SURE
        rising = tuple(round(float(score), 7) for score in scores)
        return replace(self, similarities=tuple(similarities), scores=rising, sure_from=sure_from)


# Without enough images to learn from: what pretrained networks need about.
UNCALIBRATED = ScoreCurve((0.4, 0.75, 1.0), (0.0, LIKELY, 1.0), rows=0, pairs=0)


def score_curve_of(store: Store) -> ScoreCurve:
    """The score curve kept in the store."""
    found = store.note(_NOTE)
    if found is None:
        return UNCALIBRATED
    try:
        values = {"method": 1} | json.loads(found)
        values["similarities"], values["scores"] = tuple(values["similarities"]), tuple(values["scores"])
        curve = ScoreCurve(**values)
        curve.score(np.zeros(1, dtype=np.float32))
    except (ValueError, TypeError, KeyError):
        _log.warning("the calibration of %s is damaged: the next `insclr index` makes it again", store.uri)
        return UNCALIBRATED
    if curve.method != _METHOD:
        _warn_of_other_method(store.uri)
    return curve


@cache  # once, not with every search
def _warn_of_other_method(uri: str) -> None:
    _log.warning(
        "the scores of %s were calibrated by another version: the next `insclr index` does it anew", uri
    )


def calibrate_store(store: Store, *, always: bool = False) -> ScoreCurve:
    """Calibrate the store and keep the result in it, unless its rows are nearly those of the last time.

    The effect of answers and of learning stays.
    """
    kept, rows = score_curve_of(store), store.count()
    nearly = abs(rows - kept.rows) <= _RECALIBRATE_AFTER * rows and kept.method == _METHOD
    if not always and store.note(_NOTE) and nearly:
        return kept
    found = fit_score_curve(store)
    if kept.answers:
        found = found.move(kept.scale, kept.offset, kept.answers)
    if kept.sure_from != SURE:
        found = found.stretch(kept.sure_from)
    return store_curve(store, found)


def calibrate_from_answers(store: Store, answers: Sequence[Answer]) -> ScoreCurve:
    """Calibrate the store anew with pairs of which it is known whether they show the same instance, and keep it.

    Answers about rows that are gone are left out. They are taken as a fair sample of what searches show: random ones
    of the first 50 results, right or wrong. 200 of them are enough (docs/research/results-search.md).
    """
    there = set(store.ids().tolist())
    usable = [one for one in answers if one.one in there and one.other in there and one.one != one.other]
    base = fit_score_curve(store)
    if not usable:
        return store_curve(store, base)
    one, other = (store.descriptors([pair[side] for pair in usable]) for side in (0, 1))
    similarities = (one * other).sum(1)  # (answers,)
    same = np.array([pair.same for pair in usable])
    scale, offset = fit_answers(base.score(similarities), same)
    return store_curve(store, base.move(scale, offset, len(usable)))


def fit_answers(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> tuple[float, float]:
    """Scale and offset of the scores' log-odds under which the answers are likeliest (Platt), given a weak prior."""
    from scipy.optimize import minimize  # half a second that a search need not wait

    odds = _log_odds(scores)
    signs = np.where(same, 1.0, -1.0)

    def unlikely(values: NDArray[np.float64]) -> float:
        scale, offset = values
        prior = ((scale - 1) / _SCALE_SPREAD) ** 2 / 2 + (offset / _OFFSET_SPREAD) ** 2 / 2
        return float(np.logaddexp(0, -signs * (scale * odds + offset)).sum() + prior)

    scale, offset = minimize(unlikely, np.array([1.0, 0.0])).x
    return max(float(scale), _LEAST_SCALE), float(offset)


def answers_from_column(store: Store, column: str, count: int = 200, seed: int = 0) -> list[Answer]:
    """Answers that a column of labels gives: one of the first 50 results of each of `count` random labelled rows."""
    labels = {
        row.id: row.image.columns[column]
        for row in store.rows_by_path().values()
        if row.image.columns.get(column, "").strip()
    }
    generator = np.random.default_rng(seed)
    labelled = np.array(sorted(labels), dtype=np.int64)
    queries = (
        generator.choice(labelled, min(count, len(labelled)), replace=False) if len(labelled) else labelled
    )
    depth = min(50, len(store.ids()) - 1)
    if depth < 1 or not len(queries):
        return []
    near, _ = nearest_others(store, queries, depth)  # (queries, depth)
    ranks = generator.integers(0, depth, len(queries))
    results = near[np.arange(len(queries)), ranks].tolist()
    pairs = zip(queries.tolist(), results, strict=True)
    return [Answer(a, b, labels[a] == labels[b]) for a, b in pairs if b in labels]


def fit_score_curve(store: SearchableRows, seed: int = 0) -> ScoreCurve:
    """Measure how agreement grows with similarity, and turn it into a score."""
    from scipy.optimize import isotonic_regression  # half a second that a search need not wait

    ids = store.ids()
    sizes = [size for size in _SIZES if size <= len(ids) // 4] or [len(ids) // 4]
    if sizes[0] < 2:
        return UNCALIBRATED
    generator = np.random.default_rng(seed)
    queries = generator.choice(ids, min(_QUERIES, len(ids)), replace=False)
    depth = min(_DEPTH, len(ids) - 1)
    near, similar = nearest_others(store, queries, depth)  # (queries, depth)
    picked = _pick_places(generator, near.shape)
    results = np.take_along_axis(near, picked, axis=1)  # (queries, picked)
    similarities = np.take_along_axis(similar, picked, axis=1).ravel()
    others = np.unique(results)
    rows_of = dict(zip(others.tolist(), nearest_others(store, others, min(sizes[-1], depth))[0], strict=True))
    agreement = np.concatenate(
        [
            agreements(query, own, found, np.stack([rows_of[one] for one in found.tolist()]), sizes, len(ids))
            for query, own, found in zip(queries.tolist(), near, results, strict=True)
        ]
    )
    right = 1 / (1 + np.exp(-(_SLOPE * agreement + _INTERCEPT)))
    order = np.argsort(similarities, kind="stable")
    bins = np.array_split(order, min(_BINS, max(1, len(order) // 20)))
    at = np.array([similarities[part].mean() for part in bins])
    scores = isotonic_regression(np.array([right[part].mean() for part in bins])).x
    return _make_curve(
        at, scores, _random_pair_similarity(store, generator, queries), rows=len(ids), pairs=len(order)
    )


def agreements(
    query: int, own: Ids, results: Ids, theirs: Ids, sizes: Sequence[int], rows: int
) -> NDArray[np.float64]:
    """The agreement of a query with each of some results.

    `own` are the query's nearest (depth,), `theirs` those of each result (results, depth), the row itself in neither.
    For each size k the query's k nearest are compared with the result and its k - 1 nearest but the query.
    """
    total = np.zeros(len(results))
    is_query = theirs == query
    place = np.arange(theirs.shape[1]) - np.cumsum(is_query, axis=1)  # among those that are not the query
    for size in sizes:
        mine = own[:size]
        common = (np.isin(theirs, mine) & ~is_query & (place < size - 1)).sum(1) + np.isin(results, mine)
        chance = size / rows
        total += (common / size - chance) / (1 - chance)
    return total / len(sizes)


def store_curve(store: Store, curve: ScoreCurve) -> ScoreCurve:
    """Keep the curve in the store."""
    store.set_note(_NOTE, json.dumps(asdict(curve)))
    return curve


def _log_odds(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    inside = np.clip(scores, _SURELY_NOT, 1 - _SURELY_NOT)
    return np.asarray(np.log(inside / (1 - inside)))


def nearest_others(store: SearchableRows, ids: Ids, top: int) -> tuple[Ids, Scores]:
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


def _pick_places(generator: "np.random.Generator", shape: tuple[int, ...]) -> NDArray[np.int64]:
    """The places of each query's results that are compared: the first ones and some of the others."""
    queries, depth = shape
    further = generator.integers(min(_FIRST, depth - 1), depth, (queries, _FURTHER))
    return np.concatenate([np.tile(np.arange(min(_FIRST, depth)), (queries, 1)), further], axis=1)


def _random_pair_similarity(store: SearchableRows, generator: "np.random.Generator", queries: Ids) -> float:
    """The median similarity of random pairs."""
    shuffled = generator.permutation(queries)
    different = queries != shuffled
    products = (store.descriptors(queries) * store.descriptors(shuffled)).sum(1)[different]
    return float(np.median(products)) if len(products) else 0.0


def _make_curve(
    at: NDArray[np.float64], scores: NDArray[np.float64], unlike: float, rows: int, pairs: int
) -> ScoreCurve:
    """A strictly rising curve: score 0 at the similarity of random pairs, 1 at the same image."""
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
