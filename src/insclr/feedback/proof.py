"""Measure the precision of search on a user's own photos: a fair sample, judged by a person, with an interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from insclr.feedback.feedback import Feedback
from insclr.store import Store

_DRAWS = 2000
DEPTH = 5  # results are drawn from so many first ones
ENOUGH = 30  # judgements before a precision is reported
_Z = 1.959964  # 95 %


@dataclass(frozen=True)
class Draw:
    """One of the sample: a query, a rank, and the result that a model gives there."""

    query: str
    rank: int  # from 1
    result: str
    model: str  # its fingerprint


@dataclass(frozen=True)
class Precision:
    """The share of right results among the first, with a 95 % interval."""

    right: int
    judged: int

    @property
    def share(self) -> float:
        """The share in the sample."""
        return self.right / self.judged if self.judged else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval: it stays within 0 and 1 and holds for few answers."""
        if not self.judged:
            return 0.0, 1.0
        n, share = self.judged, self.share
        centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
        return max(0.0, centre - half), min(1.0, centre + half)

    def sentence(self) -> str:
        """In words."""
        if self.judged < ENOUGH:
            return f"{self.judged} of {ENOUGH} results judged"
        low, high = self.interval
        return (
            f"{self.share:.0%} of the first {DEPTH} results show the same thing "
            f"(between {low:.0%} and {high:.0%}, from {self.judged} judged results)"
        )


class FirstResults:
    """The first results of searching a store for its own images, kept while the store has the same version."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.images = {row.image.hash: row.id for row in store.rows_by_path().values()}  # hash: id
        self._hash = {id_: image for image, id_ in self.images.items()}
        self._found: dict[tuple[str, int], list[str]] = {}

    def at(self, query: str, rank: int) -> str:
        """The result at this rank, from 1, by the hash of its content; empty where there are not so many."""
        depth = max(rank, DEPTH)  # one search for all ranks: equally similar results have one order
        if (query, depth) not in self._found:
            ids = self.store.search(self.store.descriptors([self.images[query]]), depth + 4).ids[0]
            self._found[query, depth] = [
                self._hash[int(one)] for one in ids if self._hash.get(int(one), query) != query
            ]
        others = self._found[query, depth]
        return others[rank - 1] if len(others) >= rank else ""


class FairSample:
    """Queries and ranks drawn uniformly, the same for every model, and the judgements of the results."""

    def __init__(self, results: Sequence[FirstResults], feedback: Feedback, seed: int = 0) -> None:
        self._results = results
        self._judged = {(one.query, one.result): one.same for one in feedback.judged}
        images = set.intersection(*(set(one.images) for one in results))
        asked = dict.fromkeys((one.query, one.rank) for one in feedback.judged if one.query in images)
        common = sorted(images)
        generator = np.random.default_rng(seed + len(asked))
        drawn: list[tuple[str, int]] = []
        if common:
            queries = generator.integers(0, len(common), _DRAWS)
            ranks = generator.integers(1, DEPTH + 1, _DRAWS)
            drawn = [(common[query], int(rank)) for query, rank in zip(queries, ranks, strict=True)]
        self._draws = list(dict.fromkeys([*asked, *drawn]))

    def draw(self) -> Draw | None:
        """The next result to judge; None when all are judged."""
        for query, rank in self._draws:
            for one in self._results:
                result = one.at(query, rank)
                if result and (query, result) not in self._judged:
                    return Draw(query, rank, result, one.store.info.fingerprint)
        return None

    def precision(self, place: int) -> Precision:
        """Of the store at this place, over the draws that were judged for every store."""
        right = judged = 0
        for query, rank in self._draws[: len(self._judged) + 1]:
            results = [one.at(query, rank) for one in self._results]
            if all((query, result) in self._judged for result in results):
                judged += 1
                right += self._judged[query, results[place]]
        return Precision(right, judged)
