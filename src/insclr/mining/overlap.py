"""Neighbourhood overlap: query-set mining by ranks instead of cosines.

Query set of an image: itself and its k nearest. A candidate's similarity to a member of that set is 1 where the
member is among the candidate's own k nearest (or is the candidate), else 0: the paper's similarities, sparsified
by rank instead of by a threshold phi. Their mean over the query set (psi) is the share of neighbours that image and
candidate have in common. Ranks need no calibration to a network or a collection, which cosines do.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_MARKS = 1 << 28  # bytes of membership marks held at once
# Sizes of a thing that are told apart; in between there is little to gain.
_SIZES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 30, 40, 50, 70, 100)
_FLAT = 0.02  # cohesion this near to its minimum has stopped falling
_APART = 0.85  # cohesion of neighbourhoods that are things of their own
LIKELY = 0.6  # overlap above which two images are taken for pictures of one thing
_SAMPLED = 1500


@dataclass(frozen=True)
class Overlap:
    """For every image and each of its candidates: what they have in common."""

    shared: Tensor  # (N, P) float16: share of the image's query set that is in the candidate's
    mutual: Tensor  # (N, P) bool: each is among the other's k nearest (the query set is the anchor alone)
    k: int


def neighbour_overlap(pool_ids: Tensor, k: int) -> Overlap:
    """Overlap of every image with each image of its pool (N, P), by their k nearest (k at most P)."""
    images, size = pool_ids.shape
    k = min(k, size)
    nearest = pool_ids[:, :k].long()  # (N, k)
    shared = torch.empty(images, size, dtype=torch.float16)
    mutual = torch.empty(images, size, dtype=torch.bool)
    for rows in torch.arange(images).split(max(1, _MARKS // max(images, size * k * 8))):
        candidates = pool_ids[rows].long()  # (B, P)
        shared[rows], mutual[rows] = _overlap(rows, candidates, nearest, images)
    return Overlap(shared, mutual, k)


def _overlap(rows: Tensor, candidates: Tensor, nearest: Tensor, images: int) -> tuple[Tensor, Tensor]:
    k = nearest.shape[1]
    in_set = torch.zeros(len(rows), images, dtype=torch.bool)
    in_set.scatter_(1, nearest[rows], True)
    in_set[torch.arange(len(rows)), rows] = True
    theirs = nearest[candidates]  # (B, P, k)
    common = in_set.gather(1, theirs.flatten(1)).view(*candidates.shape, k).sum(2)
    common += in_set.gather(1, candidates)  # the candidate itself
    returned = (theirs == rows[:, None, None]).any(2)
    is_near = torch.arange(candidates.shape[1]) < k
    return (common / (k + 1)).half(), returned & is_near


def estimate_size(pool_ids: Tensor, seed: int = 0) -> int:
    """How many pictures a thing has, roughly: the k for query sets of this collection.

    Cohesion is the mean overlap of an image with its k nearest. Where things stand apart it is near 1 up to their
    size, and the largest such k is theirs. Where they run into each other it falls while k grows through the
    pictures of one thing and is level beyond: the first level k. Of the k up to there, the one that mines most.
    """
    images, size = pool_ids.shape
    sizes = [k for k in _SIZES if k <= min(size, max(2, images // 4))] or [size]
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randperm(images, generator=generator)[:_SAMPLED]
    cohesion, mined = [], []
    for k in sizes:
        nearest = pool_ids[:, :k].long()
        rows = sample.split(max(1, _MARKS // max(images, k * k * 8)))
        shared = torch.cat([_overlap(part, nearest[part], nearest, images)[0].float() for part in rows])
        cohesion.append(float(shared.mean()))
        mined.append(float((shared > LIKELY).sum(1).float().mean()))
    if max(cohesion) >= _APART:
        last = max(i for i, value in enumerate(cohesion) if value >= _APART - 0.05)
    else:
        last = next(i for i, value in enumerate(cohesion) if value <= min(cohesion) + _FLAT)
    return sizes[max(range(last + 1), key=lambda i: mined[i])]
