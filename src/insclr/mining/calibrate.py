"""Calibration without labels: the numbers a recipe leaves to the collection itself, each with its reason."""

from dataclasses import dataclass

import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.mining.criteria import Criteria
from insclr.mining.overlap import UNKNOWN, ThingSize
from insclr.mining.own_views import Evidence, OwnViews, measure_own_views
from insclr.recipe import RoundRecipe

_PAIRS = 200_000
# Similarities decide: what a positive must beat is what so few random pairs reach.
_FALSE_MATCHES = 0.01
# A negative counts while it is among the most similar tenth of random pairs.
_ACTIVE_NEGATIVES = 0.10
# Overlaps decide: what a memory positive must have, of what an image has in common with its own view; the share of
# the neighbourhood that makes a pair doubtful; and the memory positives, of the pictures of a thing.
_LIKE_OWN_VIEW = 0.9
_OVERLAP_DOUBT = 0.2
_OF_A_THING = 0.5


@dataclass(frozen=True)
class Calibration:
    """The criteria of a round, and for the report why each calibrated number is what it is."""

    criteria: Criteria
    reasons: tuple[str, ...]


def random_pairs(descriptors: Tensor, seed: int = 0) -> Tensor:
    """Similarities of random pairs of different images, sorted ascending: what "unrelated" looks like."""
    generator = torch.Generator().manual_seed(seed)
    images = len(descriptors)
    first = torch.randint(images, (_PAIRS,), generator=generator)
    second = (first + 1 + torch.randint(images - 1, (_PAIRS,), generator=generator)) % images
    blocks = [
        (descriptors[a].float() * descriptors[b].float()).sum(1)
        for a, b in zip(first.split(10_000), second.split(10_000), strict=True)
    ]
    return torch.cat(blocks).sort().values


def calibrate(
    recipe: RoundRecipe,
    descriptors: Tensor,
    seen: Evidence | None = None,
    pool_ids: Tensor | None = None,
    size: ThingSize = UNKNOWN,
) -> Calibration:
    """Replace every "auto" of a round by a number measured on unit descriptors (N, D).

    Where overlaps decide, what was `seen` of the images, their pool (N, P) and the pictures a thing has are needed.
    """
    mining, pairs = recipe.mining, random_pairs(descriptors)
    measured = _Measured(pairs)
    if mining.similarity == "overlap" and seen is not None and pool_ids is not None:
        own = measure_own_views(seen, random_pairs(seen.deciding), pool_ids, size.core)
        measured = _MeasuredByViews(pairs, own, size.core, recipe.method)
    elif mining.similarity == "overlap" and "auto" in (
        mining.batch_threshold, mining.memory_floor, mining.ignore_above, mining.k
    ):  # fmt: skip
        raise UserError(
            "Mining by overlap with automatic thresholds needs views: cached_views must be 1 or more."
        )
    reasons: list[str] = []

    def number(name: str, value: float | str, found: _Found) -> float:
        if value != "auto":
            return float(value)
        chosen, why = found
        reasons.append(f"{name} = {chosen:.3g}: {why}")
        return chosen

    def optional(name: str, value: float | str, found: _Found) -> float | None:
        return None if value == "off" else number(name, value, found)

    nearest = size.reach, "so many of the nearest may show the same thing"
    criteria = Criteria(
        method=recipe.method,
        strategy=mining.strategy,
        similarity=mining.similarity,
        batch_threshold=number("batch_threshold", mining.batch_threshold, measured.threshold()),
        sparsity=optional("sparsity", mining.sparsity, measured.reached_by(_FALSE_MATCHES)),
        aggregate=mining.aggregate,
        choose=mining.choose,
        k=int(number("k", mining.k, measured.k())),
        memory_threshold=number("memory_threshold", mining.memory_threshold, measured.threshold()),
        floor=optional("memory_floor", mining.memory_floor, measured.floor()),
        repeats=mining.repeats,
        random_negatives=mining.random_negatives,
        memory_positives=mining.memory_positives,
        pool_negatives=mining.pool_negatives,
        ignore_above=optional("ignore_above", mining.ignore_above, measured.doubt()),
        ignore_nearest=int(number("ignore_nearest", mining.ignore_nearest, nearest)),
        margin=number("margin", recipe.loss.margin, measured.reached_by(_ACTIVE_NEGATIVES)),
        normalise=recipe.loss.normalise,
    )
    return Calibration(criteria, tuple(reasons))


_Found = tuple[float, str]  # a number, and why it is what it is


@dataclass(frozen=True)
class _Measured:
    """Numbers from the similarities of random pairs, sorted: for mining by cosines."""

    pairs: Tensor

    def reached_by(self, share: float) -> _Found:
        value = float(self.pairs[min(len(self.pairs) - 1, int(len(self.pairs) * (1 - share)))])
        return value, f"{share:.0%} of random pairs are more similar"

    def threshold(self) -> _Found:
        return self.reached_by(_FALSE_MATCHES)

    def floor(self) -> _Found:
        return self.reached_by(_FALSE_MATCHES)

    def doubt(self) -> _Found:
        return self.reached_by(_ACTIVE_NEGATIVES)

    def k(self) -> _Found:
        return 5, "the paper's"


@dataclass(frozen=True)
class _MeasuredByViews(_Measured):
    """Numbers from the images' own views: for mining by overlaps."""

    own: OwnViews
    size: int
    method: str

    def threshold(self) -> _Found:
        own = self.own
        return own.threshold, f"own views are {own.own:.2f} similar, random pairs {own.strangers:.2f}"

    def floor(self) -> _Found:
        if self.method == "D-anchor":
            return self.own.between(_LIKE_OWN_VIEW), "nearly as similar as an image and its own view"
        return _LIKE_OWN_VIEW * self.own.shared, f"own views share {self.own.shared:.0%} of their neighbours"

    def doubt(self) -> _Found:
        return _OVERLAP_DOUBT, "share of the neighbourhood in common"

    def k(self) -> _Found:
        return max(2, round(_OF_A_THING * self.size)), "half of the pictures of a thing"
