"""What matched points are worth, and whether they help a collection: decided without labels.

The evidence of a pair of photos is the sum over its matched points of their rarity (`local_index`). Cosine and
evidence are two observations of one fact: a search adds what the evidence is worth to the log-odds of the score.
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
MOST_CONTRADICTED = (
    0.3  # share of them whose pixels may contradict the points: a table under different things
)
# Scores are kept this far from 0 and 1 when their log-odds are taken: a cosine alone proves nothing beyond.
_LEAST = 0.02

Values = NDArray[np.float64]


# What evidence adds to the log-odds of a score. By hand, with labels of the clutter set and smvs_dvd100 in view.
_EVIDENCE, _ODDS = (0.0, 0.1, 4.0, 15.0), (0.0, 4.0, 7.0, 9.0)
_WEIGHT_SPREAD, _MOST_WEIGHT = 0.5, 2.0  # what is assumed of the weight before any answer: 1 +- 0.5


def fuse(scores: Values, evidence: Values, weight: float = 1.0) -> Values:
    """The probability of cosine and evidence together; NaN is evidence of which nothing is known."""
    return np.asarray(1 / (1 + np.exp(-(log_odds(scores) + weight * _odds(evidence)))))


def fit_weight(scores: Values, evidence: Values, same: NDArray[np.bool_]) -> float:
    """The weight of the evidence under which the answers of people are likeliest, given a weak prior."""
    weights = np.linspace(0, _MOST_WEIGHT, 41)
    odds = log_odds(scores) + weights[:, None] * _odds(evidence)  # (weights, answers)
    unlikely = np.logaddexp(0, np.where(same, -odds, odds)).sum(1) + ((weights - 1) / _WEIGHT_SPREAD) ** 2 / 2
    return float(weights[unlikely.argmin()])


def _odds(evidence: Values) -> Values:
    return np.where(np.isnan(evidence), 0.0, np.interp(evidence, _EVIDENCE, _ODDS))


def log_odds(scores: Values) -> Values:
    """The logarithm of p / (1 - p)."""
    inside = np.clip(scores, _LEAST, 1 - _LEAST)
    return np.asarray(np.log(inside / (1 - inside)))


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
    weight: float = 1.0  # of the evidence
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
        fused = fuse(scores, evidence, self.weight)
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
    contradicted: float = 0.0  # share of the confirmed neighbours

    @property
    def helps(self) -> bool:
        """Whether matched points tell neighbours from random pairs, and pixels agree with them."""
        near, chance = (share / (1 - share) for share in self[:2])
        lifted = self.neighbours >= _LEAST_CONFIRMED and near >= _LEAST_LIFT * chance
        return lifted and self.contradicted <= MOST_CONTRADICTED

    def reason(self) -> str:
        """The shares in words."""
        near, chance = f"{self.neighbours:.0%} of near neighbours", f"{self.random_pairs:.1%} of random pairs"
        others = f"; pixels contradict {self.contradicted:.0%} of these neighbours"
        shown = others if self.contradicted > MOST_CONTRADICTED else ""
        return f"matched points confirm {near} and {chance}{shown}"


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
    shares, contradicted = [], 0.0
    for each in (crossed, pairs):
        known = [
            verify(mine, theirs)
            for one, other in each
            if (mine := features[one]) and (theirs := features[other])
        ]
        confirmed = [found.contradicted for found in known if found is not None]
        shares.append((len(confirmed) + 0.5) / (len(known) + 1))
        contradicted = sum(confirmed) / max(1, len(confirmed))
    return NeighbourTest(shares[1], shares[0], contradicted)


def learn_weight(
    local: LocalEvidence, rows: SearchableRows, cosines: ScoreCurve, answers: Sequence[Answer]
) -> float:
    """The weight of the evidence by pairs that people answered; 1 without any."""
    scores, evidence, same = [], [], []
    for one, other, right in answers:
        features = local.read(np.array([one]))[0]
        if features is not None:
            evidence.append(local.weigh(local.vote([features]).queries, np.array([other]))[1][0])
            scores.append(cosines.score(rows.descriptors([one])[0] @ rows.descriptors([other]).T)[0])
            same.append(right)
    return fit_weight(np.array(scores), np.array(evidence), np.array(same, bool))
