"""Which images to show a person next: the answers that would change the groups most come first.

Images are joined into small pure parts, and known links join these into groups. A question compares two groups. A
curve, fitted to the answers, gives the probability that they show one instance from their average similarity. Groups
that are more likely the same than not are predicted to be one. An answer that confirms this changes nothing;
another one joins or separates two groups, which counts by their sizes. A join that may be a mistake of the person is
asked about once more.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from insclr.arrays import Descriptors, Ids
from insclr.feedback.groups import Grouping, join_known, neighbour_pairs, places_of, sum_parts
from insclr.feedback.links import KnownImages

CANDIDATES = 12  # on a screen
_IMAGES_A_PART = 5  # on average, where parts stop growing
_SURE_PART = 0.5  # least probability that two groups show one instance, for them to be one part
_MOST_PAIRS, _NEAR_PARTS = 300_000, 40  # of parts that are compared; at least so many similar ones of each
_MOST_TOGETHER = 60  # groups that are predicted to be one instance and compared each with each
_WRONG_JOIN = 3.0  # how much worse a wrong join is than a missing one: it spoils all pairs of both groups
_LEAST_MISTAKE = 0.003  # probability of a mistake that is worth a second question
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
    """The probability that two groups show one instance, which rises with their average similarity."""

    similarities: NDArray[np.float64]
    probabilities: NDArray[np.float64]

    def similarity_of(self, probability: float) -> float:
        """The least similarity with this probability."""
        rising = self.probabilities + np.linspace(0, 1e-9, len(self.similarities))
        return float(np.interp(probability, rising, self.similarities))

    def same(self, similarity: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """The probability at these similarities."""
        return np.asarray(np.interp(similarity, self.similarities, self.probabilities))


class Questions:
    """The groups of a collection as far as they are known, and the screens that follow from them."""

    def __init__(
        self,
        descriptors: Descriptors,
        neighbours: NDArray[np.int64],
        known: KnownImages,
        answers: Sequence[tuple[int, int, bool]] = (),
        *,
        random_pair_similarity: float = 0.0,
    ) -> None:
        """`neighbours` (N, k) are the nearest images of each.

        `answers` (image, image, same) are those to questions of this model, each pair by itself.
        """
        self._descriptors = descriptors
        self._neighbours = neighbours
        self._random_pair_similarity = random_pair_similarity
        self._answers: list[tuple[float, bool]] = []
        self.curve = _fit((), random_pair_similarity)
        if answers:
            # The similarity before the answers counts: images that are known to be the same are in one group by now.
            nothing = KnownImages(np.arange(len(descriptors)))
            self._make_parts(nothing)
            self.update(nothing)
            self.fit_curve(answers)
        self._make_parts(known)
        self.update(known)

    def _make_parts(self, known: KnownImages) -> None:
        """Make the parts that questions are about, and find the similar ones of each."""
        count = len(self._descriptors)
        descriptors = self._descriptors.astype(np.float32)
        grouping = Grouping(descriptors, np.ones(count, dtype=np.int64), known.same, known.apart)
        least = self.curve.similarity_of(_SURE_PART)
        grouping.join_while(neighbour_pairs(self._neighbours), least, max(2, count // _IMAGES_A_PART))
        self.part, sums, sizes = sum_parts(self._descriptors, grouping.groups())
        closeness = (descriptors * sums[self.part]).sum(1)
        self._closeness = closeness / sizes[self.part]  # (N,) average similarity to an image's part
        most = max(_NEAR_PARTS, _MOST_PAIRS // len(sums))
        self._near = _similar_pairs(sums / sizes[:, None], most)  # (Q, 2)

    def update(self, known: KnownImages) -> None:
        """Make the groups from the parts and from what is known by now."""
        self.group = join_known(self.part, known.same, known.apart)  # (N,)
        home = _most_frequent(self.part, self.group)  # (P,) the group of a part
        # A piece of a group (N,): one of its parts, or an image that moved there alone.
        alone = len(home) + np.arange(len(self.part))
        self._piece = np.where(self.group == home[self.part], self.part, alone)
        _, self._sum, self.sizes = sum_parts(self._descriptors, self.group)
        places = places_of(known.same)
        groups_of = {
            label: np.unique(self.group[places.get(label, [])]) for pair in known.apart for label in pair
        }
        self._apart = {
            _order_pair(a, b)
            for one, other in known.apart
            for a in groups_of[one]
            for b in groups_of[other]
            if a != b
        }
        refused = {_order_pair(self.group[one], self.group[other]) for one, other in known.refused}
        self._settled = self._apart | refused  # an answer that was not applied is not asked for again
        self._joins = known.joins
        near = np.sort(np.concatenate([home[self._near], *self._near_moved(home)]), axis=1)
        self._set_pairs(near[near[:, 0] != near[:, 1]])
        self._predict_groups()

    def _near_moved(self, home: Ids) -> Iterator[NDArray[np.int64]]:
        """The group of every image that moved alone, with those of the part it came from and of parts near that."""
        moved = np.flatnonzero(self.group != home[self.part])
        for part, group in sorted({(int(self.part[one]), int(self.group[one])) for one in moved}):
            beside = self._near[(self._near == part).any(1)]
            others = np.unique(home[np.append(beside, part)])
            yield np.stack([np.full_like(others, group), others], axis=1)

    def fit_curve(self, answers: Sequence[tuple[int, int, bool]]) -> None:
        """Fit the curve to answers (image, image, same) about the present groups, before `update` joins them."""
        pairs = np.array([(self.group[a], self.group[b]) for a, b, _ in answers], dtype=np.int64)
        for similarity, (a, b), (*_, same) in zip(self._average(pairs), pairs, answers, strict=True):
            if a != b:
                self._answers.append((float(similarity), same))
        self.curve = _fit(self._answers, self._random_pair_similarity)

    def predict(self, one: int, other: int) -> float:
        """The probability that two images show one instance, by their descriptors alone."""
        a, b = self.group[one], self.group[other]
        if a != b:
            return float(self.curve.same(self._average(np.array([[a, b]])))[0])
        similarity = np.array(float(self._descriptors[one] @ self._descriptors[other]))
        return float(self.curve.same(similarity))

    def predicted_groups(self) -> Ids:
        """The groups (N,) that are most likely."""
        return np.asarray(self._predicted[self.group])

    def screen(self, skipped: Iterable[int] = (), count: int = CANDIDATES) -> Screen | None:
        """The screen that is expected to change most; None when nothing is left to ask."""
        again = list(self._repeated_questions())
        value = self._values()
        rows = np.concatenate([*self._pairs.T, np.array([one[0] for one in again], dtype=np.int64)])
        # Groups; below 0: one of `again`.
        shown = np.concatenate([self._pairs[:, 1], self._pairs[:, 0], -1 - np.arange(len(again))])
        values = np.concatenate([value, value, [one[2] for one in again]])
        values[np.isin(rows, [self.group[image] for image in skipped])] = 0.0
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
        """The image that represents a group: the most central of its largest piece."""
        images = np.flatnonzero(self.group == group)
        pieces, sizes = np.unique(self._piece[images], return_counts=True)
        largest = images[self._piece[images] == pieces[sizes.argmax()]]
        return int(largest[self._closeness[largest].argmax()])

    def _values(self) -> NDArray[np.float64]:
        """How many images are expected to change groups by an answer about each pair of groups (Q,)."""
        likely = self.curve.same(self._similarity)
        one, other = self._pairs.T
        together = self._predicted[one] == self._predicted[other]
        moved = _expected_moves(self.sizes[one].astype(np.float64), self.sizes[other])
        value = np.where(together, 1 - likely, likely) * moved
        keys = one * len(self.sizes) + other
        settled = np.array([a * len(self.sizes) + b for a, b in self._settled], dtype=np.int64)
        value[np.isin(keys, settled)] = 0.0
        return np.asarray(value)

    def _repeated_questions(self) -> Iterator[tuple[int, int, float]]:
        """Groups with an image to compare their own one with once more, and the value of that."""
        joins = [(int(self._piece[a]), int(self._piece[b]), wrong) for a, b, wrong in self._joins]
        asked = {frozenset((a, b)) for a, b, _ in self._joins}
        for pieces, wrong in unconfirmed_joins(joins):
            side = np.isin(self._piece, list(pieces))
            group = int(self.group[side.argmax()])
            query, inside = self.image_of(group), self.group == group
            images = np.flatnonzero(inside & (side != side[query]))
            if not len(images):
                continue
            _, piece, sizes = np.unique(self._piece[images], return_inverse=True, return_counts=True)
            images = images[np.lexsort((-self._closeness[images], -sizes[piece]))]
            fresh = [image for image in images.tolist() if frozenset((query, image)) not in asked]
            moved = _expected_moves(len(images), int(inside.sum()) - len(images))
            yield group, (fresh or images.tolist())[0], _WRONG_JOIN * wrong * moved

    def _predict_groups(self) -> None:
        """Join groups that are more likely the same than not."""
        middle = self.curve.similarity_of(0.5)
        grouping = Grouping(self._sum, self.sizes, np.arange(len(self.sizes)), self._apart)
        grouping.join_while(self._pairs[self._similarity >= middle], middle)
        self._predicted = grouping.groups()  # (G,)
        together = [
            members[np.stack(np.triu_indices(len(members), 1), axis=1)]
            for members in places_of(self._predicted).values()
            if 2 <= len(members) <= _MOST_TOGETHER
        ]
        self._set_pairs(np.concatenate([self._pairs, *together]))

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


def unconfirmed_joins(joins: Sequence[tuple[int, int, float]]) -> list[tuple[set[int], float]]:
    """The joins (part, part, probability of a mistake) that no other join confirms.

    A join is confirmed where its two parts are connected without it, by a second answer or through others. Returns
    the parts on one side of the join, and the probability.
    """
    near: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, (one, other, _) in enumerate(joins):
        near[one].append((other, number))
        near[other].append((one, number))
    found = []
    for number, (one, other, wrong) in enumerate(joins):
        if wrong < _LEAST_MISTAKE or one == other:
            continue
        side, waiting = {one}, [one]  # the parts that are connected with `one` without this join
        while waiting:
            for part, through in near[waiting.pop()]:
                if through != number and part not in side:
                    side.add(part)
                    waiting.append(part)
        if other not in side:
            found.append((side, wrong))
    return found


def _expected_moves(some: Any, others: Any) -> Any:
    """How many images change groups where groups of these sizes are joined or separated."""
    return 2 * some * others / (some + others)


def _similar_pairs(rows: NDArray[np.floating[Any]], count: int) -> NDArray[np.int64]:
    """Every row (P, D) with each of its most similar others, as pairs (Q, 2)."""
    rows, count = rows.astype(np.float32), min(count, len(rows) - 1)
    near = np.empty((len(rows), count), dtype=np.int64)
    for start in range(0, len(rows), _BLOCK):
        similar = rows[start : start + _BLOCK] @ rows.T
        similar[np.arange(len(similar)), np.arange(start, start + len(similar))] = -np.inf
        near[start : start + _BLOCK] = np.argpartition(-similar, max(0, count - 1), axis=1)[:, :count]
    return neighbour_pairs(near)


def _most_frequent(rows: Ids, values: Ids) -> Ids:
    """For every number in `rows` (N,), from 0 on, the most frequent of its `values` (N,)."""
    pairs, counts = np.unique(np.stack([rows, values]), axis=1, return_counts=True)
    order = np.lexsort((counts, pairs[0]))
    last = np.searchsorted(pairs[0], np.arange(pairs[0].max() + 1), side="right") - 1
    return np.asarray(pairs[1][order][last])


def _order_pair(one: Any, other: Any) -> tuple[int, int]:
    return (int(one), int(other)) if one < other else (int(other), int(one))


def _fit(answers: Sequence[tuple[float, bool]], random_pair_similarity: float) -> Curve:
    """The rising curve that fits the answers best, with a first guess that counts like a few of them."""
    share = np.linspace(0, 1, _GUESSES)  # from random pairs to the same image
    guess = 1 / (1 + np.exp(-(share - _FIRST_MIDDLE) / _FIRST_WIDTH))
    at = random_pair_similarity + share * (1 - random_pair_similarity)
    at = np.concatenate([at, [similarity for similarity, _ in answers]])
    targets = np.concatenate([guess, [float(same) for _, same in answers]])
    weights = np.concatenate([np.full(_GUESSES, _GUESS_WEIGHT), np.ones(len(answers))])
    order = np.argsort(at, kind="stable")
    at, targets, weights = at[order], targets[order], weights[order]
    rising = isotonic_regression(targets, weights=weights).x
    # Means over neighbouring answers: the exact places of the fit's steps carry no information.
    bins = np.array_split(np.arange(len(order)), max(2, min(_GUESSES, len(order) // 4)))
    return Curve(
        np.array([np.average(at[part], weights=weights[part]) for part in bins]),
        np.array([np.average(rising[part], weights=weights[part]) for part in bins]),
    )
