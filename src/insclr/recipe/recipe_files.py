"""Recipes as TOML: named ones that come with the package, files, `extends`, `--set`, and the printed form.

A named recipe (`insclr recipes`) is one file that sets what differs from the defaults. Rounds are tables, or names of
rounds that `[round.NAME]` describes once. A user's recipe may extend another one; `--set key=value` changes single
keys; the run folder keeps the result as `recipe.toml`. A key that nothing reads is an error.
"""

import copy
import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import models_json_schema

from insclr.errors import UserError
from insclr.recipe.recipe import (
    RENAMED_NETWORK_KEYS,
    WITHOUT_METHODS,
    DescriptorRecipe,
    LossRecipe,
    NetworkRecipe,
    Recipe,
    RoundRecipe,
    nested_tables,
)
from insclr.recipe.tables import Table, load_method, method_names, recipe_files

_SIZES = ("descriptor.size", "plain_size", "augmented_size")
_REMOVED_KEYS = ("each_round", "of", "times")  # they repeated rounds in earlier versions
_TABLES: dict[str, type[Table]] = {
    "network": NetworkRecipe,
    "descriptor": DescriptorRecipe,
    "rounds": RoundRecipe,
    "loss": LossRecipe,
}


def recipe_names() -> list[str]:
    """The recipes of all installed packages."""
    return sorted(recipe_files())


def recipe_summaries() -> dict[str, str]:
    """One line about every recipe, by its name. No method is loaded for it."""
    return {name: str(_read(name).get("about", "")) for name in recipe_names()}


# Keys of the method `insclr` that are settings of `insclr-released` now.
_REMOVED_METHOD_KEYS = ("candidates", "accept_above", "ignore_above", "bank_from")


def load_recipe(name: str | Path | Recipe, changes: tuple[str, ...] = (), *, stored: bool = False) -> Recipe:
    """A named recipe, a TOML file or a recipe at hand, with `key=value` changes such as `rounds.0.lr=1e-5` applied.

    `rounds.lr=...` without a number changes every round. Keys of the file that a change leaves unread are dropped
    (`rounds.method.variant=A` makes k meaningless); a change that nothing reads is an error. A `stored` recipe is
    one that this program wrote: it may have key names of an earlier version.
    """
    try:
        table = tomllib.loads(to_toml(name)) if isinstance(name, Recipe) else _write_out_rounds(_read(name))
        table = rename_old_keys(table) if stored else table
        recipe = from_table(table)  # the file must be valid without the changes
        if not changes:
            return recipe
        changed = {key for change in changes for key in _apply(table, change)}
        if "large_size" not in changed and any(key.endswith(_SIZES) for key in changed):
            table["large_size"] = 0  # the user's size is used whatever the photos are like
        _drop_unread(table, changed)
        return from_table(table)
    except RecursionError:
        raise UserError(f"The recipe {name} is nested too deeply to be one.") from None


def rename_old_keys(table: Mapping[str, Any]) -> dict[str, Any]:
    """A stored recipe with today's key names, and without keys that the paper's method no longer has."""
    table = dict(table)
    if isinstance(network := table.get("network"), Mapping):
        table["network"] = {RENAMED_NETWORK_KEYS.get(key, key): value for key, value in network.items()}
    if isinstance(rounds := table.get("rounds"), list):
        table["rounds"] = [_drop_removed_keys(each) for each in rounds]
    return table


def _drop_removed_keys(a_round: Any) -> Any:
    method = a_round.get("method") if isinstance(a_round, Mapping) else None
    if not isinstance(method, Mapping) or method.get("name") != "insclr":
        return a_round
    kept = {key: value for key, value in method.items() if key not in _REMOVED_METHOD_KEYS}
    return {**a_round, "method": kept}


def from_table(table: Mapping[str, Any], *, load_methods: bool = True) -> Recipe:
    """A checked recipe from parsed TOML; every key must be known, possible and read by something.

    Without `load_methods`, the tables of methods stay unchecked: then neither torch nor the methods are imported.
    """
    recipe = _validate(table, load_methods)
    for where, part in nested_tables(recipe):
        for key, reason in part.unread().items():
            if key in part.model_fields_set:
                raise UserError(f"Recipe: nothing reads {where}{key} with {reason}. {_read_here(part)}")
    return recipe


