"""Groups of images of the same instance, by similarity and by links."""

from dataclasses import dataclass

import numpy as np

from insclr.arrays import Descriptors
from insclr.feedback.groups import Grouping, join_known, places_of
from insclr.feedback.links import Links, locate_links
from insclr.progress import progress_bar
from insclr.retrieval.score import LIKELY, score_curve_of
from insclr.store import Row, Store

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
