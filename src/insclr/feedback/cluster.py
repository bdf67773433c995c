"""Groups of images of the same instance."""

from dataclasses import dataclass

import numpy as np

from insclr.arrays import Descriptors
from insclr.feedback.groups import are_apart, both_ways, join_known
from insclr.feedback.known import known_places
from insclr.feedback.links import Links
from insclr.progress import progress_bar
from insclr.retrieval.duplicates import Groups
from insclr.retrieval.score import LIKELY, score_curve_of
from insclr.store import Row, Store

TOGETHER = 0.2  # images of an instance from different sides are less alike than neighbours are
_NEAREST = 20


@dataclass(frozen=True)
class Cluster:
    """Images of one instance, the most central first."""

    rows: tuple[Row, ...]


def cluster(store: Store, min_size: int = 2, links: Links | None = None) -> list[Cluster]:
    """Group the images of a store, largest group first; images that match nothing are in none.

    Pairs that are among each other's nearest with a score of LIKELY or more are joined, the most similar
    first, as long as the images of the two groups have the similarity of score TOGETHER on average. What `links`
    say of images, by the hashes of their content, comes first.
    """
    curve = score_curve_of(store)
    cutoff, average = curve.similarity_at(LIKELY), curve.similarity_at(TOGETHER)
    ids = store.ids()
    descriptors = store.descriptors(ids)
    rows = {row.id: row for row in store.rows_by_path().values()}
    there = np.isin(ids, list(rows))  # a writer may have deleted some since
    ids, descriptors = ids[there], descriptors[there]  # descriptors: (rows, dim)
    place = {int(one): i for i, one in enumerate(ids)}
    hashes = [rows[int(one)].image.hash for one in ids]
    known = known_places(links or Links(), hashes)
    apart = both_ways(known.apart)
    kinds = {i: {kind} & apart.keys() for i, kind in enumerate(known.same.tolist())}
    groups = Groups(range(len(ids)))
    # Of the members' descriptors: two such sums give the average similarity of two groups.
    sums = dict(enumerate(descriptors))
    sizes = dict.fromkeys(range(len(ids)), 1)
    for _, a, b in _mutual_pairs(store, descriptors, place, cutoff):
        one, other = groups.root(a), groups.root(b)
        if one == other or float(sums[one] @ sums[other]) < average * sizes[one] * sizes[other]:
            continue
        if are_apart(kinds[one], kinds[other], apart):
            continue
        joint = groups.join(one, other)
        kinds[joint] = kinds[one] | kinds[other]
        sums[joint] = sums[one] + sums[other]
        sizes[joint] = sizes[one] + sizes[other]
    numbers = np.empty(len(ids), dtype=np.int64)
    for number, members in enumerate(groups.sets()):
        numbers[members] = number
    if len(ids):
        # Each content once: copies of a file are not photos that people spoke about.
        _, first, copy = np.unique(hashes, return_index=True, return_inverse=True)
        numbers = join_known(numbers[first], known.same[first], known.apart)[copy]
    order = np.argsort(numbers, kind="stable")
    sets = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(ids) else []
    found = [members.tolist() for members in sets if len(members) >= min_size]
    clusters = []
    for members in sorted(found, key=lambda one: (-len(one), one)):
        central = np.argsort(-(descriptors[members] @ descriptors[members].mean(0)), kind="stable")
        clusters.append(Cluster(tuple(rows[int(ids[members[i]])] for i in central)))
    return clusters


def _mutual_pairs(
    store: Store, descriptors: Descriptors, place: dict[int, int], cutoff: float
) -> list[tuple[float, int, int]]:
    """Pairs among each other's nearest, at least `cutoff` similar: (-similarity, row, row), best first."""
    similar: dict[tuple[int, int], float] = {}
    with progress_bar("grouping", len(descriptors)) as bar:
        for start in range(0, len(descriptors), 256):
            found = store.search(descriptors[start : start + 256], _NEAREST + 1)
            for i, near in enumerate(found.ids.tolist(), start=start):
                for one, cosine in zip(near, found.similarities[i - start].tolist(), strict=True):
                    if one in place and place[one] != i and cosine >= cutoff:
                        similar[i, place[one]] = cosine
            bar.advance(len(found.ids))
    return sorted((-cosine, a, b) for (a, b), cosine in similar.items() if a < b and (b, a) in similar)
