"""A round's settings, cut to the size of the collection."""

import dataclasses
import logging
import math

from insclr.errors import UserError
from insclr.mining.overlap import UNKNOWN, ThingSize
from insclr.recipe import RoundRecipe

logger = logging.getLogger(__name__)


def fit_to_collection(recipe: RoundRecipe, images: int, size: ThingSize = UNKNOWN) -> RoundRecipe:
    """Shrink the pool, the tuples, the steps and k where the collection is too small for them, saying so.

    An automatic pool has room for three times the pictures of a thing that hold together, and for all of them.
    """
    pool = min(max(100, 3 * size.core, size.reach), images - 1) if recipe.pool == "auto" else recipe.pool
    if pool > images - 1:
        pool = images - 1
        logger.warning("the pool shrinks to %d: there are %d images", pool, images)
    if recipe.neighbours >= pool:
        raise UserError(
            f"A tuple of an anchor and {recipe.neighbours} neighbours needs a pool larger than {recipe.neighbours}, "
            f"but {images} images give a pool of {pool}: add images, or --set rounds.neighbours={max(1, pool - 1)}."
        )
    most = max(min(8, images), images // 8)
    if recipe.tuples > most:
        recipe = dataclasses.replace(recipe, tuples=most)
        logger.warning("a batch has %d tuples: there are %d images", most, images)
    if recipe.epochs:
        steps = max(1, math.ceil(recipe.epochs * images / recipe.tuples))
        recipe = dataclasses.replace(recipe, steps=min(recipe.steps, steps))
    mining = recipe.mining
    if mining.k != "auto" and mining.k > pool:
        logger.warning("k shrinks to %d, the size of the pool", pool)
        mining = dataclasses.replace(mining, k=pool)
    return dataclasses.replace(recipe, pool=pool, mining=mining)
