"""Whether mined pairs can be trusted: a test without labels, made before anything is learned from them.

Where images of one instance are alike, two disjoint halves of the evidence mine the same pairs, and two positives of
an image are positives of each other. Where the nearest images show another instance in the same pose or place,
every view finds other ones, and chains of pairs lead ever further: a network would learn the pose from them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional

from insclr.mining.candidates import Variant, mine_pairs
from insclr.mining.overlap import InstanceSize
from insclr.mining.own_views import Evidence
from insclr.neighbours.pool import Pool, build_pool

# Least agreement x transitivity of pairs that are learned from, in a collection of 500 images. In a small collection
# the same few neighbours are found again by chance, so it falls with the number of images, to this power. Between
# antelopes that all look alike, whole and in samples (0.08 of 1,934 images to 0.22 of 473), and collections that
# training helps (0.23 of 6,598 images of landmarks, 0.37 to 0.78 of 288 to 2,701 images of four other kinds).
LEAST_CONSISTENCY = 0.3
_FALL = 0.35
_IMAGES = 500
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
    def is_enough(self) -> bool:
        """Whether the pairs are consistent enough to be learned from."""
        least: float = LEAST_CONSISTENCY * min(1.0, _IMAGES / self.images) ** _FALL
        return self.value >= least

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

    `describe` gives those of the images `ids` (n,). None where there are too few views for two halves, or no pair.
    """
    counted, ids = _whole_neighbourhoods(pool)
    views = describe(ids) if positive.any() else torch.empty(0)
    if len(views) < _VIEWS:
        return None
    halves = []
    for a, b in ((views[0], views[1]), (views[2], views[3])):
        evidence = Evidence(functional.normalize(a + b, dim=1), a, b)
        half = build_pool(evidence.deciding, min(pool.size, len(ids) - 1))
        found = mine_pairs(evidence, half, size, variant, neighbours).positive & counted[:, None]
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
