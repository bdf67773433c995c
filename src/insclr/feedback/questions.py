"""Which photos to show a person next: the answers that would change the groups most come first.

Images are joined into small pure parts. What the collection is believed to look like joins these further. A question
compares two parts; how likely they show one instance follows from their average similarity, by a curve that the
answers themselves fit. An answer that confirms the belief changes nothing; one that does not joins or parts two
groups, which counts by their sizes. A join that may be a slip of the person is asked about once more.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from insclr.arrays import Descriptors, Ids
from insclr.feedback.doubts import doubtful_joins
from insclr.feedback.groups import Grouping, group_images, join_known, neighbour_pairs, sum_parts

CANDIDATES = 12  # on a screen
_IMAGES_A_PART = 5  # on average, where parts stop growing
_SURE_PART = 0.5  # least probability that two groups show one instance, for them to be one part
_MOST_PAIRS, _NEAR_PARTS = 300_000, 40  # of parts that are compared; at least so many similar ones of each
_MOST_TOGETHER = 60  # groups that are believed to be one instance and compared each with each
_WRONG_JOIN = 3.0  # how much worse a wrong join is than a missing one: it spoils all pairs of both groups
_BLOCK = 4096
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

    def similarity_of(self, probability: float) -> float:
        """The least similarity with this probability."""
        rising = self.probabilities + np.linspace(0, 1e-9, len(self.similarities))
        return float(np.interp(probability, rising, self.similarities))

    def same(self, similarity: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """The probability at these similarities."""
        return np.asarray(np.interp(similarity, self.similarities, self.probabilities))


@dataclass(frozen=True)
class KnownImages:
    """What people said of N images."""

    same: Ids  # (N,) numbers of what images are known to show
    apart: Sequence[tuple[int, int]] = ()  # numbers that are known to be different
    joins: Sequence[
        tuple[int, int, float]
    ] = ()  # image, image, probability of a slip: what "the same" rests on
    refused: Sequence[tuple[int, int]] = ()  # pairs of images whose answer could not be followed

    @classmethod
    def nothing(cls, images: int) -> "KnownImages":
        """Nobody has said anything."""
        return cls(np.arange(images))


class Questions:
    """The parts of a collection, what is known of them, and the screens that follow from it."""

    def __init__(
        self,
        descriptors: Descriptors,
        neighbours: NDArray[np.int64],
        known: KnownImages,
        answers: Sequence[tuple[int, int, bool]] = (),
        *,
        strangers: float = 0.0,
    ) -> None:
        """`neighbours` (N, k) are the nearest images of each, `strangers` is the mean similarity of random ones.

        `answers` (image, image, same) are what people said to this model so far, each pair by itself.
        """
        self._descriptors = descriptors
        self._neighbours = neighbours
        self._strangers = strangers
        self._answers: list[tuple[float, bool]] = []
        self.curve = _fit((), strangers)
        if answers:
            # How alike the two were before anybody spoke: what is known to be the same is in one part by now.
            nobody = KnownImages.nothing(len(descriptors))
            self._part(nobody)
            self.know(nobody)
            self.learn(answers)
        self._part(known)
        self.know(known)

    def _part(self, known: KnownImages) -> None:
        """Make the parts that questions are about, and find the similar ones of each."""
        part = group_images(
            self._descriptors,
            self._neighbours,
            known.same,
            known.apart,
            least=self.curve.similarity_of(_SURE_PART),
            fewest=max(2, len(self._descriptors) // _IMAGES_A_PART),
        )
        self.part, sums, sizes = sum_parts(self._descriptors, part)
        closeness = (self._descriptors.astype(np.float32) * sums[self.part]).sum(1)
        self._closeness = closeness / sizes[self.part]  # (N,) average similarity to an image's part
        self._near = _similar_pairs(
            sums / sizes[:, None], max(_NEAR_PARTS, _MOST_PAIRS // len(sums))
        )  # (Q, 2)

    def know(self, known: KnownImages) -> None:
        """Take over what is known."""
        self.group = join_known(self.part, known.same, known.apart)  # (N,)
        home = _most_frequent(self.part, self.group)  # (P,) the group of a part
        # What lies together in a group (N,): its parts, and every image that moved there alone.
        alone = len(home) + np.arange(len(self.part))
        self._piece = np.where(self.group == home[self.part], self.part, alone)
        _, self._sum, self.sizes = sum_parts(self._descriptors, self.group)
        groups_of = {number: self.group[places] for number, places in _some_places(known.same, known.apart)}
        self._apart = {
            pair for one, other in known.apart for pair in _each_with_each(groups_of[one], groups_of[other])
        }
        refused = {_ordered(self.group[one], self.group[other]) for one, other in known.refused}
        self._settled = self._apart | refused  # an answer that could not be followed is not asked for again
        self._joins = known.joins
        near = np.concatenate([home[self._near], *self._near_unassigned(home)])
        near = np.sort(near, axis=1)
        self._set_pairs(near[near[:, 0] != near[:, 1]])
        self._believe()

    def _near_unassigned(self, home: Ids) -> Iterator[NDArray[np.int64]]:
        """The group of every image that moved alone with those of the part it came from and of parts near that."""
        moved = np.flatnonzero(self.group != home[self.part])
        for part, group in sorted(
            set(zip(self.part[moved].tolist(), self.group[moved].tolist(), strict=True))
        ):
            beside = np.concatenate(
                [self._near[self._near[:, 0] == part, 1], self._near[self._near[:, 1] == part, 0]]
            )
            others = np.unique(home[np.append(beside, part)])
            yield np.stack([np.full_like(others, group), others], axis=1)

    def learn(self, answers: Sequence[tuple[int, int, bool]]) -> None:
        """Fit the curve to answers (image, image, same) about groups as they are now, before `know` joins them."""
        pairs = np.array([(self.group[a], self.group[b]) for a, b, _ in answers], dtype=np.int64)
        told = zip(self._average(pairs), pairs, answers, strict=True)
        self._answers += [(float(similarity), same) for similarity, (a, b), (*_, same) in told if a != b]
        self.curve = _fit(self._answers, self._strangers)

    def expected(self, one: int, other: int) -> float:
        """How likely two images show one instance, by what they look like alone."""
        a, b = self.group[one], self.group[other]
        if a != b:
            return float(self.curve.same(self._average(np.array([[a, b]])))[0])
        similarity = np.array(float(self._descriptors[one] @ self._descriptors[other]))
        return float(self.curve.same(similarity))

    def believed(self) -> Ids:
        """The groups (N,) that the collection is believed to have."""
        return np.asarray(self._belief[self.group])

    def screen(self, passed_over: Iterable[int] = (), count: int = CANDIDATES) -> Screen | None:
        """The screen that is expected to change most; None when nothing is left to ask."""
        value = self._values()
        rows = np.concatenate([self._pairs[:, 0], self._pairs[:, 1]])
        shown = np.concatenate([self._pairs[:, 1], self._pairs[:, 0]])  # groups
        values = np.concatenate([value, value])
        again = list(self._again())
        rows = np.concatenate([rows, np.array([one[0] for one in again], dtype=np.int64)])
        shown = np.concatenate([shown, -1 - np.arange(len(again))])  # below 0: one of `again`
        values = np.concatenate([values, [one[2] for one in again]])
        values[np.isin(rows, [self.group[image] for image in passed_over])] = 0.0
        order = np.lexsort((-values, rows))
        rows, shown, values = rows[order], shown[order], values[order]
        place = np.arange(len(rows)) - np.searchsorted(rows, rows)  # within its query
        first = (place < count) & (values > 0)
        if not first.any():
            return None
        totals = np.bincount(rows[first], weights=values[first])
        query = int(totals.argmax())
        chosen = shown[first & (rows == query)].tolist()
        images = (self.image_of(one) if one >= 0 else again[-1 - one][1] for one in chosen)
        return Screen(self.image_of(query), tuple(images), float(totals[query]))

    def image_of(self, group: int) -> int:
        """The image that stands for a group: the most central of its largest part."""
        images = np.flatnonzero(self.group == group)
        pieces, sizes = np.unique(self._piece[images], return_counts=True)
        largest = images[self._piece[images] == pieces[sizes.argmax()]]
        return int(largest[self._closeness[largest].argmax()])

    def _values(self) -> NDArray[np.float64]:
        """How many images are expected to change groups by an answer about each pair of groups (Q,)."""
        likely = self.curve.same(self._similarity)
        one, other = self._pairs.T
        together = self._belief[one] == self._belief[other]
        sizes = self.sizes.astype(np.float64)
        moved = 2 * sizes[one] * sizes[other] / (sizes[one] + sizes[other])
        value = np.where(together, 1 - likely, likely) * moved
        keys = one * len(self.sizes) + other
        settled = np.array([a * len(self.sizes) + b for a, b in self._settled], dtype=np.int64)
        value[np.isin(keys, settled)] = 0.0
        return np.asarray(value)

    def _again(self) -> Iterator[tuple[int, int, float]]:
        """Groups with an image to compare their own one with once more, and what that is worth."""
        joins = [(int(self._piece[a]), int(self._piece[b]), wrong) for a, b, wrong in self._joins]
        asked = {frozenset((a, b)) for a, b, _ in self._joins}
        for doubt in doubtful_joins(joins):
            side = np.isin(self._piece, list(doubt.side))
            group = int(self.group[side.argmax()])
            query, inside = self.image_of(group), self.group == group
            other = inside & (side != side[query])
            if not other.any():
                continue
            images = np.flatnonzero(other)
            _, piece, sizes = np.unique(self._piece[images], return_inverse=True, return_counts=True)
            images = images[np.lexsort((-self._closeness[images], -sizes[piece]))]
            fresh = [image for image in images.tolist() if frozenset((query, image)) not in asked]
            rest = int(inside.sum()) - len(images)
            moved = 2 * len(images) * rest / (len(images) + rest)
            yield group, (fresh or images.tolist())[0], _WRONG_JOIN * doubt.wrong * moved

    def _believe(self) -> None:
        """Join groups that are more likely the same than not."""
        middle = self.curve.similarity_of(0.5)
        grouping = Grouping(self._sum, self.sizes, np.arange(len(self.sizes)), self._apart)
        grouping.join_while(self._pairs[self._similarity >= middle], middle)
        self._belief = grouping.groups()  # (G,)
        together = [self._pairs, *_pairs_within(self._belief, _MOST_TOGETHER)]
        self._set_pairs(np.concatenate(together))

    def _set_pairs(self, pairs: NDArray[np.int64]) -> None:
        """The pairs of groups (Q, 2) that may be asked about, each once, with their average similarities (Q,)."""
        self._pairs = np.unique(pairs, axis=0)
        self._similarity = self._average(self._pairs)

    def _average(self, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
        """The average similarities (Q,) of the images of pairs of groups (Q, 2)."""
        found = np.empty(len(pairs))
        for start in range(0, len(pairs), _BLOCK):
            one, other = pairs[start : start + _BLOCK].T
            totals = np.einsum("qd,qd->q", self._sum[one], self._sum[other])
            found[start : start + _BLOCK] = totals / (self.sizes[one] * self.sizes[other])
        return found


def _similar_pairs(rows: NDArray[np.floating[Any]], count: int) -> NDArray[np.int64]:
    """Every row (P, D) with each of its most similar others, as pairs (Q, 2)."""
    rows, count = rows.astype(np.float32), min(count, len(rows) - 1)
    near = np.empty((len(rows), count), dtype=np.int64)
    for start in range(0, len(rows), _BLOCK):
        similar = rows[start : start + _BLOCK] @ rows.T
        similar[np.arange(len(similar)), np.arange(start, start + len(similar))] = -np.inf
        near[start : start + _BLOCK] = np.argpartition(-similar, max(0, count - 1), axis=1)[:, :count]
    return neighbour_pairs(near)


def _pairs_within(groups: Ids, most: int) -> Iterator[NDArray[np.int64]]:
    """Each with each other of what has one number in `groups` (G,), where that is at most `most`."""
    order = np.argsort(groups, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if 2 <= len(members) <= most:
            yield members[np.stack(np.triu_indices(len(members), 1), axis=1)]


def _most_frequent(rows: Ids, values: Ids) -> Ids:
    """For every number in `rows` (N,), from 0 on, the one of `values` (N,) that most often stands beside it."""
    pairs, counts = np.unique(np.stack([rows, values]), axis=1, return_counts=True)
    order = np.lexsort((counts, pairs[0]))
    last = np.searchsorted(pairs[0], np.arange(pairs[0].max() + 1), side="right") - 1
    return np.asarray(pairs[1][order][last])


def _each_with_each(some: Ids, others: Ids) -> Iterator[tuple[int, int]]:
    for one in np.unique(some):
        yield from (_ordered(one, other) for other in np.unique(others) if other != one)


def _ordered(one: Any, other: Any) -> tuple[int, int]:
    return (int(one), int(other)) if one < other else (int(other), int(one))


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
