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
_SIZES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 30, 40, 50, 70, 100)
_LARGE_SIZES = (150, 200, 300)  # only where instances stand apart
_LEVEL = 1 / 8  # of its range above its minimum, cohesion has stopped falling
_LEAST_IGNORED, _MOST_IGNORED = 10, 50  # of an image's nearest, where instances do not stand apart
_CLEAR = 0.005  # a change of cohesion that is more than chance
_APART = 0.85  # cohesion that only instances of their own have
# A collection is assumed to have so many instances, at least: families of look-alikes make the estimate too large
# where most images are single. docs/research/lab-book.md has what other limits give.
_INSTANCES = 100
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
    that holds few images of other instances. Where instances run into each other it only falls, and is level from
    about the size of one on. Too small a k mines a little less, too large a k mines look-alikes, so a small
    collection is assumed to have many instances.
    """
    images, size = pool_ids.shape
    sizes = [k for k in _SIZES + _LARGE_SIZES if k <= min(size, max(2, images // 4))] or [size]
    cohesion = _cohesion(pool_ids, sizes, seed)
    peak = _first_peak(cohesion)
    if peak is not None:
        whole = sizes[peak]
        core = max(k for k in sizes if k <= max(2, whole // 2))
    else:
        usual = cohesion[: len(_SIZES)]
        level = min(usual) + _LEVEL * (max(usual) - min(usual))
        whole, core = 0, next(k for k, value in zip(sizes, usual, strict=False) if value <= level)
    reach = max(_LEAST_IGNORED, min(_MOST_IGNORED, 2 * core), 3 * whole // 2)
    return InstanceSize(min(core, max(sizes[0], images // _INSTANCES)), whole, reach)


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
