"""How the learning rate goes along a round, and how rounds share the time."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from insclr.recipe import Recipe, RoundRecipe


def rate_factor(recipe: RoundRecipe, step: int, steps: int) -> float:
    """The share of the base learning rate at `step` (from 0) of `steps`."""
    warm = min(1.0, (step + 1) / recipe.warmup) if recipe.warmup else 1.0
    if recipe.schedule == "step":
        return warm * 0.1 ** sum(step >= milestone for milestone in recipe.milestones)
    if recipe.schedule == "cosine":
        return warm * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
    return warm


def seconds_for_round(recipe: Recipe, index: int, records: Iterable[Mapping[str, Any]]) -> float:
    """Seconds that round `index` may take: an even share, among the rounds left, of what is left of the minutes.

    0 = no limit. `records` are the run's log, which tells what the rounds before took.
    """
    timed = [i for i, each in enumerate(recipe.rounds) if each.train != "fc"]
    if not recipe.minutes or index not in timed:
        return 0.0
    before = {i + 1 for i in timed if i < index}
    ends = (one for one in records if one.get("event") == "end" and one["round"] in before)
    left = 60 * recipe.minutes - sum(float(one.get("seconds") or 0) for one in ends)
    return max(1.0, left / sum(i >= index for i in timed))
