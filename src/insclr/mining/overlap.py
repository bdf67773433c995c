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
# Sizes of an instance that are tried; in between there is little to gain.
_SIZES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 30, 40, 50, 70, 100, 150, 200, 300)
# Images in a query set. Measured with 4 to 44: sets of 18 to 40 images an instance lose half a point by a small one,
# mixtures with single images gain up to eight, because neighbours further away are look-alikes there.
_QUERY_SET = 5
_LEAST_IGNORED, _MOST_IGNORED = 10, 50  # of an image's nearest, where instances do not stand apart
_SHARE_IGNORED = 8  # and at most one in so many of all images
_CLEAR = 0.005  # a change of cohesion that is more than chance
_APART = 0.85  # cohesion that only instances of their own have
_INSTANCES = 40  # a collection is assumed to have so many, at least
_SAMPLE = 1500  # images that cohesion is measured on


@dataclass(frozen=True)
class Overlap:
    """For every image and each of its candidates: what they have in common."""

    shared: Tensor  # (N, P) float16: share of the image's query set that is in the candidate's
    mutual: Tensor  # (N, P) bool: each is among the other's k nearest (the query set is the anchor alone)


def neighbour_overlap(pool_ids: Tensor, k: int, rows: Tensor | None = None) -> Overlap:
    """Overlap of every image with each image of its pool (N, P), by their k nearest (k at most P).

    With `rows` (B,) that of these images alone: a collection of millions is labelled block by block.
    """
    images, size = pool_ids.shape
    k = min(k, size)
    rows = torch.arange(images) if rows is None else rows
    shared = torch.empty(len(rows), size, dtype=torch.float16)
    mutual = torch.empty(len(rows), size, dtype=torch.bool)
    block = max(1, min(len(rows), _MARKS // max(images, size * k * 8)))
    in_set = torch.zeros(block, images, dtype=torch.bool)
    for places in torch.arange(len(rows)).split(block):
        candidates = pool_ids[rows[places]].long()  # (B, P)
        shared[places], mutual[places] = _overlap(rows[places], candidates, pool_ids[:, :k], in_set)
    return Overlap(shared, mutual)


def _overlap(rows: Tensor, candidates: Tensor, nearest: Tensor, in_set: Tensor) -> tuple[Tensor, Tensor]:
    """Overlap of `rows` (B,) with `candidates` (B, P), by the k nearest of every image (N, k).

    `in_set` (B or more, N) is a buffer for marks, all False before and after: clearing it whole would cost N a row.
    """
    k = nearest.shape[1]
    in_set = in_set[: len(rows)]
    members = torch.cat([nearest[rows].long(), rows[:, None]], 1)  # (B, k + 1)
    in_set.scatter_(1, members, True)
    theirs = nearest[candidates].long()  # (B, P, k)
    common = in_set.gather(1, theirs.flatten(1)).view(*candidates.shape, k).sum(2)
    common += in_set.gather(1, candidates)  # the candidate itself
    in_set.scatter_(1, members, False)
    returned = (theirs == rows[:, None, None]).any(2)
    is_near = torch.arange(candidates.shape[1]) < k
    return (common / (k + 1)).half(), returned & is_near


@dataclass(frozen=True)
class InstanceSize:
    """How many images an instance has, as far as the collection shows it."""

    core: int = 0  # in a query set (k); 0 where unknown
    whole: int = 0  # all of them, where instances stand apart; else 0
    reach: int = _LEAST_IGNORED  # so many of the nearest may show the same instance, and are no negatives


UNKNOWN = InstanceSize()


def estimate_size(pool_ids: Tensor, seed: int = 0) -> InstanceSize:
    """How many images an instance has, and how many of them are a query set.

    Cohesion is the mean overlap of an image with its k nearest. Where instances stand apart it rises to a first
    peak as k takes in the whole instance (a later one belongs to a family of look-alikes); a query set of half of
    that holds few images of other instances. Too small a k mines a little less, too large a k mines look-alikes, so
    it is never large, and a small collection is assumed to have many instances.
    """
    images, size = pool_ids.shape
    sizes = [k for k in _SIZES if k <= min(size, max(2, images // 4))] or [size]
    peak = _first_peak(_cohesion(pool_ids, sizes, seed))
    whole = 0 if peak is None else sizes[peak]
    core = min(_QUERY_SET, max(sizes[0], images // _INSTANCES))
    if whole:
        core = max(k for k in sizes if k <= max(2, min(core, whole // 2)))
    reach = max(_LEAST_IGNORED, min(_MOST_IGNORED, images // _SHARE_IGNORED), 3 * whole // 2)
    return InstanceSize(core, whole, reach)


def _cohesion(pool_ids: Tensor, sizes: list[int], seed: int) -> list[float]:
    """Mean overlap of an image with its k nearest, for every k; on a sample of the images."""
    images = len(pool_ids)
    sample = torch.randperm(images, generator=torch.Generator().manual_seed(seed))[:_SAMPLE]
    found = []
    for k in sizes:
        nearest = pool_ids[:, :k]
        rows = sample.split(max(1, _MARKS // max(images, k * k * 8)))
        in_set = torch.zeros(len(rows[0]), images, dtype=torch.bool)
        shared = torch.cat(
            [_overlap(part, nearest[part].long(), nearest, in_set)[0].float() for part in rows]
        )
        found.append(float(shared.mean()))
    return found


def _first_peak(values: list[float]) -> int | None:
    """Where they first turn down after a clear rise, or from the top; None if they never do."""
    lowest, top = values[0], 0
    for i, value in enumerate(values):
        if value > values[top]:
            top = i
        has_risen = values[top] > lowest + _CLEAR or values[top] > _APART
        if has_risen and value < values[top] - _CLEAR:
            return top
        if not has_risen:
            lowest = min(lowest, value)
            top = i
    return None
