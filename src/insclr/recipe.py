"""Every knob of a run, written once: frozen dataclasses, read from and written to TOML.

The defaults are the paper's numbers. A named recipe (`insclr recipes`) is a TOML file that changes some of
them, `--set key=value` changes single ones, and the run folder keeps the result as `recipe.toml`.
"""

import dataclasses
import hashlib
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from insclr.errors import UserError

Auto = Literal["auto"]  # calibrated on the collection itself, without labels, at the start of each round
Off = Literal["off"]


def knob(default: Any, doc: str) -> Any:
    """A documented field: the text is printed as a comment in every recipe file."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True)
class NetworkRecipe:
    """The descriptor network."""

    backbone: str = knob("efficientnet_lite0", "a timm model name, or the embedded efficientnet_lite0")
    weights: str = knob("", "a file with the backbone's weights; empty = embedded, or timm's hub")
    pooling: Literal["gem", "gem-learned", "mac", "spoc", "rmac", "cls"] = knob(
        "gem", "feature map to vector"
    )
    gem_p: float = knob(3.0, "GeM's exponent")
    dim: int = knob(512, "length of the descriptor (C_e); 0 = pooled features, no fully connected layer")
    start: Literal["random", "pca", "views"] = knob(
        "random", "the fc's start: random; pca; views = a whitening of what views and mined pairs change"
    )
    start_power: float = knob(0.25, "pca start: 0 = centred rotation, 0.5 = full whitening")
    keep_start: float = knob(0.0, "share of its start that the trained fc is mixed with in the end; 0 = none")


@dataclass(frozen=True)
class DescriptorRecipe:
    """How descriptors are extracted; a trained model remembers it."""

    size: int = knob(1024, "side of the image fed to the network, in pixels")
    fit: Literal["longest", "square"] = knob("longest", "scale the longest side, or squash to a square")
    scales: tuple[float, ...] = knob(
        (2**0.5, 1.0, 2**-0.5), "multiples of size; unit descriptors are averaged"
    )
    zoom: float = knob(0.0, "a second, mirrored look at this share of each side, about the centre; 0 = none")


@dataclass(frozen=True)
class MiningRecipe:
    """Which images count as pictures of the anchor's thing."""

    strategy: Literal["nn", "augmented", "plain", "relative", "multiscale"] = knob(
        "plain", "positives in the mini-batch: all neighbours (nn), or by which similarity"
    )
    similarity: Literal["cosine", "overlap"] = knob(
        "cosine", "what memory mining decides by, in every step; overlap = of neighbourhoods, once a round"
    )
    batch_threshold: float | Auto = knob(0.65, "T_b: similarity above which a tuple member is positive")
    scales: tuple[float, ...] = knob((2**0.5, 1.0, 2**-0.5), "strategy multiscale: sizes of the plain views")
    sparsity: float | Auto | Off = knob("off", "phi: similarities to query-set members below it are dropped")
    aggregate: Literal["mean", "max"] = knob("mean", "psi: over the query set")
    choose: Literal["topk", "threshold"] = knob("topk", "how candidates are chosen by their set similarity")
    k: int | Auto = knob(5, "topk: candidates added per repeat")
    memory_threshold: float | Auto = knob(0.6, "T_m, for choose = threshold")
    memory_floor: float | Auto | Off = knob("off", "topk: least set similarity of a chosen candidate")
    repeats: int = knob(4, "R: how often the query set grows")
    random_negatives: int = knob(100_000, "methods B and C: random bank rows used as negatives")
    ignore_above: float | Auto | Off = knob(
        "off", "unchosen candidates more similar to the anchor than this are neither positive nor negative"
    )
    memory_positives: bool = knob(
        True, "mined candidates stand in the loss as bank rows; false: only as members drawn from them"
    )
    pool_negatives: bool = knob(True, "candidates that are not positive are negatives, from the bank")
    ignore_nearest: int | Auto = knob(
        0, "an anchor's so many nearest images are never its negatives in the batch"
    )


@dataclass(frozen=True)
class LossRecipe:
    """The contrastive loss."""

    margin: float | Auto = knob(0.4, "a negative counts only while its similarity is above this")
    normalise: Literal["sum", "mean"] = knob("sum", "sum (paper), or the mean of positives and of negatives")


