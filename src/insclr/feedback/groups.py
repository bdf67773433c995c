"""Group images of the same instance: by similarities, by known pairs and by links."""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Descriptors, Ids
from insclr.feedback.links import Links, locate_links
from insclr.progress import progress_bar
from insclr.retrieval.score import LIKELY, score_curve_of
from insclr.store import Row, Store

Sums = NDArray[np.float32]


class Grouping:
    """Average-linkage agglomeration of parts, with cannot-links.

    A part is an image, or images that are known to show one instance; at first every part is a group. The average
    similarity of two groups is the inner product of the sums of their unit descriptors over the product of their
    sizes.
    """

    def __init__(self, sums: Sums, sizes: Ids, labels: Ids, apart: Iterable[tuple[int, int]] = ()) -> None:
        """`sums` (P, D) of the descriptors of each part and its `sizes` (P,) in images.

        `labels` (P,) are the known instances of the parts; parts of labels that are `apart` are never joined.
        """
        self._parts = {group: [group] for group in range(len(sums))}
        self._sums = dict(enumerate(sums))
        self._sizes = dict(enumerate(sizes.tolist()))
        self._apart = pair_up(apart)
        self._labels = {group: {label} & self._apart.keys() for group, label in enumerate(labels.tolist())}
        self._joined: dict[int, int] = {}  # group: the group that it became a part of

    def join_while(self, pairs: NDArray[np.int64], least: float, fewest: int = 1) -> None:
        """Join groups that a pair of parts (Q, 2) connects, the most similar first.

        Ends where no two have an average similarity of `least`, or where only `fewest` groups are left.
        """
        near: dict[int, set[int]] = {group: set() for group in self._parts}
        for one, other in pairs.tolist():
            if one != other:
                near[one].add(other)
                near[other].add(one)
        heap = [
            (-self.similarity(one, other), one, other)
            for one, others in near.items()
            for other in others
            if one < other
        ]
        heapq.heapify(heap)
        while heap and -heap[0][0] >= least and len(self._parts) > fewest:
            _, one, other = heapq.heappop(heap)
            if one not in self._parts or other not in self._parts or self._are_apart(one, other):
                continue
            joint = self._join(one, other)
            near[joint] = (near.pop(one) | near.pop(other)) - {one, other}
            for third in near[joint]:
                near[third] -= {one, other}
                near[third].add(joint)
                similarity = self.similarity(joint, third)
                if similarity >= least:
                    heapq.heappush(heap, (-similarity, third, joint))

    def join_in_order(self, pairs: Iterable[tuple[int, int]], least: float) -> None:
        """Join the groups of one pair of parts after the other, if they have an average similarity of `least`."""
        for pair in pairs:
            one, other = map(self._find, pair)
            if one != other and self.similarity(one, other) >= least and not self._are_apart(one, other):
                self._join(one, other)

    def similarity(self, one: int, other: int) -> float:
        """The average similarity of the images of two groups."""
        total = float(self._sums[one] @ self._sums[other])
        return total / float(self._sizes[one] * self._sizes[other])

    def groups(self) -> Ids:
        """The group of every part (P,), numbered from 0, the one with the most images first."""
        order = sorted(self._parts, key=lambda group: (-self._sizes[group], min(self._parts[group])))
        found = np.empty(sum(map(len, self._parts.values())), dtype=np.int64)
        for number, group in enumerate(order):
            found[self._parts[group]] = number
        return found

    def _find(self, part: int) -> int:
        """The group that a part is in by now."""
        while (group := self._joined.get(part, part)) != part:
            self._joined[part] = self._joined.get(group, group)
            part = group
        return part

    def _are_apart(self, one: int, other: int) -> bool:
        return are_apart(self._labels[one], self._labels[other], self._apart)

    def _join(self, one: int, other: int) -> int:
        """Make one group of two; returns its number, which is new."""
        joint = len(self._joined) + len(self._parts)
        self._joined[one] = self._joined[other] = joint
        fewer, more = sorted((self._parts.pop(one), self._parts.pop(other)), key=len)
        more += fewer
        self._parts[joint] = more
        self._sums[joint] = self._sums.pop(one) + self._sums.pop(other)
        self._sizes[joint] = self._sizes.pop(one) + self._sizes.pop(other)
        self._labels[joint] = self._labels.pop(one) | self._labels.pop(other)
        return joint


