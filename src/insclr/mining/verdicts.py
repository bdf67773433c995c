"""Self-calibrating mining: one verdict a round on every candidate, from ranks and from the images' own views.

Two numbers decide, and both come from the collection itself. The similarity of an image to its own augmented view
says how alike two pictures of one thing are at least (`own_view_threshold`); the overlap of neighbourhoods says
whether two images are of one thing with the whole query set as witness. Where a collection has no safe pairs,
few candidates pass both, and mining starves instead of flooding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from insclr.mining.criteria import Criteria
from insclr.mining.overlap import Overlap
from insclr.mining.pool import Pool

# Of the images' own views, so few are less similar than a pair must be.
OWN_VIEW_QUANTILE = 0.01


@dataclass(frozen=True)
class Verdicts:
    """For every image and each of its candidates: positive, neither, or (where both are False) negative."""

    positive: Tensor  # (N, P) bool
    ignored: Tensor  # (N, P) bool

    def per_image(self) -> float:
        """How many positives an image has on average."""
        return float(self.positive.sum()) / len(self.positive)


def own_view_threshold(plain: Tensor, augmented: Tensor) -> float:
    """The similarity that all but a few images have to their own augmented view: unit rows (N, D) both."""
    own = (plain.float() * augmented.float()).sum(1).sort().values
    return float(own[int(OWN_VIEW_QUANTILE * len(own))])


def judge(pool: Pool, overlap: Overlap, criteria: Criteria, neighbours: int) -> Verdicts:
    """The verdicts of a method: which candidates are positives, which count neither way.

    A, B: the N_b nearest. C: those of them above T_b. D-anchor: and k more that the anchor alone vouches for
    (mutual neighbours, the most similar first). D: and k more that the query set vouches for, with an overlap
    above the floor, the largest first.
    """
    rank = torch.arange(pool.size)
    similar = pool.similarities.float() > criteria.batch_threshold  # (N, P)
    nearest = (rank < neighbours).expand_as(similar)
    positive = nearest.clone() if criteria.method in ("A", "B") else nearest & similar
    if criteria.mines_memory:
        if criteria.method == "D":
            score = overlap.shared.float().masked_fill(overlap.shared <= (criteria.floor or 0.0), -1.0)
        else:
            score = pool.similarities.float().masked_fill(~overlap.mutual, -1.0)
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
