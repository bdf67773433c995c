"""A round's settings, cut to the size of the collection."""

import logging
import math

from insclr.recipe import RoundRecipe

logger = logging.getLogger(__name__)


def fit_to_collection(recipe: RoundRecipe, images: int) -> RoundRecipe:
    """Shrink the tuples and the steps where the collection is too small for them, saying so."""
    most = max(min(8, images), images // 8)
    if recipe.tuples > most:
        recipe = recipe.with_(tuples=most)
        logger.warning("a batch has %d tuples: there are %d images", most, images)
    if recipe.epochs:
        steps = max(1, math.ceil(recipe.epochs * images / recipe.tuples))
        recipe = recipe.with_(steps=min(recipe.steps, steps))
    return recipe
