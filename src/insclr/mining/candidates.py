"""Label every candidate of every image at once: positive, ignored or negative, by measured thresholds.

Two thresholds decide, both measured on the images' own views (`mining.own_views`): the least similarity of two
images of one instance, and the least overlap of their neighbourhoods, which asks the whole query set. Where a
collection has no safe pairs, few candidates pass both: too few pairs are mined rather than too many.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from insclr.mining.calibrate import random_pairs
from insclr.mining.overlap import InstanceSize, Overlap, neighbour_overlap
from insclr.mining.own_views import Evidence, OwnViews, measure_own_views
from insclr.neighbours.pool import Pool

Variant = Literal["A", "C", "D-anchor", "D"]

_LIKE_OWN_VIEW = 0.9  # share of the own views' overlap or similarity that a mined candidate must reach
_DOUBTFUL_OVERLAP = 0.2  # share of common neighbours above which an unchosen pair is ignored
_OF_AN_INSTANCE = 0.5  # share of an instance's images that are mined for each of them


@dataclass(frozen=True)
class Thresholds:
    """The numbers that decide in a round."""

    similarity: float  # cosine that every positive exceeds
    mined: float  # what a mined candidate exceeds: shared neighbours (D) or cosine (D-anchor)
    k: int  # most candidates mined per image
    doubtful_overlap: float  # pairs that share more neighbours are no negatives
    reach: int  # an image's so many nearest are no negatives


@dataclass(frozen=True)
class CandidateLabels:
    """For every image and each of its candidates: positive, ignored, or (where both are False) negative."""

    positive: Tensor  # (N, P) bool
    ignored: Tensor  # (N, P) bool


def measure_thresholds(
    variant: Variant, own: OwnViews, size: InstanceSize
) -> tuple[Thresholds, tuple[str, ...]]:
    """The thresholds of a collection, and for the report why each is what it is."""
    k = max(2, round(_OF_AN_INSTANCE * size.core))
    if variant == "D-anchor":
        mined, why = own.between(_LIKE_OWN_VIEW), "nearly as similar as an image and its own view"
    else:
        mined, why = _LIKE_OWN_VIEW * own.shared, f"own views share {own.shared:.0%} of their neighbours"
    found = Thresholds(own.threshold, mined, k, _DOUBTFUL_OVERLAP, size.reach)
    reasons = [
        f"similarity = {found.similarity:.3g}: own views are {own.own_view_similarity:.2f} "
        f"similar, random pairs {own.random_pair_similarity:.2f}",
        f"reach = {found.reach}: so many of the nearest may show the same instance",
    ]
    if variant in ("D-anchor", "D"):
        reasons += [f"mined = {mined:.3g}: {why}", f"k = {k}: half of the images of an instance"]
    return found, tuple(reasons)


def label_candidates(
    pool: Pool, overlap: Overlap, thresholds: Thresholds, variant: Variant, neighbours: int
) -> CandidateLabels:
    """Which candidates are positives and which are ignored.

    A: the N_b nearest. C: those of them above the similarity threshold. D-anchor: and the k most similar mutual
    neighbours above `mined`. D: and the k candidates that share most neighbours, above `mined`.
    """
    rank = torch.arange(pool.size)
    similar = pool.similarities.float() > thresholds.similarity  # (N, P)
    nearest = (rank < neighbours).expand_as(similar)
    positive = nearest.clone() if variant == "A" else nearest & similar
    if variant in ("D-anchor", "D"):
        if variant == "D":
            score = overlap.shared.float()  # (N, P)
        else:
            score = pool.similarities.float().masked_fill(~overlap.mutual, -1.0)
        possible = (score > thresholds.mined) & similar & ~nearest
        # Equal overlaps are frequent: the better rank goes first.
        best = score.masked_fill(~possible, -1.0).sort(dim=1, descending=True, stable=True)
        columns = best.indices[:, : thresholds.k]
        positive |= torch.zeros_like(positive).scatter_(1, columns, best.values[:, : thresholds.k] > 0)
    ignored = (rank < thresholds.reach) | similar | (overlap.shared.float() > thresholds.doubtful_overlap)
    return CandidateLabels(positive, ignored & ~positive)


def mine_pairs(
    evidence: Evidence, pool: Pool, size: InstanceSize, variant: Variant, neighbours: int
) -> CandidateLabels:
    """Measure the thresholds and label the candidates, all at once: for collections that fit into memory."""
    own = measure_own_views(evidence, random_pairs(evidence.deciding), pool.ids, size.core)
    thresholds, _ = measure_thresholds(variant, own, size)
    overlap = neighbour_overlap(pool.ids, size.core)
    return label_candidates(pool, overlap, thresholds, variant, neighbours)
