"""The base of every table of a recipe: frozen, typed, documented fields; unknown keys are refused."""

from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

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
