"""A round's settings, cut to the size of the collection."""

import math

from insclr.recipe import RoundRecipe


def fit_to_collection(recipe: RoundRecipe, images: int) -> RoundRecipe:
    """Shrink the tuples and the steps where the collection is too small for them."""
    most = max(min(8, images), images // 8)
    if recipe.tuples > most:
        recipe = recipe.with_(tuples=most)
    if recipe.epochs:
        steps = max(1, math.ceil(recipe.epochs * images / recipe.tuples))
        recipe = recipe.with_(steps=min(recipe.steps, steps))
    return recipe
