"""Commands whose flags are made from options, and the arguments that several commands share."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer

from insclr import progress
from insclr.cli import app
from insclr.options import Options

if TYPE_CHECKING:
    from insclr.data.images import ImageList

F = TypeVar("F", bound=Callable[..., None])

ModelName = Annotated[
    str, typer.Argument(help="Run folder, model file, or pretrained:NAME.", metavar="MODEL")
]
Images = Annotated[
    Path,
    typer.Argument(
        help="Folder of images, .txt list, or .csv/.parquet with a path column.", metavar="IMAGES"
    ),
]
StoreName = Annotated[str, typer.Argument(help="A store's folder, or a Milvus address.", metavar="STORE")]


def command(function: F) -> F:
    """Register a command; a parameter that is a class of options becomes one flag for each of its fields."""
    signature = inspect.signature(function)
    classes = {
        name: one.annotation
        for name, one in signature.parameters.items()
        if inspect.isclass(one.annotation) and issubclass(one.annotation, Options)
    }
    flags = [flag for options in classes.values() for flag in _flags(options)]

    def run(**given: Any) -> None:
        for name, options in classes.items():
            values = {flag.name: given.pop(flag.name) for flag in _flags(options)}
            given[name] = options(
                **{
                    field: tuple(value) if isinstance(value, list) else value
                    for field, value in values.items()
                }
            )
        function(**given)

    own = [
        one.replace(kind=one.KEYWORD_ONLY) for one in signature.parameters.values() if one.name not in classes
    ]
    run.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    run.__doc__ = function.__doc__
    app.command(function.__name__.replace("_", "-"))(run)
    return function


def _flags(options: type[Options]) -> list[inspect.Parameter]:
    """A parameter as typer reads it for every field with help, those of the class itself before inherited ones."""
    fields = {each.name: each for each in dataclasses.fields(options)}
    names = [name for one in options.__mro__ for name in inspect.get_annotations(one)]
    return [_flag(fields[name]) for name in dict.fromkeys(names) if "help" in fields[name].metadata]


def _flag(field: "dataclasses.Field[Any]") -> inspect.Parameter:
    flags = field.metadata["flags"]
    if field.default is False:
        flags = flags or (f"--{field.name.replace('_', '-')}",)  # no --no-... beside it
    kind, default = (list[str], []) if field.default == () else (field.type, field.default)
    choices = "|".join(filter(None, get_args(kind))) if get_origin(kind) is Literal else ""
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[
            kind,
            typer.Option(*flags, help=field.metadata["help"], metavar=f"<{choices}>" if choices else None),
        ],
    )


def list_given(images: Path) -> "ImageList":
    """The images that a command is given; files beside them that are not read are counted on the error output."""
    from insclr.data.formats import not_read_lines
    from insclr.data.images import list_images

    found = list_images(images)
    for line in not_read_lines(found.not_read):
        progress.say(line)
    return found
