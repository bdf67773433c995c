"""Label every candidate of every image at once by measured thresholds, and test the labels for consistency."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from insclr.mining.overlap import InstanceSize, Overlap, neighbour_overlap
from insclr.mining.own_views import HALFWAY, Evidence, OwnViews, measure_own_views, random_pairs
from insclr.neighbours.pool import Pool, build_pool

Variant = Literal["A", "C", "D-anchor", "D"]

_LIKE_OWN_VIEW = 0.9  # share of the own views' overlap or similarity that a mined candidate must reach
_DOUBTFUL_OVERLAP = 0.2  # share of common neighbours above which an unchosen pair is ignored
_OF_A_QUERY_SET = 0.5  # the most that is mined for an image
_MUTUAL = 2  # nearest of each other


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
    k = max(2, round(_OF_A_QUERY_SET * size.core))
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
        reasons += [f"mined = {mined:.3g}: {why}", f"k = {k}: half of a query set"]
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
    evidence: Evidence,
    pool: Pool,
    size: InstanceSize,
    variant: Variant,
    neighbours: int,
    *,
    with_mutual: bool = False,
) -> Tensor:
    """Measure the thresholds and mine the positives (N, P), all at once: for collections that fit into memory.

    `with_mutual` adds images among each other's two nearest that are more similar than halfway from random pairs to
    own views: of instances with few images the thresholds find hardly any pair.
    """
    own = measure_own_views(evidence, random_pairs(evidence.deciding), pool.ids, size.core)
    thresholds, _ = measure_thresholds(variant, own, size)
    overlap = neighbour_overlap(pool.ids, size.core)
    positive = label_candidates(pool, overlap, thresholds, variant, neighbours).positive
    if with_mutual:
        nearest = pool.ids[:, :_MUTUAL].long()  # (N, 2)
        mutual = (nearest[nearest] == torch.arange(len(nearest))[:, None, None]).any(2)
        positive[:, :_MUTUAL] |= mutual & (pool.similarities[:, :_MUTUAL].float() > own.between(HALFWAY))
    return positive


# Least agreement x transitivity of pairs that are learned from, in a collection of 500 images. In a small collection
# the same few neighbours are found again by chance, so it falls with the number of images, to this power. Between
# antelopes that all look alike, whole and in samples (0.08 of 1,934 images to 0.22 of 473), and collections that
# training helps (0.23 of 6,598 images of landmarks, 0.37 to 0.78 of 288 to 2,701 images of four other kinds).
LEAST_CONSISTENCY = 0.3
_FALL = 0.35
_IMAGES = 500
# Mined pairs an image below which consistency is not tested: of so few (0.04 and 0.05 in two collections, all right)
# one half of the evidence finds none by chance, and they hardly move the initial FC.
LEAST_PAIRS_TESTED = 0.25
_VIEWS = 4  # two for each half of the evidence; more are not used
MAX_IMAGES_MINED_AGAIN = 20_000  # that are mined twice more
_SAMPLE = 1000  # images whose positives are compared with each other


class PairTrust(StrEnum):
    """Whether a run may learn from mined pairs."""

    UNTESTED = "untested"  # nothing has been learned yet: pairs are tested for consistency before a round
    TRUSTED = "trusted"  # a round has learned from them and was kept, or the guard is off
    UNTRUSTED = "untrusted"  # they were inconsistent: neither the initial FC nor a round learns from them


@dataclass(frozen=True)
class Consistency:
    """How far mined pairs agree with each other."""

    agreement: float  # share of the pairs mined from either half of the evidence that both halves mine
    transitivity: float  # share of the pairs of an image's positives that are positives themselves
    images: int  # of the collection

    @property
    def value(self) -> float:
        """Both in one number."""
        return self.agreement * self.transitivity

    @property
    def chance(self) -> float:
        """How easily pairs agree by chance, against a collection of 500 images."""
        return float((_IMAGES / self.images) ** _FALL)

    @property
    def is_enough(self) -> bool:
        """Whether the pairs are consistent enough to be learned from."""
        return self.value >= LEAST_CONSISTENCY * min(1.0, self.chance)

    def __str__(self) -> str:
        return f"agreement {self.agreement:.0%}, transitivity {self.transitivity:.0%}"


def measure_consistency(
    describe: Callable[[Tensor], Tensor],
    pool: Pool,
    positive: Tensor,
    size: InstanceSize,
    *,
    variant: Variant,
    neighbours: int,
) -> Consistency | None:
    """Measure it on the `positive` pairs (N, P) and unit descriptors (V, n, D) of the augmented views of n images.

    `describe` gives those of the images `ids` (n,). None where there are too few views for two halves, or few pairs.
    """
    if int(positive.sum()) < LEAST_PAIRS_TESTED * len(positive):
        return None
    counted, ids = _whole_neighbourhoods(pool)
    views = describe(ids)
    if len(views) < _VIEWS:
        return None
    halves = []
    for a, b in ((views[0], views[1]), (views[2], views[3])):
        evidence = Evidence(functional.normalize(a + b, dim=1), a, b)
        half = build_pool(evidence.deciding, min(pool.size, len(ids) - 1))
        found = mine_pairs(evidence, half, size, variant, neighbours) & counted[:, None]
        rows, columns = found.nonzero(as_tuple=True)
        halves.append(rows * len(counted) + half.ids[rows, columns])  # each pair as one number
    both = int(torch.isin(halves[0], halves[1], assume_unique=True).sum())
    either = len(halves[0]) + len(halves[1]) - both
    return Consistency(both / max(1, either), _transitivity(pool, positive), len(pool.ids))


def _whole_neighbourhoods(pool: Pool) -> tuple[Tensor, Tensor]:
    """(which of the images taken are counted, their ids): all, or whole neighbourhoods out of a large collection."""
    images = len(pool.ids)
    if images <= MAX_IMAGES_MINED_AGAIN:
        return torch.ones(images, dtype=torch.bool), torch.arange(images)
    order = torch.randperm(images, generator=torch.Generator().manual_seed(0))
    seeds = order[: max(1, MAX_IMAGES_MINED_AGAIN // (pool.size + 1))]
    # Those at the rim lack neighbours of their own: only the images they were taken for are counted.
    ids = torch.cat([seeds, pool.ids[seeds].long().flatten()]).unique()
    return torch.isin(ids, seeds), ids


def _transitivity(pool: Pool, positive: Tensor) -> float:
    """Share of the pairs of an image's positives that are positives themselves."""
    images = len(positive)
    sample = torch.randperm(images, generator=torch.Generator().manual_seed(0))[:_SAMPLE]
    closed = pairs = 0
    for i in sample.tolist():
        members = pool.ids[i][positive[i]].long()  # (p,)
        theirs = pool.ids[members].masked_fill(~positive[members], -1)  # (p, P)
        linked = (theirs[:, :, None] == members).any(1)  # (p, p)
        closed += int((linked | linked.T).triu(1).sum())
        pairs += len(members) * (len(members) - 1) // 2
    return closed / max(1, pairs)


def mean_precision(truth: Tensor, anchors: Tensor, ids: Tensor, chosen: Tensor) -> float | None:
    """Mean over anchors (T,) of the share of the `chosen` (T, K) among `ids` (T, K) that are right.

    `truth` (N,) is the instance of every image, -1 where no label names it. Labels may name some instances only, but
    all images of each: an unlabelled image shows another instance than a labelled anchor, and an unlabelled anchor
    is not counted. None where no anchor counts.
    """
    anchor = truth[anchors][:, None]  # (T, 1)
    judged = chosen.any(1) & (anchor[:, 0] >= 0)
    if not judged.any():
        return None
    right = chosen & (truth[ids] == anchor)
    return float((right.sum(1)[judged].double() / chosen.sum(1)[judged]).mean())
