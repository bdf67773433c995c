"""Recipes: every setting of a run, as checked tables and as TOML."""

from insclr.recipe.recipe import DescriptorRecipe, LossRecipe, NetworkRecipe, Recipe, RoundRecipe
from insclr.recipe.recipe_files import (
    from_table,
    load_recipe,
    recipe_names,
    recipe_schema,
    recipe_summaries,
    rename_old_keys,
    to_toml,
)
from insclr.recipe.tables import Auto, MethodSettings, Off, load_method, method_names, setting

__all__ = [
    "Auto",
    "DescriptorRecipe",
    "LossRecipe",
    "MethodSettings",
    "NetworkRecipe",
    "Off",
    "Recipe",
    "RoundRecipe",
    "from_table",
    "load_method",
    "load_recipe",
    "method_names",
    "recipe_names",
    "recipe_schema",
    "recipe_summaries",
    "rename_old_keys",
    "setting",
    "to_toml",
]
