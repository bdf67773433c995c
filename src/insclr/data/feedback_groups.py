"""Feedback about the images of a collection, ready for a method to learn from."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_PAIRS_AN_IMAGE = 10  # drawn of its group


@dataclass(frozen=True)
class FeedbackGroups:
    """Groups of N images, which of them people spoke about, and which groups they said are different."""

    groups: Tensor  # (N,) int64, numbered from 0
    has_feedback: Tensor  # (N,) bool: of a group that an answer or a name is about
    apart: Tensor  # (A, 2) int64: groups that show different instances
    source: str = ""  # the store that it was read from

    @cached_property
    def _number(self) -> Tensor:
        """The groups that people spoke about, numbered without gaps; -1 for all others. (groups,)"""
        known = torch.zeros(int(self.groups.max()) + 1, dtype=torch.bool)
        known[self.groups[self.has_feedback]] = True
        numbers = known.cumsum(0) - 1
        return torch.where(known, numbers, -1)

    @cached_property
    def _different(self) -> Tensor:
        """Whether two groups that people spoke about are different, (K + 1, K + 1); the last is of all others."""
        count = int(self._number.max()) + 2
        found = torch.zeros(count, count, dtype=torch.bool)
        one, other = self._number[self.apart[:, 0]], self._number[self.apart[:, 1]]
        found[one, other] = True
        found[other, one] = True
        found[-1], found[:, -1] = False, False
        return found

    @cached_property
    def decided(self) -> Tensor:
        """Images (N,) whose positives people decided: of a group that they spoke about, with others in it."""
        return self.has_feedback & (torch.bincount(self.groups)[self.groups] > 1)

    def positives(self) -> int:
        """How many positives people decided: the other members of the group of every image in `decided`."""
        return int((torch.bincount(self.groups)[self.groups] - 1)[self.decided].sum())

    def same(self, anchors: Tensor, images: Tensor) -> Tensor:
        """Whether `images` (T, J) are of the group of their anchor (T,)."""
        groups = self.groups.to(anchors.device)
        return groups[images] == groups[anchors][:, None]

    def different(self, anchors: Tensor, images: Tensor) -> Tensor:
        """Whether people said that `images` (T, J) show other instances than their anchor (T,)."""
        number = self._number[self.groups].to(anchors.device)
        return self._different.to(anchors.device)[number[anchors][:, None], number[images]]

    def some(self, rows: slice | Tensor) -> "FeedbackGroups":
        """The feedback about some of the images."""
        return FeedbackGroups(self.groups[rows], self.has_feedback[rows], self.apart, self.source)

    def corrected(self, first: Tensor, second: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Pairs of images (P,), (P,) that show one instance: mined ones where people said nothing, else theirs."""
        unsaid = ~(self.decided[first] | self.decided[second])
        places = self.decided.nonzero()[:, 0]
        by_group = self.groups.argsort(stable=True)
        sizes = torch.bincount(self.groups)
        starts = sizes.cumsum(0) - sizes
        anchors = places.repeat(_PAIRS_AN_IMAGE)
        group = self.groups[anchors]
        drawn = (torch.rand(len(anchors), generator=generator) * sizes[group]).long()
        others = by_group[starts[group] + drawn]
        real = anchors != others
        return torch.cat([first[unsaid], anchors[real]]), torch.cat([second[unsaid], others[real]])