def pair_up(pairs: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """For every number in a pair, the others that it is paired with."""
    found: dict[int, set[int]] = defaultdict(set)
    for one, other in pairs:
        found[int(one)].add(int(other))
        found[int(other)].add(int(one))
    return dict(found)


def are_apart(some: Set[int], others: Set[int], apart: Mapping[int, Set[int]]) -> bool:
    """Whether one of `some` labels is apart from one of the `others`."""
    if len(some) > len(others):
        some, others = others, some
    return any(not apart[label].isdisjoint(others) for label in some)


def join_known(groups: Ids, same: Ids, apart: Iterable[tuple[int, int]]) -> Ids:
    """Join the groups (N,) that have images of one label in `same` (N,); the result is numbered from 0.

    A group may hold more images of another label: it is mixed, or the two were never compared. Then only the images
    move, to a group where their label has most, or to a new one. The same happens where a join would bring labels
    together that are `apart`.
    """
    forbidden = pair_up(apart)
    sizes = np.bincount(groups)
    members = places_of(same)
    labels: list[set[int]] = [set() for _ in sizes]  # of every group, those that are apart from others
    for label in forbidden.keys() & members.keys():
        for group in np.unique(groups[members[label]]):
            labels[group].add(label)
    linked = sorted((label for label in members if len(members[label]) > 1), key=lambda k: -len(members[k]))
    most: dict[int, tuple[int, int]] = {}  # group: images of the label that has most in it, and this label
    for label in linked:
        for group, count in zip(*np.unique(groups[members[label]], return_counts=True), strict=True):
            if count > most.get(int(group), (0, 0))[0]:
                most[int(group)] = int(count), label
    root = np.arange(len(sizes))  # of every group
    moved: dict[int, int] = {}  # image: group
    for label in linked:
        images = members[label]
        parts = sorted(np.unique(groups[images]), key=lambda p: (most[p][1] != label, -sizes[p], p))
        if len(parts) == 1:
            continue
        if most[parts[0]][1] != label:
            moved |= dict.fromkeys(images.tolist(), -1 - label)  # below 0: a new group
            continue
        base = int(root[parts[0]])
        for part in parts[1:]:
            other, base = int(root[part]), int(root[base])
            if other == base:
                continue
            if most[part][1] != label or are_apart(labels[base], labels[other], forbidden):
                moved |= {int(image): base for image in images if groups[image] == part}
                continue
            root[root == other] = base
            labels[base] |= labels[other]
    found = root[groups]
    for image, group in moved.items():
        found[image] = root[group] if group >= 0 else group
    return np.unique(found, return_inverse=True)[1].astype(np.int64)


def places_of(numbers: Ids) -> dict[int, Ids]:
    """The places of each number in `numbers` (N,)."""
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


_TOGETHER = 0.2  # images of an instance from different sides are less similar than neighbours are
_NEAREST = 20


@dataclass(frozen=True)
class Cluster:
    """Images of one instance, the most central first."""

    rows: tuple[Row, ...]


def cluster(store: Store, min_size: int = 2, links: Links | None = None) -> list[Cluster]:
    """Group the images of a store, largest group first; images that match nothing are in none.

    Pairs that are among each other's nearest with a score of LIKELY or more are joined, the most similar
    first, if the images of the two groups have the similarity of score _TOGETHER on average. `links` between images,
    by the hashes of their content, come first.
    """
    curve = score_curve_of(store)
    ids = store.ids()
    descriptors = store.descriptors(ids)
    rows = {row.id: row for row in store.rows_by_path().values()}
    there = np.isin(ids, list(rows))  # a writer may have deleted some since
    ids, descriptors = ids[there], descriptors[there]  # descriptors: (rows, dim)
    if not len(ids):
        return []
    hashes = [rows[int(one)].image.hash for one in ids]
    known = locate_links(links or Links(), hashes)
    grouping = Grouping(descriptors, np.ones(len(ids), dtype=np.int64), known.same, known.apart)
    pairs = _mutual_pairs(store, descriptors, ids.tolist(), curve.similarity_at(LIKELY))
    grouping.join_in_order(pairs, curve.similarity_at(_TOGETHER))
    # Each content once: copies of a file are no photos with feedback of their own.
    _, first, copy = np.unique(hashes, return_index=True, return_inverse=True)
    groups = join_known(grouping.groups()[first], known.same[first], known.apart)[copy]
    clusters = []
    for members in sorted(places_of(groups).values(), key=lambda one: (-len(one), one.tolist())):
        if len(members) >= min_size:
            central = np.argsort(-(descriptors[members] @ descriptors[members].mean(0)), kind="stable")
            clusters.append(Cluster(tuple(rows[int(id_)] for id_ in ids[members[central]])))
    return clusters


def _mutual_pairs(
    store: Store, descriptors: Descriptors, ids: list[int], cutoff: float
) -> list[tuple[int, int]]:
    """Pairs of places among each other's nearest, at least `cutoff` similar, the most similar first."""
    place = {one: i for i, one in enumerate(ids)}
    similar: dict[tuple[int, int], float] = {}
    with progress_bar("grouping", len(descriptors)) as bar:
        for start in range(0, len(descriptors), 256):
            found = store.search(descriptors[start : start + 256], _NEAREST + 1)
            for i, near in enumerate(found.ids.tolist(), start=start):
                for one, cosine in zip(near, found.similarities[i - start].tolist(), strict=True):
                    if one in place and place[one] != i and cosine >= cutoff:
                        similar[i, place[one]] = cosine
            bar.advance(len(found.ids))
    mutual = [(-cosine, a, b) for (a, b), cosine in similar.items() if a < b and (b, a) in similar]
    return [(a, b) for _, a, b in sorted(mutual)]