def recipe_schema() -> dict[str, Any]:
    """The JSON schema of a recipe file, with the settings of every installed method."""
    settings = [load_method(name).settings_class for name in method_names()]
    references, schema = models_json_schema([(kind, "validation") for kind in (Recipe, *settings)])
    definitions = schema["$defs"]
    for kind in settings:
        definitions[kind.__name__]["required"] = ["name"]
    method = {"oneOf": [references[kind, "validation"] for kind in settings]}
    definitions["RoundRecipe"]["properties"]["method"] |= method
    recipe = definitions.pop("Recipe")
    tables = recipe["properties"]
    tables["extends"] = {"type": "string", "description": "a recipe whose keys are taken over"}
    tables["round"] = {
        "type": "object",
        "description": "rounds by name; `extends` takes over another one's keys",
    }
    tables["rounds"]["items"] = {"anyOf": [tables["rounds"]["items"], {"type": "string"}]}
    return {**recipe, "$defs": definitions}


def to_toml(recipe: Recipe, comments: bool = False) -> str:
    """The recipe as TOML, each key that is read once; with `comments`, what each does beside it."""
    lines: list[str] = []
    _write_table(lines, recipe, "", comments)
    return "\n".join(lines).strip() + "\n"


def _read(name: str | Path, extended_by: tuple[str, ...] = ()) -> dict[str, Any]:
    """The table of a recipe on top of the one that it extends: its own keys win, its rounds replace all others."""
    if str(name) in extended_by:
        raise UserError(f"The recipe {name} extends itself: {' -> '.join((*extended_by, str(name)))}.")
    table = _parse(name)
    parent = table.pop("extends", None)
    if parent is None:
        return table
    if not isinstance(parent, str):
        raise UserError(f"Recipe: extends = {parent!r} names no recipe; it takes a text.")
    base = _read(parent, (*extended_by, str(name)))
    for key, value in table.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        base[key] = base[key] | value if both else value
    return base


def _write_out_rounds(table: dict[str, Any]) -> dict[str, Any]:
    """The table with a round of its own for every name in `rounds`."""
    named = table.pop("round", {})
    if isinstance(rounds := table.get("rounds"), list):
        table["rounds"] = [_named_round(one, named) if isinstance(one, str) else one for one in rounds]
    return table


def _named_round(name: str, named: Any, extended_by: tuple[str, ...] = ()) -> dict[str, Any]:
    """The keys of `[round.NAME]` on top of those of the round that it extends."""
    found = named.get(name) if isinstance(named, dict) else None
    if not isinstance(found, dict) or name in extended_by:
        raise UserError(f"Recipe: there is no table [round.{name}], or it extends itself.")
    own = copy.deepcopy(found)
    parent = own.pop("extends", None)
    return own if parent is None else _named_round(str(parent), named, (*extended_by, name)) | own


def _parse(name: str | Path) -> dict[str, Any]:
    """The keys of a named recipe or a TOML file as they are written there."""
    files = recipe_files()
    if str(name) in files:
        text = files[str(name)].read_text()
    elif Path(name).is_file():
        try:
            text = Path(name).read_text()
        except UnicodeDecodeError as error:
            raise UserError(f"The recipe {name} is not UTF-8 text (byte {error.start}).") from error
    else:
        near = difflib.get_close_matches(str(name), files, 1)
        help_ = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(sorted(files))}."
        raise UserError(f"There is no recipe and no file {str(name)!r}. {help_}")
    try:
        return tomllib.loads(text)
    except ValueError as error:  # a number of thousands of digits is one too, and no TOMLDecodeError
        raise UserError(f"The recipe {name} is not valid TOML: {error}.") from error


