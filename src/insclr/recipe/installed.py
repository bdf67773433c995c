"""Methods and recipes of all installed packages, found by their entry points."""

from functools import cache
from importlib import resources
from importlib.metadata import EntryPoint, entry_points
from importlib.resources.abc import Traversable
from typing import Any

from insclr.errors import UserError


@cache
def _entry_points(group: str) -> dict[str, EntryPoint]:
    found = {point.name: point for point in entry_points(group=group)}
    if not found:
        raise UserError(
            f"This installation of insclr has no entry points {group}: install the package again."
        )
    return found


def method_names() -> list[str]:
    """What `[rounds.method] name` may be."""
    return sorted(_entry_points("insclr.methods"))


def load_method(name: str) -> Any:
    """The class of a method. It is imported here and not before, because a search needs no method."""
    point = _entry_points("insclr.methods")[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"The method {name} ({point.value}) cannot be loaded: {error}.") from error


def recipe_files() -> dict[str, Traversable]:
    """The TOML files of all packages that bring recipes, by the recipe's name."""
    return {
        file.name.removesuffix(".toml"): file
        for point in _entry_points("insclr.recipes").values()
        for file in resources.files(point.value).iterdir()
        if file.name.endswith(".toml")
    }
