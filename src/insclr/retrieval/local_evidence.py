"""What matched points are worth in a collection, learned without labels.

The evidence of a pair of photos is the sum over its matched points of their rarity (`local_index`). Cosine and
evidence are two observations of one fact, taken as independent given that the photos show the same instance, or not.
The score of the cosine is the probability to begin with. From it follows how often each amount of evidence occurs in
both cases (expectation maximisation), and with that the log-likelihood ratio that a search adds to the log-odds of
the score.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Ids
from insclr.retrieval.local_features import LocalFeatures
from insclr.retrieval.local_index import LocalIndex
from insclr.retrieval.ranking import Results
from insclr.retrieval.score import Answer, ScoreCurve, SearchableRows
from insclr.retrieval.verification import Geometry, verify

_log = logging.getLogger(__name__)

VERIFIED = 50  # nearest rows by cosine, and as many by votes, that are verified
NEAREST = 3  # neighbours of each image of the test
_SAMPLED = 50  # images of the test
_LEAST_CONFIRMED = 0.05  # share of neighbours that verification must confirm,
_LEAST_LIFT = 4.0  # and how many times the odds of random pairs
_QUERIES = 40  # of the collection itself, that the curve is learned from
_BINS = 8
_STEPS = 30
_MOST_ODDS, _LEAST_ODDS = 7.0, 0.5
_PRIOR = 1.0  # pairs spread over all bins, in both cases
_LEAST = 1e-4  # scores are kept this far from 0 and 1 when their log-odds are taken

Values = NDArray[np.float64]


@dataclass(frozen=True)
class EvidenceCurve:
    """A rising curve from evidence to a log-likelihood ratio; the first point is for pairs without a geometry."""

    evidence: tuple[float, ...]
    odds: tuple[float, ...]

    @property
    def informs(self) -> bool:
        """Whether a geometry makes a pair more likely to be right."""
        return self.odds[-1] - self.odds[0] >= _LEAST_ODDS

    def ratio(self, evidence: Values) -> Values:
        """What the evidence adds to the log-odds of a score; NaN is a pair of which nothing is known."""
        found = np.interp(evidence, self.evidence, self.odds)
        return np.where(np.isnan(evidence), 0.0, found)

    def fuse(self, scores: Values, evidence: Values) -> Values:
        """The probability of cosine and evidence together."""
        return 1 / (1 + np.exp(-(log_odds(scores) + self.ratio(evidence))))


# Of collections too small to learn from: chosen by hand, in the middle of what the measured sets give.
DEFAULT_CURVE = EvidenceCurve((0.0, 4.0, 15.0, 60.0), (0.0, 1.0, 4.0, 6.0))


def log_odds(scores: Values) -> Values:
    """The logarithm of p / (1 - p)."""
    inside = np.clip(scores, _LEAST, 1 - _LEAST)
    return np.asarray(np.log(inside / (1 - inside)))


def fit_evidence_curve(scores: Values, evidence: Values) -> EvidenceCurve:
    """The curve from pairs with the score of their cosine and their evidence."""
    from scipy.optimize import isotonic_regression

    proven = np.sort(evidence[evidence > 0])
    if len(proven) < 10:
        return DEFAULT_CURVE
    edges = np.unique(np.quantile(proven, np.linspace(0, 1, min(_BINS, len(proven) // 5) + 1)[:-1]))
    bins = np.where(evidence > 0, np.searchsorted(edges, evidence, side="right"), 0)
    count = len(edges) + 1
    at = np.array([0.0, *(evidence[bins == i].mean() for i in range(1, count))])
    share = _PRIOR * (np.bincount(bins, minlength=count) + 1) / (len(bins) + count)
    prior, odds = log_odds(scores), np.zeros(count)
    right = DEFAULT_CURVE.fuse(scores, evidence)  # where cosines tell nothing, it stays
    for _ in range(_STEPS):
        same = np.bincount(bins, right, minlength=count) + share
        other = np.bincount(bins, 1 - right, minlength=count) + share
        ratio = np.log(same / same.sum()) - np.log(other / other.sum())
        odds = isotonic_regression(ratio, weights=same + other).x.clip(-_MOST_ODDS, _MOST_ODDS)
        right = 1 / (1 + np.exp(-(prior + odds[bins])))
    return EvidenceCurve(tuple(at.round(3).tolist()), tuple(odds.round(4).tolist()))


class WeighedQuery(NamedTuple):
    """A query and how rare each of its points is in the collection."""

    features: LocalFeatures
    rarity: NDArray[np.float32]  # (points,)


class Votes(NamedTuple):
    """The images with most votes of some queries, best first."""

    ids: Ids
    queries: Sequence[WeighedQuery]


ReadFeatures = Callable[[Ids], Sequence[LocalFeatures | None]]


@dataclass
class LocalEvidence:
    """The local features of a collection: an index that votes, and the points that verify."""

    ids: Ids  # of the images of the index, ascending
    index: LocalIndex
    read: ReadFeatures
    curve: EvidenceCurve = DEFAULT_CURVE
    _warned: bool = False  # of missing features, once

    def vote(self, queries: Sequence[LocalFeatures]) -> Votes:
        """The images that share most points with the queries."""
        votes = [self.index.vote(one) for one in queries]
        scores = np.max([scores for scores, _ in votes], axis=0)
        order = np.argsort(-scores, kind="stable")[:VERIFIED]
        weighed = [WeighedQuery(one, rarity) for one, (_, rarity) in zip(queries, votes, strict=True)]
        return Votes(self.ids[order[scores[order] > 0]], weighed)

    def weigh(self, queries: Sequence[WeighedQuery], ids: Ids) -> tuple[list[Geometry | None], Values]:
        """The best geometry of each row with a query and its evidence, 0 for none; NaN for a row without features."""
        geometries: list[Geometry | None] = []
        evidence = np.zeros(len(ids))
        for place, found in enumerate(self.read(ids)):
            best: Geometry | None = None
            if found is None:
                evidence[place] = np.nan
            else:
                for query, rarity in queries:
                    geometry = verify(query, found)
                    if geometry is not None and rarity[geometry.rows].sum() > evidence[place]:
                        best, evidence[place] = geometry, rarity[geometry.rows].sum()
            geometries.append(best)
        return geometries, evidence

    def rank(self, votes: Votes, found: Results, scores: Values) -> Results:
        """The results by cosine and evidence: the nearest and those with votes are verified.

        `scores` are those of the cosines.
        """
        first = np.argsort(-found.similarities, kind="stable")[:VERIFIED]
        places = np.union1d(first, np.flatnonzero(np.isin(found.ids, votes.ids)))
        geometries: list[Geometry | None] = [None] * len(found.ids)
        compared = np.zeros(len(found.ids), bool)
        evidence = np.zeros(len(found.ids))  # the others are taken as compared without success
        some, evidence[places] = self.weigh(votes.queries, found.ids[places])
        for place, geometry in zip(places.tolist(), some, strict=True):
            geometries[place] = geometry
        compared[places] = ~np.isnan(evidence[places])
        missing = int(np.isnan(evidence).sum())
        if missing and not self._warned:
            self._warned = True
            _log.warning(
                "%d of the %d images compared have no local features: run `insclr index`",
                missing,
                len(places),
            )
        fused = self.curve.fuse(scores, evidence)
        order = np.lexsort((-found.similarities, -fused))
        return replace(
            found.reorder(order),
            scores=fused[order],
            geometries=[geometries[i] for i in order.tolist()],
            compared=compared[order].tolist(),
        )


class NeighbourTest(NamedTuple):
    """The shares of near neighbours and of random pairs that verification confirms."""

    neighbours: float
    random_pairs: float

    @property
    def helps(self) -> bool:
        """Whether matched points tell neighbours from random pairs."""
        near, chance = (share / (1 - share) for share in self)
        return self.neighbours >= _LEAST_CONFIRMED and near >= _LEAST_LIFT * chance

    def reason(self) -> str:
        """The shares in words."""
        near, chance = f"{self.neighbours:.0%} of near neighbours", f"{self.random_pairs:.1%} of random pairs"
        return f"matched points confirm {near} and {chance}"


def confirm_neighbours(rows: SearchableRows, read: ReadFeatures) -> NeighbourTest:
    """Verify some images against their neighbours, and against the neighbours of other images."""
    chosen = np.random.default_rng(0).permutation(rows.ids())[:_SAMPLED]
    near = dict(
        zip(chosen.tolist(), rows.search(rows.descriptors(chosen), NEAREST + 1).ids.tolist(), strict=True)
    )
    pairs = [(one, other) for one, others in near.items() for other in others if one != other]
    half = len(pairs) // 2
    crossed = [
        (one, other)
        for (one, _), (_, other) in zip(pairs, pairs[half:] + pairs[:half], strict=True)
        if other not in near[one]
    ]
    wanted = sorted({*near, *(other for _, other in pairs)})
    features = dict(zip(wanted, read(np.array(wanted, np.int64)), strict=True))
    shares = []
    for each in (pairs, crossed):
        known = [
            (mine, theirs) for one, other in each if (mine := features[one]) and (theirs := features[other])
        ]
        confirmed = sum(verify(mine, theirs) is not None for mine, theirs in known)
        shares.append((confirmed + 0.5) / (len(known) + 1))
    return NeighbourTest(*shares)


def learn_curve(
    local: LocalEvidence, rows: SearchableRows, cosines: ScoreCurve, answers: Sequence[Answer] = ()
) -> EvidenceCurve:
    """The curve of a collection, from some of its images as queries, and from the pairs that people answered."""
    scores, evidence = [np.zeros(0)], [np.zeros(0)]
    for one, other, same in answers:
        features = local.read(np.array([one]))[0]
        if features is not None:
            found = local.weigh(local.vote([features]).queries, np.array([other]))[1]
            scores.append(np.full(int(not np.isnan(found[0])), float(same)))
            evidence.append(found[~np.isnan(found)])
    for query in np.random.default_rng(0).permutation(local.ids)[:_QUERIES]:
        features = local.read(np.array([query]))[0]
        if features is None:
            continue
        votes, vector = local.vote([features]), rows.descriptors([query])
        ids = np.union1d(rows.search(vector, VERIFIED + 1).ids[0], votes.ids)
        ids = ids[(ids != query) & (ids >= 0)]
        found = local.weigh(votes.queries, ids)[1]
        known = ~np.isnan(found)
        scores.append(cosines.score(rows.descriptors(ids[known]) @ vector[0]))
        evidence.append(found[known])
    return fit_evidence_curve(np.concatenate(scores), np.concatenate(evidence))
