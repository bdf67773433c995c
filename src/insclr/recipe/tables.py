"""The base of every table of a recipe, and the methods and recipes of installed packages."""

from functools import cache
from importlib import resources
from importlib.metadata import EntryPoint, entry_points
from importlib.resources.abc import Traversable
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from insclr.errors import UserError, require_torch

Auto = Literal["auto"]  # measured on the collection itself, without labels, when a round begins
Off = Literal["off"]


def setting(default: Any, doc: str, **limits: Any) -> Any:
    """A documented field: the text is printed as a comment in every recipe file."""
    return Field(default, description=doc, **limits)


class Table(BaseModel):
    """A table of settings. Values are never converted: a text is no number, a number is no truth value."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False
    )

    def with_(self, **changes: Any) -> Self:
        """The same settings with some changed; the new values are trusted."""
        return self.model_copy(update=changes)

    def unread(self) -> dict[str, str]:
        """Keys that nothing reads beside the other settings, each with the setting that is the reason."""
        return {}


class MethodSettings(Table):
    """What the settings of all methods have in common; those of a method stand beside its class."""

    own_loss: ClassVar[bool] = False  # the method has its own loss and reads no `loss` table
    views: ClassVar[int] = 1  # augmented views of an image in every step
    supervised: ClassVar[bool] = False  # the method learns from labels
    name: str

    @property
    def title(self) -> str:
        """The method, and its variant where it has several."""
        return f"{self.name} {getattr(self, 'variant', '')}".strip()


class StoredMethodSettings(MethodSettings):
    """The settings of a method that is not loaded, and need not be installed, as a stored recipe has them."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")


@cache
def find_entry_points(group: str) -> dict[str, EntryPoint]:
    """What installed packages bring to this group, by name."""
    found = {point.name: point for point in entry_points(group=group)}
    if not found:
        raise UserError(
            f"This installation of insclr has no entry points {group}: install the package again."
        )
    return found


def method_names() -> list[str]:
    """What `[rounds.method] name` may be."""
    return sorted(find_entry_points("insclr.methods"))


def load_method(name: str) -> Any:
    """The class of a method. It is imported here and not before, because a search needs no method."""
    require_torch("training is done")
    point = find_entry_points("insclr.methods")[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"The method {name} ({point.value}) cannot be loaded: {error}.") from error


def recipe_files() -> dict[str, Traversable]:
    """The TOML files of all packages that bring recipes, by the recipe's name."""
    return {
        file.name.removesuffix(".toml"): file
        for point in find_entry_points("insclr.recipes").values()
        for file in resources.files(point.value).iterdir()
        if file.name.endswith(".toml")
    }
