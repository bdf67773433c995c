"""Recipes: every setting of a run, as checked tables and as TOML."""

from insclr.recipe.files import from_table, load_recipe, recipe_names, rename_old_keys, to_toml
from insclr.recipe.methods import CalibratedSettings, InsclrSettings, MethodSettings
from insclr.recipe.recipe import DescriptorRecipe, LossRecipe, NetworkRecipe, Recipe, RoundRecipe

__all__ = [
    "CalibratedSettings",
    "DescriptorRecipe",
    "InsclrSettings",
    "LossRecipe",
    "MethodSettings",
    "NetworkRecipe",
    "Recipe",
    "RoundRecipe",
    "from_table",
    "load_recipe",
    "recipe_names",
    "rename_old_keys",
    "to_toml",
]
