"""Training tuples: a random anchor with its N_b top-ranked neighbours (paper, Setup for training samples), or a group
that people named.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from insclr.errors import UserError

_PAIRS_AN_IMAGE = 10  # drawn of its group


@dataclass(frozen=True)
class FeedbackGroups:
    """Groups of N images, which of them have feedback, and which groups are known to be different.

    The groups without feedback are those that matched points prove.
    """

    groups: Tensor  # (N,) int64, numbered from 0
    has_feedback: Tensor  # (N,) bool: of a group that an answer or a name is about
    apart: Tensor  # (A, 2) int64: groups that show different instances
    source: str = ""  # the store that it was read from

    @cached_property
    def _number(self) -> Tensor:
        """Groups with feedback, numbered without gaps; -1 for all others. (groups,)"""
        known = torch.zeros(int(torch.cat([self.groups, self.apart.flatten()]).max()) + 1, dtype=torch.bool)
        known[self.groups[self.has_feedback]] = True
        return torch.where(known, known.cumsum(0) - 1, -1)

    @cached_property
    def _different(self) -> Tensor:
        """Whether two groups with feedback are different, (K + 1, K + 1); the last is of all others."""
        count = int(self._number.max()) + 2
        found = torch.zeros(count, count, dtype=torch.bool)
        one, other = self._number[self.apart].T
        found[one, other] = found[other, one] = True
        found[-1], found[:, -1] = False, False
        return found

    @cached_property
    def decided(self) -> Tensor:
        """Images (N,) whose positives people decided: of a group with feedback and more than one image."""
        return self.has_feedback & self._grouped

    @cached_property
    def proven(self) -> Tensor:
        """Images (N,) of a group that matched points prove."""
        return ~self.has_feedback & self._grouped

    @cached_property
    def _grouped(self) -> Tensor:
        return torch.bincount(self.groups)[self.groups] > 1

    def proven_same(self, images: Tensor, candidates: Tensor) -> Tensor:
        """Which candidates (T, P) matched points prove to show the same instance as their image (T,)."""
        return self.proven[images][:, None] & self.same(images, candidates)

    def add_proven(self, proven: "FeedbackGroups") -> "FeedbackGroups":
        """This feedback, and groups that matched points prove among the images without any."""
        groups = torch.where(self.has_feedback, self.groups, proven.groups + self.groups.max() + 1)
        return FeedbackGroups(groups, self.has_feedback, self.apart, self.source)

    def positives(self) -> int:
        """How many positives people decided: the other members of the group of every image in `decided`."""
        return int((torch.bincount(self.groups)[self.groups] - 1)[self.decided].sum())

    def same(self, anchors: Tensor, images: Tensor) -> Tensor:
        """Whether `images` (T, J) are of the group of their anchor (T,)."""
        groups = self.groups.to(anchors.device)
        return groups[images] == groups[anchors][:, None]

    def different(self, anchors: Tensor, images: Tensor) -> Tensor:
        """Whether `images` (T, J) are known to show other instances than their anchor (T,)."""
        number = self._number[self.groups].to(anchors.device)
        return self._different.to(anchors.device)[number[anchors][:, None], number[images]]

    def subset(self, rows: slice | Tensor) -> "FeedbackGroups":
        """The feedback about some of the images."""
        return FeedbackGroups(self.groups[rows], self.has_feedback[rows], self.apart, self.source)

    def correct_pairs(
        self, first: Tensor, second: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Pairs of images (P,), (P,) of one instance: mined ones where people decided nothing, else theirs."""
        undecided = ~(self.decided[first] | self.decided[second])
        by_group = self.groups.argsort(stable=True)
        sizes = torch.bincount(self.groups)
        starts = sizes.cumsum(0) - sizes
        anchors = self.decided.nonzero()[:, 0].repeat(_PAIRS_AN_IMAGE)
        group = self.groups[anchors]
        drawn = (torch.rand(len(anchors), generator=generator) * sizes[group]).long()
        others = by_group[starts[group] + drawn]
        real = anchors != others
        return torch.cat([first[undecided], anchors[real]]), torch.cat([second[undecided], others[real]])


class Sampler(Protocol):
    """Gives the tuples of every step; batch n is a pure function of n."""

    def step(self, n: int) -> Tensor:
        """Batch number n, counted from 0, as int64 ids (T, M); the anchor comes first."""


