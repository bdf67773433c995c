"""Self-calibrating mining: one verdict a round on every candidate, from ranks and from the images' own views.

Two numbers decide, and both are measured by the images' own views (`mining.own_views`): how similar two pictures
of one thing are at least, and how much of the neighbourhood they have in common, which is to ask the whole query
set. Where a collection has no safe pairs, few candidates pass both, and mining starves instead of flooding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from insclr.mining.criteria import Criteria
from insclr.mining.overlap import Overlap
from insclr.neighbours.pool import Pool


@dataclass(frozen=True)
class Verdicts:
    """For every image and each of its candidates: positive, neither, or (where both are False) negative."""

    positive: Tensor  # (N, P) bool
    ignored: Tensor  # (N, P) bool

    def per_image(self) -> float:
        """How many positives an image has on average."""
        return float(self.positive.sum()) / len(self.positive)


def votes(method: str) -> bool:
    """Whether a method selects, and so decides on the mean of all views; A and B take the pool as it is."""
    return method not in ("A", "B")


def judge(pool: Pool, overlap: Overlap, criteria: Criteria, neighbours: int) -> Verdicts:
    """The verdicts of a method: which candidates are positives, which count neither way.

    A, B: the N_b nearest. C: those of them above T_b. D-anchor: and k more that the anchor alone vouches for:
    mutual neighbours with a similarity above the floor, the largest first. D: and k more that the query set
    vouches for, with an overlap above the floor, the largest first.
    """
    rank = torch.arange(pool.size)
    similar = pool.similarities.float() > criteria.batch_threshold  # (N, P)
    nearest = (rank < neighbours).expand_as(similar)
    positive = nearest & similar if votes(criteria.method) else nearest.clone()
    if criteria.mines_memory:
        if criteria.method == "D":
            score = overlap.shared.float()
        else:
            score = pool.similarities.float().masked_fill(~overlap.mutual, -1.0)
        score = score.masked_fill(score <= (criteria.floor or 0.0), -1.0)
        score = score.masked_fill(~similar | nearest, -1.0)
        # Equal overlaps are frequent: the better rank goes first.
        best = score.sort(dim=1, descending=True, stable=True)
        mined = torch.zeros_like(positive).scatter_(
            1, best.indices[:, : criteria.k], best.values[:, : criteria.k] > 0
        )
        positive |= mined
    ignored = (rank < criteria.ignore_nearest) | similar
    if criteria.ignore_above is not None:
        ignored = ignored | (overlap.shared.float() > criteria.ignore_above)
    return Verdicts(positive, ignored & ~positive)