def _apply(table: dict[str, Any], change: str) -> list[str]:
    """Apply a change; give back every key that it set, written out: rounds.0.lr, rounds.1.lr, ..."""
    key, equals, text = change.partition("=")
    if not equals:
        raise UserError(f"--set {change}: write it as key=value, for example --set network.dim=256.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        value = text  # a bare word
    *path, last = key.strip().split(".")
    places: list[tuple[str, dict[str, Any]]] = [("", table)]
    if path and path[0] == "rounds":
        rounds = table.setdefault("rounds", [{}])
        path = path[1:]
        if path and path[0].isdigit():
            if int(path[0]) >= len(rounds):
                raise UserError(f"--set {change}: this recipe has {len(rounds)} rounds, counted from 0.")
            places, path = [(f"rounds.{path[0]}.", rounds[int(path[0])])], path[1:]
        else:
            places = [(f"rounds.{i}.", each) for i, each in enumerate(rounds)]
    changed = []
    for where, place in places:
        for step in path:
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                raise UserError(f"--set {change}: {where}{step} is a single value, not a table.")
            where += f"{step}."
        place[last] = value
        changed.append(f"{where}{last}")
    return changed


def _drop_unread(table: dict[str, Any], changed: set[str]) -> None:
    """Remove keys of the file that nothing reads any more; keep `changed` ones, so that they are an error."""
    for where, part in nested_tables(_validate(table)):
        place: Any = table
        for step in where.split(".")[:-1]:
            place = place[int(step)] if isinstance(place, list) else place.get(step, {})
        for key in part.unread():
            full = f"{where}{key}"
            if not any(one == full or one.startswith(f"{full}.") for one in changed):
                place.pop(key, None)


def _validate(table: Mapping[str, Any], load_methods: bool = True) -> Recipe:
    try:
        # Through JSON, where a list is a tuple and yet nothing else is converted.
        text = json.dumps(table, default=str)
        return Recipe.model_validate_json(text, context=None if load_methods else WITHOUT_METHODS)
    except ValidationError as error:
        raise UserError(_explain(error, table)) from error


def _explain(error: ValidationError, table: Mapping[str, Any]) -> str:
    """The first fault of a recipe as a sentence with its key."""
    fault = error.errors()[0]
    key, kind = _locate(fault["loc"], table)
    if fault["type"] == "extra_forbidden":
        last = key.rpartition(".")[2]
        if kind is NetworkRecipe and last in RENAMED_NETWORK_KEYS:
            return f"Recipe: {key} is now called network.{RENAMED_NETWORK_KEYS[last]}. Rename the key."
        if last in _REMOVED_KEYS:
            return f"Recipe: {key} is no longer read. Repeat the name of a [round.NAME] in rounds."
        return f"Recipe: unknown key {key}. {_read_here(kind)}"
    if fault["type"] == "value_error":
        return f"Recipe: {key + ': ' if key else ''}{fault['ctx']['error']}."
    # A key that takes several kinds of value has a fault for each of them.
    alike = [one for one in error.errors() if _locate(one["loc"], table)[0] == key]
    takes = " or ".join(dict.fromkeys(_takes(one["msg"]) for one in alike))
    return f"Recipe: {key} = {fault['input']!r} is not possible; it takes {takes}."


def _locate(location: tuple[int | str, ...], table: Any) -> tuple[str, type[Table]]:
    """The dotted key that a fault is about, and the class of the table that holds it."""
    kind: type[Table] = Recipe
    steps: list[str] = []
    for step in location:
        if not isinstance(table, dict | list):
            break  # the rest names a type that was tried
        steps.append(str(step))
        if isinstance(step, str) and step in kind.model_fields and step in _TABLES:
            kind = _TABLES[step]
        table = table[int(step)] if isinstance(table, list) else table.get(step)
        if step == "method" and isinstance(table, dict) and table.get("name") in method_names():
            kind = load_method(table["name"]).settings_class
    return ".".join(steps), kind


def _takes(message: str) -> str:
    message = message.removeprefix("Input should be ").replace("a valid integer", "a whole number")
    message = (
        message.replace("a valid ", "a ")
        .replace("an object", "a table")
        .replace("Tuple should have", "a list of")
    )
    return f"a number {message}" if message.startswith(("greater", "less")) else message


def _read_here(table: Table | type[Table]) -> str:
    unread = table.unread() if isinstance(table, Table) else {}
    kind = type(table) if isinstance(table, Table) else table
    return f"Read here: {', '.join(key for key in kind.model_fields if key not in unread)}."


def _write_table(lines: list[str], part: Table, prefix: str, comments: bool) -> None:
    nested: list[tuple[str, Any]] = []
    unread = part.unread()
    for key, value in part:
        if key in unread:
            continue
        if isinstance(value, Table) or key == "rounds":
            nested.append((f"{prefix}{key}", value))
        else:
            line = f"{key} = {_toml_value(value)}"
            field = type(part).model_fields.get(key)
            lines.append(f"{line:<36}# {field.description}" if comments and field else line)
    for name, value in nested:
        for one in value if isinstance(value, tuple) else (value,):
            lines.append(f"\n[[{name}]]" if isinstance(value, tuple) else f"\n[{name}]")
            _write_table(lines, one, f"{name}.", comments)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return repr(value)
