"""What the images' own augmented views and random pairs measure: the thresholds for pairs, and steadier decisions."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from insclr.neighbours.exact import nearest

# What a positive must exceed is exceeded by so few random pairs.
FALSE_MATCHES = 0.01
# A negative counts while it is among the most similar tenth of random pairs.
ACTIVE_NEGATIVES = 0.10
_PAIRS = 200_000


def random_pairs(descriptors: Tensor, seed: int = 0) -> Tensor:
    """Similarities of random pairs of different images, sorted ascending, from unit rows (N, D)."""
    generator = torch.Generator().manual_seed(seed)
    images = len(descriptors)
    first = torch.randint(images, (_PAIRS,), generator=generator)
    second = (first + 1 + torch.randint(images - 1, (_PAIRS,), generator=generator)) % images
    blocks = [
        (descriptors[a].float() * descriptors[b].float()).sum(1)
        for a, b in zip(first.split(10_000), second.split(10_000), strict=True)
    ]
    return torch.cat(blocks).sort().values


def exceeded_by(pairs: Tensor, share: float) -> float:
    """The similarity that this share of the sorted `pairs` exceeds."""
    return float(pairs[min(len(pairs) - 1, int(len(pairs) * (1 - share)))])


_ALL_BUT = 0.001  # share of images that may be less similar to their own view than a positive pair must be
_BLOCK_ROWS = 8192
HALFWAY = 0.5  # least similarity of a positive pair, from random pairs (0) to own views (1)
MOST_MEASURED = 100_000  # images of a large collection whose own views are compared with them
_SAMPLE = 1500  # images whose neighbourhoods are compared with those of their views


@dataclass(frozen=True)
class Evidence:
    """The unit descriptors (N, D) that a round decides on."""

    deciding: Tensor
    view: Tensor  # one augmented view of each image
    others: Tensor  # the same mean as `deciding`, without that view
    measured: Tensor | None = None  # (M,) the images that `view` and `others` are of; None: all


@dataclass(frozen=True)
class OwnViews:
    """How similar images are to their own views, and to unrelated images."""

    random_pair_similarity: float  # mean
    own_view_similarity: float  # mean, of an image and its view
    least_similarity: float  # of an image and its view, which all but a few images reach
    shared: float  # mean overlap of the neighbourhoods of an image and its view

    def between(self, share: float) -> float:
        """The similarity at this share of the way from random pairs (0) to own views (1)."""
        return self.random_pair_similarity + share * (self.own_view_similarity - self.random_pair_similarity)

    @property
    def threshold(self) -> float:
        """The similarity from which two images may show the same instance.

        In a small collection few images of other instances are far away, and only the least similar own view
        is a safe measure; in a large one that is an outlier, and halfway decides.
        """
        return max(self.least_similarity, self.between(HALFWAY))


def combine_views(plain: Tensor, views: Tensor, *, voted: bool) -> Evidence:
    """From unit descriptors of the plain images (N, D) and their views (V, N, D).

    `voted` decides on the mean of all of them; else the plain one decides alone, as in the paper.
    """
    if not voted or len(views) < 2:
        return Evidence(plain, views[0], plain)
    others = plain + views[1:].sum(0)
    return Evidence(
        functional.normalize(others + views[0], dim=1), views[0], functional.normalize(others, dim=1)
    )


def measure_own_views(
    evidence: Evidence, random_pairs: Tensor, pool_ids: Tensor, k: int, seed: int = 0
) -> OwnViews:
    """Compare similarities of `random_pairs`, and neighbourhoods of k, with those of the images' views."""
    pairs = zip(evidence.others.split(_BLOCK_ROWS), evidence.view.split(_BLOCK_ROWS), strict=True)
    own = torch.cat([(other.float() * view.float()).sum(1) for other, view in pairs]).sort().values
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randperm(len(own), generator=generator)[:_SAMPLE]
    return OwnViews(
        random_pair_similarity=float(random_pairs.mean()),
        own_view_similarity=float(own.mean()),
        least_similarity=float(own[int(_ALL_BUT * len(own))]),
        shared=_mean_overlap(evidence, pool_ids, sample, min(k, pool_ids.shape[1])),
    )


def _mean_overlap(evidence: Evidence, pool_ids: Tensor, sample: Tensor, k: int) -> float:
    """Mean overlap of an image's query set with that of its view, as `mining.overlap` counts it."""
    # The image itself is in both sets: its view need not find it.
    images = sample if evidence.measured is None else evidence.measured[sample]
    _, theirs = nearest(evidence.view[sample], evidence.deciding, k, own=images)  # (B, k)
    total = 0.0
    for rows, found in zip(images.split(256), theirs.split(256), strict=True):
        common = (found[:, :, None] == pool_ids[rows, None, :k]).any(2).sum(1) + 1  # (B,)
        total += float(common.sum()) / (k + 1)
    return total / len(sample)