class Anchors:
    """T of the images `ids` (A,) in every step; each of them once an epoch, in an order of the epoch's own.

    An epoch that ends inside a batch goes on with the next one's first anchors.
    """

    def __init__(self, ids: Tensor, tuples: int, seed: int) -> None:
        self._ids = ids
        self._tuples = tuples
        self._seed = seed
        self._order: dict[int, Tensor] = {}  # the anchors of the latest epochs

    def step(self, n: int) -> Tensor:
        """The anchors (T,) of batch number n."""
        epoch, place = divmod(n * self._tuples, len(self._ids))
        anchors = self._epoch(epoch)[place : place + self._tuples]
        while len(anchors) < self._tuples:
            epoch += 1
            anchors = torch.cat([anchors, self._epoch(epoch)[: self._tuples - len(anchors)]])
        return anchors

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._order:
            self._order = {known: order for known, order in self._order.items() if abs(known - epoch) == 1}
            order = torch.randperm(len(self._ids), generator=step_generator(self._seed, epoch))
            self._order[epoch] = self._ids[order]
        return self._order[epoch]


class TupleSampler:
    """Batches of T tuples as image ids (T, 1 + N_b); every image is an anchor once an epoch.

    Batch n depends on the seed and n alone, so a resumed run or a worker that prefetches needs no replay.
    """

    def __init__(
        self, pool_ids: Tensor, tuples: int, neighbours: int, seed: int, mined: Tensor | None = None
    ) -> None:
        """`mined` (N, P) marks positives of the pool: neighbours are drawn from them, then from the top-ranked."""
        images, pool_size = pool_ids.shape
        require_enough_images(images, tuples)
        self._anchors = Anchors(torch.arange(images), tuples, seed)
        if not 0 <= neighbours < pool_size:
            raise UserError(
                f"A tuple of {neighbours} neighbours does not fit a candidate pool of {pool_size}: "
                f"set the neighbours to at most {pool_size - 1}, or enlarge the pool."
            )
        # Copied: a view would keep the whole pool alive in every worker.
        self._neighbours = pool_ids[:, :neighbours].clone()  # (N, N_b)
        self._pool_ids = pool_ids if mined is not None else None
        self._mined = mined
        self._seed = seed

    def step(self, n: int) -> Tensor:
        """Batch number n, counted from 0, as int64 ids (T, 1 + N_b); the anchor comes first."""
        anchors = self._anchors.step(n)
        return torch.cat([anchors[:, None], self._members(anchors, n)], dim=1)

    def _members(self, anchors: Tensor, n: int) -> Tensor:
        if self._mined is None or self._pool_ids is None:
            return self._neighbours[anchors].long()
        # Random order of the mined ones, then the others by rank.
        mined = self._mined[anchors]  # (T, P)
        order = torch.rand(mined.shape, generator=step_generator(self._seed, n, 1)) - 1
        rank = torch.arange(mined.shape[1], dtype=order.dtype).expand_as(order)
        columns = torch.where(mined, order, rank).argsort(dim=1)[:, : self._neighbours.shape[1]]
        return self._pool_ids[anchors].gather(1, columns).long()


class KnownGroupsSampler:
    """The tuples of another sampler, where an anchor of a known group has members of that group beside it.

    They are drawn at random, each once before any comes twice.
    """

    def __init__(self, others: Sampler, groups: Tensor, known: Tensor, seed: int) -> None:
        """`groups` (N,) numbers the group of every image; `known` (N,) marks anchors whose group counts."""
        self._others = others
        self._known = known
        self._seed = seed
        self._groups = groups
        by_group = groups.argsort(stable=True)
        self._of_group = by_group.split(torch.bincount(groups).tolist())

    def step(self, n: int) -> Tensor:
        """Batch number n, counted from 0, as int64 ids (T, M); the anchor comes first."""
        ids = self._others.step(n).clone()
        generator = step_generator(self._seed, n, 3)
        for row in self._known[ids[:, 0]].nonzero()[:, 0].tolist():
            group = self._of_group[int(self._groups[ids[row, 0]])]
            ids[row, 1:] = draw_images(group[group != ids[row, 0]], ids.shape[1] - 1, generator)
        return ids


def draw_images(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """So many of the images at random, each once before any comes twice."""
    rounds = -(-count // len(images))
    orders = [images[torch.randperm(len(images), generator=generator)] for _ in range(rounds)]
    return torch.cat([images[:0], *orders])[:count]


def require_enough_images(images: int, tuples: int) -> None:
    """Refuse a batch of more tuples than there are images."""
    if not 1 <= tuples <= images:
        raise UserError(
            f"A batch of {tuples} tuples cannot be drawn from {images} images. "
            f"Set the number of tuples between 1 and {images}."
        )


def step_generator(*numbers: int) -> torch.Generator:
    """A generator that depends on the seed and the number of the step alone."""
    mixed = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed))