@dataclass(frozen=True)
class RoundRecipe:
    """One round: its pool is built by the network as it stands when the round begins."""

    method: Literal["A", "B", "C", "D-anchor", "D"] = knob(
        "D", "A nn; B nn + bank negatives; C selection + bank negatives; D-anchor, D memory mining"
    )
    train: Literal["all", "late", "fc"] = knob(
        "all", "all layers on images; the late layers on cached maps; the fc alone on cached pooled features"
    )
    refine: bool = knob(False, "train a square layer on top of the fc as it stands, and fold both into one")
    steps: int = knob(40_000, "iterations; with a time budget, at most so many")
    epochs: float = knob(0.0, "at most so many times every image is an anchor; 0 = no limit")
    tuples: int = knob(16, "training tuples in a batch")
    neighbours: int = knob(3, "N_b: neighbours of the anchor in a tuple")
    members: Literal["nearest", "mined"] = knob(
        "nearest", "a tuple's neighbours: the top-ranked, or drawn from the mined (similarity = overlap)"
    )
    pool: int | Auto = knob(500, "P: size of the candidate pool")
    augmented_size: int = knob(224, "side of the augmented view, in pixels")
    plain_size: int = knob(512, "side of the plain view, in pixels")
    cached_views: int = knob(3, "train = fc or late: augmented views cached per image")
    refresh_bank: int = knob(0, "train = fc: recompute the whole banks every so many steps; 0 = never")
    lr: float = knob(1e-4, "learning rate of the backbone")
    fc_lr: float = knob(0.0, "learning rate of the fully connected layer; 0 = the backbone's")
    schedule: Literal["step", "cosine", "constant"] = knob("step", "how the learning rate falls")
    milestones: tuple[int, ...] = knob((), "schedule step: divide by ten at these iterations")
    warmup: int = knob(0, "iterations of linear warm-up")
    weight_decay: float = knob(1e-4, "of Adam")
    clip: float = knob(0.0, "largest norm of the gradient; 0 = off")
    batch_norm: Literal["frozen", "live"] = knob("live", "statistics of batch-norm layers")
    precision: Literal["fp32", "bf16", "fp16"] = knob("fp32", "autocast of the network")
    bank_dtype: Literal["fp32", "fp16"] = knob("fp32", "precision of the memory banks")
    average: float = knob(0.0, "decay of a running mean of the weights that the round ends in; 0 = off")
    mining: MiningRecipe = field(default_factory=MiningRecipe)
    loss: LossRecipe = field(default_factory=LossRecipe)


@dataclass(frozen=True)
class Recipe:
    """A whole run."""

    name: str = knob("custom", "what the recipe is called")
    about: str = knob("", "one line for people")
    seed: int = knob(0, "one seed gives one run")
    minutes: float = knob(0.0, "time budget of the rounds that train more than the fc; 0 = none")
    guard: bool = knob(False, "watch the run without labels; step back where it gets worse")
    workers: int = knob(-1, "processes that decode images; -1 = by the number of cores")
    checkpoint_every: int = knob(500, "iterations between checkpoints")
    keep_checkpoints: int = knob(2, "the last so many checkpoints of a round are kept")
    network: NetworkRecipe = field(default_factory=NetworkRecipe)
    descriptor: DescriptorRecipe = field(default_factory=DescriptorRecipe)
    rounds: tuple[RoundRecipe, ...] = field(default_factory=lambda: (RoundRecipe(),))

    def fingerprint(self) -> str:
        """A short hash of everything but the name and its description."""
        plain = dataclasses.replace(self, name="", about="")
        return hashlib.sha256(to_toml(plain).encode()).hexdigest()[:12]


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    folder = resources.files("insclr") / "recipes"
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def load_recipe(name: str | Path, changes: tuple[str, ...] = ()) -> Recipe:
    """A named recipe or a TOML file, with `key=value` changes such as `rounds.0.lr=1e-5` applied.

    `rounds.lr=...` without a number changes every round. Unknown keys are errors.
    """
    if str(name) in recipe_names():
        text = (resources.files("insclr") / "recipes" / f"{name}.toml").read_text()
    elif Path(name).is_file():
        text = Path(name).read_text()
    else:
        raise UserError(
            f"There is no recipe {str(name)!r}, neither a file nor one of: {', '.join(recipe_names())}."
        )
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"The recipe {name} is not valid TOML: {error}.") from error
    for change in changes:
        _apply(table, change)
    return from_table(table)


def from_table(table: Mapping[str, Any]) -> Recipe:
    """Build a checked recipe from parsed TOML."""
    recipe = _build(Recipe, table, "")
    _check(recipe)
    return recipe  # type: ignore[no-any-return]


def to_toml(recipe: Recipe, comments: bool = False) -> str:
    """The recipe as TOML, each knob once; with `comments`, what each knob does beside it."""
    lines: list[str] = []
    _write_table(lines, recipe, "", comments)
    return "\n".join(lines).strip() + "\n"


def _write_table(lines: list[str], part: Any, prefix: str, comments: bool) -> None:
    nested = []
    for entry in dataclasses.fields(part):
        value = getattr(part, entry.name)
        if dataclasses.is_dataclass(value) or entry.name == "rounds":
            nested.append((f"{prefix}{entry.name}", value))
            continue
        line = f"{entry.name} = {_toml_value(value)}"
        lines.append(f"{line:<36}# {entry.metadata['doc']}" if comments else line)
    for name, value in nested:
        many = value if isinstance(value, tuple) else (value,)
        for one in many:
            lines.append(f"\n[[{name}]]" if isinstance(value, tuple) else f"\n[{name}]")
            _write_table(lines, one, f"{name}.", comments)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return repr(value)


