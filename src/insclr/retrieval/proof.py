"""How precise search is on one's own photos: a fair sample of results, judged by a person, with an interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from insclr.retrieval.said import Said
from insclr.retrieval.store import Store

DEPTH = 5  # results are drawn from so many first ones
ENOUGH = 30  # judgements before anything is said
_Z = 1.959964  # 95 %


@dataclass(frozen=True)
class Draw:
    """One of the sample: a query, a rank, and the result that a model gives there."""

    query: str
    rank: int  # from 1
    result: str


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


class FairSample:
    """Queries and ranks drawn uniformly, the same for every model, and what was judged of the results."""

    def __init__(self, stores: Sequence[Store], said: Said, seed: int = 0) -> None:
        self._stores = stores
        self._judged = {(one.query, one.result): one.same for one in said.judged}
        self._rows = [{row.image.hash: row.id for row in store.rows_by_path().values()} for store in stores]
        self._hash = [{id_: image for image, id_ in rows.items()} for rows in self._rows]
        common = sorted(set.intersection(*(set(rows) for rows in self._rows)))
        asked = list(dict.fromkeys((one.query, one.rank) for one in said.judged if one.query in set(common)))
        self._draws = [*asked, *_drawn(common, 2000, seed + len(asked), set(asked))]

    def following(self) -> tuple[Draw, str] | None:
        """The next result to judge and the fingerprint of its model; None when all are judged."""
        for query, rank in self._draws:
            for place, store in enumerate(self._stores):
                result = self._result(place, query, rank)
                if result and (query, result) not in self._judged:
                    return Draw(query, rank, result), store.info.fingerprint
        return None

    def precision(self, place: int) -> Precision:
        """Of the store at this place, over the draws that were judged for every store."""
        right = judged = 0
        for query, rank in self._draws[: len(self._judged) + 1]:
            results = [self._result(at, query, rank) for at in range(len(self._stores))]
            if all((query, result) in self._judged for result in results):
                judged += 1
                right += self._judged[query, results[place]]
        return Precision(right, judged)

    def _result(self, place: int, query: str, rank: int) -> str:
        store, hashes = self._stores[place], self._hash[place]
        descriptors = store.descriptors([self._rows[place][query]])
        found = store.search(descriptors, rank + 4).ids[0]
        others = [hashes[int(one)] for one in found if int(one) in hashes and hashes[int(one)] != query]
        return others[rank - 1] if len(others) >= rank else ""


def _drawn(
    images: Sequence[str], count: int, seed: int, known: set[tuple[str, int]]
) -> list[tuple[str, int]]:
    if not images:
        return []
    generator = np.random.default_rng(seed)
    queries = generator.integers(0, len(images), count)
    ranks = generator.integers(1, DEPTH + 1, count)
    drawn = ((images[query], int(rank)) for query, rank in zip(queries, ranks, strict=True))
    return [one for one in dict.fromkeys(drawn) if one not in known]
