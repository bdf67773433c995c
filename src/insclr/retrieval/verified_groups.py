"""Groups of images that matched points prove to show one instance: training learns from them, without labels."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing

import numpy as np
import torch

from insclr.arrays import Ids
from insclr.data.images import ImageList
from insclr.data.tuples import FeedbackGroups
from insclr.progress import progress_bar
from insclr.retrieval.local_database import LocalFeatureDatabase
from insclr.retrieval.local_evidence import MOST_CONTRADICTED, Values
from insclr.retrieval.local_features import LocalFeatures, extract_from_files
from insclr.retrieval.local_index import LocalIndex
from insclr.retrieval.verification import verify
from insclr.store import open_store

_LEAST_IMAGES = 30  # as a store needs for its own test
_MOST_IMAGES = 10_000  # their points take 0.7 GB; of more images none are compared
_CANDIDATES = 10  # images with most votes that an image is verified with
_PROVEN = 4.0  # evidence of a pair: as much as four points that no other image has
_LEAST_LINKED = 0.5  # share of the pairs of two groups that must be proven before they become one
# Below these shares nothing is learned from the groups. By hand, with the six sets of
# docs/research/local-evidence.md in view.
_LEAST_GROUPED = 0.25  # of the images: in a group
# Of the proven pairs, within a group: a table top is seen in parts that overlap, and its pairs form chains.
_LEAST_INSIDE = 0.6


def find_verified_groups(
    images: ImageList, store: str | None = None, least: int = _LEAST_IMAGES
) -> FeedbackGroups | None:
    """Groups of the images by their matched points; None where these are few, contradicted by pixels, or chains.

    With a store the points are those that it keeps: it has decided whether they help.
    """
    if not least <= len(images) <= _MOST_IMAGES:
        return None
    features = extract_from_files(images) if store is None else _read_features(store, images)
    pairs, evidence, contradicted = prove_pairs(features)
    return None if contradicted > MOST_CONTRADICTED else proven_groups(pairs, evidence, len(images))


def _read_features(uri: str, images: ImageList) -> list[LocalFeatures | None]:
    with closing(open_store(uri)) as store, closing(LocalFeatureDatabase(store.parts)) as kept:
        hashes = {path: row.image.hash for path, row in store.rows_by_path().items()}
        found = kept.read(sorted(set(hashes.values())))
        return [found.get(hashes.get(path, "")) for path in images.paths]


def proven_groups(pairs: Ids, evidence: Values, count: int) -> FeedbackGroups | None:
    """The groups of proven pairs, if it is safe to learn from them."""
    groups = group_pairs(pairs, evidence, count)
    grouped = np.bincount(groups)[groups] > 1
    inside = groups[pairs[:, 0]] == groups[pairs[:, 1]]
    if not len(pairs) or grouped.mean() < _LEAST_GROUPED or inside.mean() < _LEAST_INSIDE:
        return None
    nobody, apart = torch.zeros(count, dtype=torch.bool), torch.zeros(0, 2, dtype=torch.int64)
    return FeedbackGroups(torch.from_numpy(groups), nobody, apart)


def prove_pairs(features: Sequence[LocalFeatures | None]) -> tuple[Ids, Values, float]:
    """Pairs (P, 2) of images with evidence enough, the evidence (P,), most first, and the contradicted share."""
    there = [row for row, one in enumerate(features) if one is not None]
    known = [one for one in features if one is not None]
    index = LocalIndex.build(known)
    found: dict[tuple[int, int], float] = {}
    contradicted = 0
    with progress_bar("matching points", len(known)) as bar:
        for row, query in enumerate(known):
            votes, rarity = index.vote(query)
            votes[row] = 0
            for other in np.argsort(-votes, kind="stable")[:_CANDIDATES].tolist():
                pair = (min(row, other), max(row, other))
                if votes[other] > 0 and pair not in found:
                    geometry = verify(query, known[other])
                    found[pair] = 0.0 if geometry is None else float(rarity[geometry.rows].sum())
                    contradicted += geometry is not None and geometry.contradicted and found[pair] >= _PROVEN
            bar.advance()
    proven = sorted((-evidence, pair) for pair, evidence in found.items() if evidence >= _PROVEN)
    pairs = np.array([[there[one] for one in pair] for _, pair in proven], np.int64).reshape(-1, 2)
    return pairs, np.array([-evidence for evidence, _ in proven]), contradicted / max(1, len(pairs))


def group_pairs(pairs: Ids, evidence: Values, count: int) -> Ids:
    """The number of the group of each of `count` images.

    Two groups become one where most of the pairs between them are proven: one wrong pair joins nothing.
    """
    group = np.arange(count)
    members = {row: [row] for row in range(count)}
    links = {row: Counter[int]() for row in range(count)}  # proven pairs with other groups
    for one, other in pairs.tolist():
        links[one][other] += 1
        links[other][one] += 1
    for place in np.argsort(-evidence, kind="stable"):
        one, other = group[pairs[place]].tolist()
        if one == other or links[one][other] < _LEAST_LINKED * len(members[one]) * len(members[other]):
            continue
        group[members[other]] = one
        members[one] += members.pop(other)
        for third, linked in links.pop(other).items():
            del links[third][other]
            if third != one:
                links[one][third] += linked
                links[third][one] += linked
    return np.unique(group, return_inverse=True)[1].astype(np.int64)
