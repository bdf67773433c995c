"""Feedback about the images of a collection, as tensors that a method learns from."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_PAIRS_AN_IMAGE = 10  # drawn of its group


@dataclass(frozen=True)
class FeedbackGroups:
    """Groups of N images, which of them have feedback, and which groups are known to be different."""

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
        return self.has_feedback & (torch.bincount(self.groups)[self.groups] > 1)

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
