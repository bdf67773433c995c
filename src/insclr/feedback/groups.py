"""Groups of images that hold together, made from similarities and from what people said."""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Descriptors, Ids

Sums = NDArray[np.float32]


class Grouping:
    """Average-linkage agglomeration of parts, with groups that must stay apart.

    A part is an image, or images that are known to show one instance; at first every part is a group. The average
    similarity of two groups is the inner product of the sums of their unit descriptors over the product of their
    sizes.
    """

    def __init__(self, sums: Sums, sizes: Ids, kinds: Ids, apart: Iterable[tuple[int, int]] = ()) -> None:
        """`sums` (P, D) of the descriptors of each part and its `sizes` (P,) in images.

        `kinds` (P,) number what the parts are known to show; parts of kinds that are `apart` are never joined.
        """
        self._parts = {group: [group] for group in range(len(sums))}
        self._sums = dict(enumerate(sums))
        self._sizes = dict(enumerate(sizes.tolist()))
        self._apart = both_ways(apart)
        self._kinds = {group: {kind} & self._apart.keys() for group, kind in enumerate(kinds.tolist())}

    def join_while(self, pairs: NDArray[np.int64], least: float, fewest: int = 1) -> None:
        """Join groups that a pair of parts (Q, 2) connects, the most similar first.

        Ends where no two have an average similarity of `least`, or where only `fewest` groups are left.
        """
        near = self._adjacent(pairs)
        heap = [
            (-self.similarity(one, other), one, other)
            for one, others in near.items()
            for other in others
            if one < other
        ]
        heapq.heapify(heap)
        following = max(self._parts) + 1
        while heap and -heap[0][0] >= least and len(self._parts) > fewest:
            _, one, other = heapq.heappop(heap)
            if one not in self._parts or other not in self._parts:
                continue
            if are_apart(self._kinds[one], self._kinds[other], self._apart):
                continue
            self._join(one, other, following)
            others = (near.pop(one) | near.pop(other)) - {one, other}
            near[following] = others
            for third in others:
                near[third] -= {one, other}
                near[third].add(following)
                similarity = self.similarity(following, third)
                if similarity >= least:
                    heapq.heappush(heap, (-similarity, third, following))
            following += 1

    def similarity(self, one: int, other: int) -> float:
        """The average similarity of the images of two groups."""
        total = float(self._sums[one] @ self._sums[other])
        return total / float(self._sizes[one] * self._sizes[other])

    def groups(self) -> Ids:
        """The group of every part (P,), numbered from 0, that with the most images first."""
        order = sorted(self._parts, key=lambda group: (-self._sizes[group], self._parts[group][0]))
        found = np.empty(sum(map(len, self._parts.values())), dtype=np.int64)
        for number, group in enumerate(order):
            found[self._parts[group]] = number
        return found

    def _adjacent(self, pairs: NDArray[np.int64]) -> dict[int, set[int]]:
        near: dict[int, set[int]] = {group: set() for group in self._parts}
        for one, other in pairs.tolist():
            if one != other:
                near[one].add(other)
                near[other].add(one)
        return near

    def _join(self, one: int, other: int, joint: int) -> None:
        self._parts[joint] = sorted(self._parts.pop(one) + self._parts.pop(other))
        self._sums[joint] = self._sums.pop(one) + self._sums.pop(other)
        self._sizes[joint] = self._sizes.pop(one) + self._sizes.pop(other)
        self._kinds[joint] = self._kinds.pop(one) | self._kinds.pop(other)


