"""Calibration without labels: the numbers a recipe leaves to the collection itself."""

from dataclasses import dataclass

import torch
from torch import Tensor

from insclr.mining.criteria import Criteria
from insclr.recipe import RoundRecipe

_PAIRS = 200_000
# Of two random pictures, so many show the same thing or look as if they did: what a positive must beat.
FALSE_MATCHES = 0.01
MARGIN_QUANTILE = 0.90


@dataclass(frozen=True)
class Calibration:
    """The criteria of a round, and for the report why each calibrated number is what it is."""

    criteria: Criteria
    reasons: tuple[str, ...]


def random_pairs(descriptors: Tensor, seed: int = 0) -> Tensor:
    """Similarities of random pairs of different images, sorted ascending: what "unrelated" looks like."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(len(descriptors), (_PAIRS,), generator=generator)
    second = (first + 1 + torch.randint(len(descriptors) - 1, (_PAIRS,), generator=generator)) % len(
        descriptors
    )
    blocks = [
        (descriptors[a].float() * descriptors[b].float()).sum(1)
        for a, b in zip(first.split(10_000), second.split(10_000), strict=True)
    ]
    return torch.cat(blocks).sort().values


def calibrate(recipe: RoundRecipe, descriptors: Tensor) -> Calibration:
    """Replace every "auto" of a round's recipe by a number measured on the unit descriptors (N, D)."""
    mining, loss = recipe.mining, recipe.loss
    reasons: list[str] = []
    pairs = random_pairs(descriptors)

    def exceeded_by(share: float) -> float:
        return float(pairs[min(len(pairs) - 1, int(len(pairs) * (1 - share)))])

    def number(value: float | str, name: str, share: float) -> float:
        if value != "auto":
            return float(value)
        chosen = exceeded_by(share)
        reasons.append(f"{name} = {chosen:.3f}: {share:.1%} of random pairs are more similar")
        return chosen

    def optional(value: float | str, name: str, share: float) -> float | None:
        return None if value == "off" else number(value, name, share)

    k = 5 if mining.k == "auto" else mining.k
    criteria = Criteria(
        method=recipe.method,
        strategy=mining.strategy,
        batch_threshold=number(mining.batch_threshold, "batch_threshold", FALSE_MATCHES),
        sparsity=optional(mining.sparsity, "sparsity", FALSE_MATCHES),
        aggregate=mining.aggregate,
        choose=mining.choose,
        k=k,
        memory_threshold=number(mining.memory_threshold, "memory_threshold", FALSE_MATCHES),
        floor=optional(mining.memory_floor, "memory_floor", FALSE_MATCHES),
        repeats=mining.repeats,
        random_negatives=mining.random_negatives,
        ignore_above=optional(mining.ignore_above, "ignore_above", 1 - MARGIN_QUANTILE),
        ignore_nearest=mining.ignore_nearest,
        margin=number(loss.margin, "margin", 1 - MARGIN_QUANTILE),
        normalise=loss.normalise,
    )
    return Calibration(criteria, tuple(reasons))
