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

from insclr.arrays import Descriptors, Ids
from insclr.mining.groups import Grouping, group_images, join_known, neighbour_pairs, sum_parts

CANDIDATES = 12  # on a screen
_IMAGES_A_PART = 5  # on average, where parts stop growing
_BELIEF_NEIGHBOURS = 12
_FLOOR = 0.25  # least average similarity within a part, from strangers (0) to the same image (1)
_FIRST_MIDDLE, _FIRST_WIDTH = 0.5, 0.1  # of the curve, before any answer
_MIDDLE_SPREAD = 0.15  # how far the middle is expected to be from the first guess
_WIDTHS = (0.04, 0.06, 0.08, 0.1, 0.15, 0.2)
_ANSWERS_TO_FIT = 24


@dataclass(frozen=True)
class Screen:
    """A query image and candidates of other parts, the most valuable first."""

    query: int
    candidates: tuple[int, ...]
    value: float  # images that are expected to change groups


@dataclass(frozen=True)
class Curve:
    """The probability that two groups show one instance, by their average similarity."""

    middle: float
    width: float

    def same(self, similarity: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """The probability at these similarities."""
        return np.asarray(1 / (1 + np.exp(-(similarity - self.middle) / self.width)))


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
        self.curve = Curve(self._similarity(_FIRST_MIDDLE), _FIRST_WIDTH * (1 - strangers))
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
        groups = [(self.group[a], self.group[b], same) for a, b, same in answers]
        self._answers += [(float(self._average[a, b]), same) for a, b, same in groups if a != b]
        if len(self._answers) >= _ANSWERS_TO_FIT:
            self.curve = _fit(self._answers, self._similarity(_FIRST_MIDDLE), 1 - self._strangers)

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


def _fit(answers: Sequence[tuple[float, bool]], middle: float, scale: float) -> Curve:
    """The most likely curve, among a grid of them, with a preference for the first guess."""
    similarities = np.array([similarity for similarity, _ in answers])
    same = np.array([one for _, one in answers])
    best, found = -np.inf, Curve(middle, _FIRST_WIDTH * scale)
    for candidate in np.arange(-0.4, 0.42, 0.02) * scale + middle:
        for width in _WIDTHS:
            curve = Curve(float(candidate), width * scale)
            likely = np.clip(curve.same(similarities), 1e-3, 1 - 1e-3)
            fits = float(np.log(np.where(same, likely, 1 - likely)).sum())
            fits -= ((candidate - middle) / (_MIDDLE_SPREAD * scale)) ** 2 / 2
            if fits > best:
                best, found = fits, curve
    return found
