"""Recipes fitted to small collections."""

from insclr.recipe import RoundRecipe
from insclr.training.plan import fit_to_collection


def test_a_small_collection_shrinks_the_batch() -> None:
    assert fit_to_collection(RoundRecipe(), images=5).tuples == 5


def test_steps_follow_the_number_of_images_up_to_a_limit() -> None:
    recipe = RoundRecipe(steps=400, epochs=5.0, tuples=64)
    assert fit_to_collection(recipe, images=2560).steps == 200
    assert fit_to_collection(recipe, images=100_000).steps == 400
    assert fit_to_collection(RoundRecipe(steps=400), images=600).steps == 400
