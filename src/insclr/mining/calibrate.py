"""Calibration without labels: the numbers a recipe leaves to the collection itself, each with its reason."""

from dataclasses import dataclass

import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.mining.criteria import Criteria
from insclr.mining.verdicts import own_view_threshold
from insclr.recipe import RoundRecipe

_PAIRS = 200_000
# Similarities decide: what a positive must beat is what so few random pairs reach.
_FALSE_MATCHES = 0.01
# A negative counts while it is among the most similar tenth of random pairs.
_ACTIVE_NEGATIVES = 0.10
# Overlaps decide: shares of the neighbourhood that the query set must find again, and that make a pair doubtful.
_OVERLAP_FLOOR = 0.8
_OVERLAP_DOUBT = 0.2


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
    recipe: RoundRecipe, descriptors: Tensor, augmented: Tensor | None = None, size: int = 0
) -> Calibration:
    """Replace every "auto" of a round by a number measured on unit descriptors (N, D).

    `augmented` are the descriptors of one augmented view an image, `size` the pictures a thing has: both are
    needed where overlaps decide.
    """
    mining, loss = recipe.mining, recipe.loss
    by_overlap = mining.similarity == "overlap"
    reasons: list[str] = []
    pairs = random_pairs(descriptors)

    def chosen(name: str, value: float, why: str) -> float:
        reasons.append(f"{name} = {value:.3g}: {why}")
        return value

    def reached_by(name: str, share: float) -> float:
        value = float(pairs[min(len(pairs) - 1, int(len(pairs) * (1 - share)))])
        return chosen(name, value, f"{share:.0%} of random pairs are more similar")

    def positive(name: str, value: float | str) -> float:
        if value != "auto":
            return float(value)
        if not by_overlap:
            return reached_by(name, _FALSE_MATCHES)
        if augmented is None:
            raise UserError(
                "Mining by overlap with an automatic threshold needs views: cached_views must be 1 or more."
            )
        return chosen(
            name,
            own_view_threshold(descriptors, augmented),
            "99% of the images are as similar to their own view",
        )

    def optional(name: str, value: float | str, overlap: float, share: float) -> float | None:
        if value == "off":
            return None
        if value != "auto":
            return float(value)
        if by_overlap:
            return chosen(name, overlap, "share of the neighbourhood in common")
        return reached_by(name, share)

    nearest = mining.ignore_nearest
    if nearest == "auto":
        nearest = int(max(10, min(50, 2 * size)))
        reasons.append(f"ignore_nearest = {nearest}: twice the pictures of a thing, within 10 and 50")
    criteria = Criteria(
        method=recipe.method,
        strategy=mining.strategy,
        similarity=mining.similarity,
        batch_threshold=positive("batch_threshold", mining.batch_threshold),
        sparsity=optional("sparsity", mining.sparsity, _OVERLAP_FLOOR, _FALSE_MATCHES),
        aggregate=mining.aggregate,
        choose=mining.choose,
        k=5 if mining.k == "auto" else mining.k,
        memory_threshold=positive("memory_threshold", mining.memory_threshold),
        floor=optional("memory_floor", mining.memory_floor, _OVERLAP_FLOOR, _FALSE_MATCHES),
        repeats=mining.repeats,
        random_negatives=mining.random_negatives,
        pool_negatives=mining.pool_negatives,
        ignore_above=optional("ignore_above", mining.ignore_above, _OVERLAP_DOUBT, _ACTIVE_NEGATIVES),
        ignore_nearest=int(nearest),
        margin=float(loss.margin) if loss.margin != "auto" else reached_by("margin", _ACTIVE_NEGATIVES),
        normalise=loss.normalise,
    )
    return Calibration(criteria, tuple(reasons))
