"""How the learning rate goes along a round."""

import math

from insclr.recipe import RoundRecipe


def rate_factor(recipe: RoundRecipe, step: int, steps: int) -> float:
    """The share of the base learning rate at `step` (from 0) of `steps`."""
    warm = min(1.0, (step + 1) / recipe.warmup) if recipe.warmup else 1.0
    if recipe.schedule == "step":
        return warm * 0.1 ** sum(step >= milestone for milestone in recipe.milestones)
    if recipe.schedule == "cosine":
        return warm * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
    return warm
