"""Learning rates by step."""

import pytest

from insclr.recipe import RoundRecipe, load_recipe
from insclr.training.optimizer import rate_factor


def test_the_papers_first_round_divides_by_ten_at_30k_and_45k() -> None:
    recipe = load_recipe("paper-gldv2").rounds[0]
    factors = [
        rate_factor(recipe, step, recipe.steps) for step in (0, 29_999, 30_000, 44_999, 45_000, 59_999)
    ]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_cosine_falls_from_one_through_a_half_to_nothing() -> None:
    recipe = RoundRecipe(schedule="cosine")
    assert [rate_factor(recipe, step, 100) for step in (0, 50, 100)] == pytest.approx([1.0, 0.5, 0.0])


def test_warm_up_rises_in_equal_steps() -> None:
    recipe = RoundRecipe(schedule="constant", warmup=4)
    assert [rate_factor(recipe, step, 100) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