def both_ways(pairs: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """For everything that is in a pair, the others that it is paired with."""
    found: dict[int, set[int]] = defaultdict(set)
    for one, other in pairs:
        found[int(one)].add(int(other))
        found[int(other)].add(int(one))
    return dict(found)


def are_apart(some: Set[int], others: Set[int], apart: Mapping[int, Set[int]]) -> bool:
    """Whether one of `some` kinds is apart from one of the `others`."""
    if len(some) > len(others):
        some, others = others, some
    return any(not apart[kind].isdisjoint(others) for kind in some)


def group_images(
    descriptors: Descriptors,
    neighbours: NDArray[np.int64],
    same: Ids,
    apart: Iterable[tuple[int, int]],
    *,
    least: float,
    fewest: int = 1,
) -> Ids:
    """Groups (N,) of images that are alike, numbered from 0, the largest first.

    `neighbours` (N, k) are the nearest images of each. Images whose numbers in `same` (N,) are `apart` are never in
    one group; images of one number need not be (`join_known` does that).
    """
    ones = np.ones(len(descriptors), dtype=np.int64)
    grouping = Grouping(descriptors.astype(np.float32), ones, same, apart)
    grouping.join_while(neighbour_pairs(neighbours), least, fewest)
    return grouping.groups()


def join_known(groups: Ids, same: Ids, apart: Iterable[tuple[int, int]]) -> Ids:
    """The groups (N,) with those joined that have images of one number in `same` (N,), numbered from 0.

    A group that holds more images of another number is mixed, or the two were never compared: then the images alone
    move, to a group where their number has most, or to one of their own. So they do where numbers would come together
    that are `apart`.
    """
    forbidden = both_ways(apart)
    sizes = np.bincount(groups)
    members = _places(same)
    kinds: list[set[int]] = [set() for _ in sizes]
    for kind, images in members.items():
        if kind in forbidden:
            for group in np.unique(groups[images]):
                kinds[group].add(kind)
    has_feedback = sorted(
        (kind for kind in members if len(members[kind]) > 1), key=lambda k: -len(members[k])
    )
    owner = _owners(groups, members, has_feedback)
    root = np.arange(len(sizes))  # of every group
    moved: dict[int, int] = {}  # image: group
    for kind in has_feedback:
        images = members[kind]
        parts = sorted(np.unique(groups[images]), key=lambda part: (owner[part] != kind, -sizes[part], part))
        if len(parts) == 1:
            continue
        if owner[parts[0]] != kind:
            moved |= dict.fromkeys(images.tolist(), -1 - kind)  # below 0: a group of their own
            continue
        base = int(root[parts[0]])
        for part in parts[1:]:
            other, base = int(root[part]), int(root[base])
            if other == base:
                continue
            if owner[part] != kind or are_apart(kinds[base], kinds[other], forbidden):
                moved |= {int(image): base for image in images if groups[image] == part}
                continue
            root[root == other] = base
            kinds[base] |= kinds[other]
    found = root[groups]
    for image, group in moved.items():
        found[image] = root[group] if group >= 0 else group
    return np.unique(found, return_inverse=True)[1].astype(np.int64)


def _owners(groups: Ids, members: Mapping[int, Ids], kinds: Sequence[int]) -> dict[int, int]:
    """The kind that has most images in a group, for every group with images of `kinds`; the first of equals."""
    most: dict[int, tuple[int, int]] = {}  # group: images, kind
    for kind in kinds:
        for group, count in zip(*np.unique(groups[members[kind]], return_counts=True), strict=True):
            if count > most.get(int(group), (0, 0))[0]:
                most[int(group)] = int(count), kind
    return {group: kind for group, (_, kind) in most.items()}


def _places(numbers: Ids) -> dict[int, Ids]:
    """Where each number stands."""
    order = np.argsort(numbers, kind="stable")
    values, starts = np.unique(numbers[order], return_index=True)
    return dict(zip(values.tolist(), np.split(order, starts[1:]), strict=True))


def sum_parts(descriptors: Descriptors, same: Ids) -> tuple[Ids, Sums, Ids]:
    """The part of every image (N,), numbered without gaps; the sum of the descriptors and the size of every part."""
    part = np.unique(same, return_inverse=True)[1].astype(np.int64)
    sizes = np.bincount(part)
    sums = np.zeros((len(sizes), descriptors.shape[1]), dtype=np.float32)
    np.add.at(sums, part, descriptors.astype(np.float32))
    return part, sums, sizes


def neighbour_pairs(neighbours: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every image with each of its neighbours (N, k), as pairs (Q, 2), each once."""
    rows = np.repeat(np.arange(len(neighbours)), neighbours.shape[1])
    pairs = np.stack([rows, neighbours.reshape(-1)], axis=1)
    return np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
