"""Which photos to show a person next: the answers that would change the groups most come first.

Images are joined into small pure parts. What the collection is believed to look like joins these further. A question
compares two parts; how likely they show one instance follows from their average similarity, by a curve that the
answers themselves fit. An answer that confirms the belief changes nothing; one that does not joins or parts two
groups, which counts by their sizes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from insclr.arrays import Descriptors, Ids
from insclr.mining.groups import Grouping, group_images, join_known, neighbour_pairs, sum_parts

CANDIDATES = 12  # on a screen
_IMAGES_A_PART = 5  # on average, where parts stop growing
_BELIEF_NEIGHBOURS = 12
_FLOOR = 0.25  # least average similarity within a part, from strangers (0) to the same image (1)
_FIRST_MIDDLE, _FIRST_WIDTH = 0.5, 0.1  # of the probability, before any answer
_GUESSES, _GUESS_WEIGHT = 21, 0.5  # points of the first guess, and how many answers each counts for


@dataclass(frozen=True)
class Screen:
    """A query image and candidates of other parts, the most valuable first."""

    query: int
    candidates: tuple[int, ...]
    value: float  # images that are expected to change groups


@dataclass(frozen=True)
class Curve:
    """The probability that two groups show one instance, a rising line over their average similarity."""

    similarities: NDArray[np.float64]
    probabilities: NDArray[np.float64]

    @property
    def middle(self) -> float:
        """The similarity from which on two groups are believed to be one instance."""
        return float(
            np.interp(
                0.5, self.probabilities + np.linspace(0, 1e-9, len(self.similarities)), self.similarities
            )
        )

    def same(self, similarity: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """The probability at these similarities."""
        return np.asarray(np.interp(similarity, self.similarities, self.probabilities))


class Questions:
    """The parts of a collection, what is known of them, and the screens that follow from it."""

    def __init__(
        self,
        descriptors: Descriptors,
        neighbours: NDArray[np.int64],
        same: Ids,
        apart: Iterable[tuple[int, int]],
        answers: Sequence[tuple[int, int, bool]] = (),
        *,
        strangers: float = 0.0,
    ) -> None:
        """`neighbours` (N, k) are the nearest images of each, `strangers` is the mean similarity of random ones.

        `same` (N,) numbers what images are known to show; `apart` are numbers that are known to be different.
        `answers` (image, image, same) are what people said so far, each pair by itself.
        """
        self._descriptors = descriptors
        self._neighbours = neighbours
        self._strangers = strangers
        self._answers: list[tuple[float, bool]] = []
        self._asked: list[tuple[int, int]] = []
        self.curve = _fit((), strangers)
        if answers:
            # How alike the two were before anybody spoke: what is known to be the same is in one part by now.
            nobody = np.arange(len(descriptors))
            self._part(nobody, ())
            self.know(nobody, ())
            self.learn(answers)
        apart = list(apart)
        self._part(same, apart)
        self.know(same, apart)

    def _part(self, same: Ids, apart: Iterable[tuple[int, int]]) -> None:
        """Make the parts that questions are about."""
        part = group_images(
            self._descriptors,
            self._neighbours,
            same,
            apart,
            least=self._similarity(_FLOOR),
            fewest=max(2, len(self._descriptors) // _IMAGES_A_PART),
        )
        self.part, self._sums, self._sizes = sum_parts(self._descriptors, part)
        self._image = _central(self._descriptors, self.part, self._sums)

    def know(self, same: Ids, apart: Iterable[tuple[int, int]]) -> None:
        """Take over what is known: numbers (N,) of what images show, and numbers that are apart."""
        apart = list(apart)
        self.group = join_known(self.part, same, apart)  # (N,)
        _, self._sum, self.sizes = sum_parts(self._descriptors, self.group)
        self._average = (self._sum @ self._sum.T) / np.outer(self.sizes, self.sizes)  # (G, G)
        groups_of = {int(number): self.group[places] for number, places in _some_places(same, apart)}
        self._apart = np.zeros_like(self._average, dtype=bool)
        for one, other in apart:
            self._apart[np.ix_(groups_of[one], groups_of[other])] = True
        self._apart |= self._apart.T
        np.fill_diagonal(self._apart, False)
        self._believe()

    def learn(self, answers: Sequence[tuple[int, int, bool]]) -> None:
        """Fit the curve to answers (image, image, same) about groups as they are now, before `know` joins them."""
        self._asked += [(a, b) for a, b, _ in answers]
        groups = [(self.group[a], self.group[b], same) for a, b, same in answers]
        self._answers += [(float(self._average[a, b]), same) for a, b, same in groups if a != b]
        self.curve = _fit(self._answers, self._strangers)

    def believed(self) -> Ids:
        """The groups (N,) that the collection is believed to have."""
        return np.asarray(self._belief[self.group])

    def screen(self, passed_over: Iterable[int] = (), count: int = CANDIDATES) -> Screen | None:
        """The screen that is expected to change most; None when nothing is left to ask."""
        value = self._values()
        value[[self.group[image] for image in passed_over]] = 0.0
        top = np.argsort(-value, axis=1, kind="stable")[:, :count]
        totals = np.take_along_axis(value, top, axis=1).sum(1)
        query = int(totals.argmax())
        chosen = [int(one) for one in top[query] if value[query, one] > 0]
        if not chosen:
            return None
        shown = tuple(self.image_of(one) for one in chosen)
        return Screen(self.image_of(query), shown, float(totals[query]))

    def image_of(self, group: int) -> int:
        """The image that stands for a group: the most central of its largest part."""
        parts = np.unique(self.part[self.group == group])
        return int(self._image[parts[self._sizes[parts].argmax()]])

    def _values(self) -> NDArray[np.float64]:
        """How many images are expected to change groups by an answer about each two groups (G, G)."""
        likely = self.curve.same(self._average)
        together = self._belief[:, None] == self._belief[None]
        sizes = self.sizes.astype(np.float64)
        moved = 2 * np.outer(sizes, sizes) / np.add.outer(sizes, sizes)
        value = np.where(together, 1 - likely, likely) * moved
        value[self._apart] = 0.0
        # An answer that could not be followed, because it contradicts another, is not asked for again.
        for one, other in self._asked:
            a, b = self.group[one], self.group[other]
            value[a, b] = value[b, a] = 0.0
        np.fill_diagonal(value, 0.0)
        return value

    def _believe(self) -> None:
        apart = zip(*(axis.tolist() for axis in np.nonzero(np.triu(self._apart))), strict=True)
        grouping = Grouping(self._sum, self.sizes, np.arange(len(self.sizes)), apart)
        near = np.argsort(-self._average, axis=1, kind="stable")[:, :_BELIEF_NEIGHBOURS]
        grouping.join_while(neighbour_pairs(near), self.curve.middle)
        self._belief = grouping.groups()  # (G,)

    def _similarity(self, share: float) -> float:
        return self._strangers + share * (1 - self._strangers)


def _central(descriptors: Descriptors, part: Ids, sums: NDArray[np.float32]) -> Ids:
    """The image of each part that is most similar to the rest of it."""
    closeness = (descriptors.astype(np.float32) * sums[part]).sum(1)
    order = np.lexsort((-closeness, part))
    return order[np.searchsorted(part[order], np.arange(len(sums)))]


def _some_places(same: Ids, apart: Iterable[tuple[int, int]]) -> Iterator[tuple[int, Ids]]:
    """Where the numbers stand that are apart from others."""
    for number in {number for pair in apart for number in pair}:
        yield number, np.flatnonzero(same == number)


def _fit(answers: Sequence[tuple[float, bool]], strangers: float) -> Curve:
    """The rising line that fits the answers best, with a first guess that counts like a few of them."""
    share = np.linspace(0, 1, _GUESSES)  # from strangers to the same image
    guess = 1 / (1 + np.exp(-(share - _FIRST_MIDDLE) / _FIRST_WIDTH))
    at = np.concatenate([strangers + share * (1 - strangers), [similarity for similarity, _ in answers]])
    said = np.concatenate([guess, [float(same) for _, same in answers]])
    weights = np.concatenate([np.full(_GUESSES, _GUESS_WEIGHT), np.ones(len(answers))])
    order = np.argsort(at, kind="stable")
    rising = isotonic_regression(said[order], weights=weights[order]).x
    # Means over neighbouring answers: steps of the fit are no knowledge of where exactly it rises.
    bins = np.array_split(np.arange(len(order)), max(2, min(_GUESSES, len(order) // 4)))
    middles = [float(np.average(at[order][part], weights=weights[order][part])) for part in bins]
    levels = [float(np.average(rising[part], weights=weights[order][part])) for part in bins]
    return Curve(np.array(middles), np.array(levels))