def _apply(table: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals:
        raise UserError(f"--set {change}: write it as key=value, for example --set network.dim=256.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word
    *path, last = key.strip().split(".")
    places: list[dict[str, Any]] = [table]
    if path and path[0] == "rounds":
        rounds = table.setdefault("rounds", [{}])
        path = path[1:]
        if path and path[0].isdigit():
            if int(path[0]) >= len(rounds):
                raise UserError(f"--set {change}: this recipe has {len(rounds)} rounds, counted from 0.")
            places, path = [rounds[int(path[0])]], path[1:]
        else:
            places = rounds
    for place in places:
        for step in path:
            place = place.setdefault(step, {})
        place[last] = value


def _build(kind: Any, table: Any, where: str) -> Any:
    if not isinstance(table, Mapping):
        raise UserError(f"Recipe: {where.rstrip('.')} must be a table of settings.")
    hints = get_type_hints(kind)
    for key in table:
        if key not in hints:
            raise UserError(f"Recipe: unknown key {where}{key}. Known here: {', '.join(hints)}.")
    values = {}
    for key, value in table.items():
        hint = hints[key]
        if key == "rounds":
            if not isinstance(value, list) or not value:
                raise UserError("Recipe: rounds must be a list of at least one [[rounds]] table.")
            values[key] = tuple(
                each for i, one in enumerate(value) for each in _build_rounds(one, f"rounds.{i}.")
            )
        elif dataclasses.is_dataclass(hint):
            values[key] = _build(hint, value, f"{where}{key}.")
        else:
            values[key] = _convert(hint, value, f"{where}{key}")
    return kind(**values)


def _build_rounds(table: Any, where: str) -> list[RoundRecipe]:
    """A [[rounds]] table, as many times as its `times` says: a file need not repeat itself."""
    times = 1
    if isinstance(table, Mapping) and "times" in table:
        times = _convert(int, table["times"], f"{where}times")
        table = {key: value for key, value in table.items() if key != "times"}
    return [_build(RoundRecipe, table, where)] * max(1, times)


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        for option in get_args(hint):
            try:
                return _convert(option, value, where)
            except UserError:
                continue
    elif origin is Literal:
        if value in get_args(hint):
            return value
    elif origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(_convert(get_args(hint)[0], item, where) for item in value)
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise UserError(f"Recipe: {where} = {value!r} is not possible; it takes {_describe(hint)}.")


def _describe(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Literal:
        return " or ".join(f'"{option}"' for option in get_args(hint))
    if origin is tuple:
        return f"a list, each {_describe(get_args(hint)[0])}"
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in get_args(hint))
    names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    return names[hint]


def _check(recipe: Recipe) -> None:
    """Refuse numbers that cannot work, with the key and what to change."""

    def need(fine: bool, key: str, rule: str) -> None:
        if not fine:
            raise UserError(f"Recipe: {key} must be {rule}.")

    need(recipe.network.dim >= 0, "network.dim", "0 or more")
    need(0 <= recipe.network.keep_start <= 1, "network.keep_start", "a number from 0 to 1")
    need(
        recipe.network.start != "random" or recipe.network.keep_start == 0,
        "network.keep_start",
        "0 where the fc starts at random: there is nothing in such a start to keep",
    )
    need(recipe.descriptor.size >= 16, "descriptor.size", "at least 16 pixels")
    need(bool(recipe.descriptor.scales), "descriptor.scales", "a list of at least one scale")
    need(all(scale > 0 for scale in recipe.descriptor.scales), "descriptor.scales", "positive numbers")
    need(0 <= recipe.descriptor.zoom <= 1, "descriptor.zoom", "a number from 0 to 1")
    need(recipe.keep_checkpoints >= 1, "keep_checkpoints", "at least 1")
    need(recipe.checkpoint_every >= 1, "checkpoint_every", "at least 1")
    for i, each in enumerate(recipe.rounds):
        where = f"rounds.{i}."
        for key in ("steps", "tuples", "neighbours", "cached_views"):
            need(getattr(each, key) >= 1, where + key, "at least 1")
        for key in ("augmented_size", "plain_size"):
            need(getattr(each, key) >= 16, where + key, "at least 16 pixels")
        need(each.lr > 0 and each.fc_lr >= 0, where + "lr", "positive")
        need(0 <= each.average < 1, where + "average", "from 0 to below 1")
        need(each.mining.repeats >= 1, where + "mining.repeats", "at least 1")
        if each.pool != "auto":
            need(each.pool > each.neighbours, where + "pool", f"larger than neighbours ({each.neighbours})")
        need(
            each.members == "nearest" or each.mining.similarity == "overlap",
            where + "mining.similarity",
            f"overlap where {where}members = mined",
        )
        if each.train == "fc":
            need(recipe.network.dim > 0, "network.dim", f"positive: {where}train = fc has nothing to train")
