"""What can be asked of each job: the command line and the Python functions are both made from these classes.

A field is written once, with its default and its help. A field without help is no flag of the command.
"""

import dataclasses
import difflib
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args, get_origin

from insclr.errors import UserError

SHARD_HELP = "2/4: do the second of four shares; torchrun splits by itself."

F = TypeVar("F", bound=Callable[..., Any])

MAX_TOP = 1000
Reranker = Literal["", "diffusion"]
Local = Literal["auto", "on", "off"]


def option(default: Any, help: str, *flags: str) -> Any:
    """A field that is a flag of the command too; `flags` are its names where they are not the field's."""
    return field(default=default, metadata={"help": help, "flags": flags})


@dataclass(frozen=True, kw_only=True)
class Options:
    """The base of all options."""

    def __post_init__(self) -> None:
        """UserError where a value is not among its choices; a text is taken as a path where one is wanted."""
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str) and each.type == Path | None:
                object.__setattr__(self, each.name, Path(value))
            elif get_origin(each.type) is Literal and value not in get_args(each.type):
                choices = ", ".join(filter(None, get_args(each.type)))
                raise UserError(f"{each.name} cannot be {value!r}: choose one of {choices}.")

    def change(self, changes: dict[str, Any]) -> Self:
        """The options with some fields changed; TypeError for a field that they do not have."""
        known = [each.name for each in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                meant = f" Did you mean {near[0]}?" if near else f" There are: {', '.join(known)}."
                raise TypeError(f"There is no option {name}.{meant}")
        return dataclasses.replace(self, **changes)


def show_options(function: F) -> F:
    """Have `help` show the fields of a function's options instead of `options` and its other keywords."""
    signature = inspect.signature(function)
    parameters = dict(signature.parameters)
    options: Options = parameters.pop("options").default
    kept = [one for one in parameters.values() if one.kind is not one.VAR_KEYWORD]
    names = {one.name for one in kept}
    shown = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
        )
        for each in dataclasses.fields(options)
        if each.name not in names
    ]
    function.__signature__ = signature.replace(parameters=[*kept, *shown])  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """What a network runs on."""

    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps.")


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(DeviceOptions):
    """What describes images."""

    engine: str = option(
        "auto", "auto (OpenVINO, else ONNX Runtime; torch on a GPU), torch, onnx or openvino."
    )


@dataclass(frozen=True, kw_only=True)
class WeightsOptions(Options):
    """The weights of a pretrained model."""

    weights: str = option("", "With pretrained:NAME: file with the backbone's weights.")


@dataclass(frozen=True, kw_only=True)
class SizeOptions(Options):
    """The images that a network sees: what is not given is the protocol's, without one the model's own."""

    protocol: str = ""
    size: int = option(0, "Side of the image in pixels; 0 = the protocol's or the model's own.")
    fit: str = option("", "longest, square or thumbnail; empty = the protocol's or the model's own.")
    scales: str = option(
        "", "Multiples of the size, e.g. 1.414,1,0.707; empty = the protocol's or the model's own."
    )


@dataclass(frozen=True, kw_only=True)
class LoadOptions(SizeOptions, WeightsOptions, ComputeOptions):
    """How a model is loaded and describes images."""


@dataclass(frozen=True, kw_only=True)
class StoreModelOptions(WeightsOptions, ComputeOptions):
    """The model that describes queries to a store."""

    model: str = option("", "The store's model, where it has moved.")


@dataclass(frozen=True, kw_only=True)
class RankingOptions(Options):
    """How results are ranked."""

    rerank: Reranker = option(
        "",
        "Put the results in a better order. "
        "diffusion: follow neighbours of neighbours (a search: among its 500 nearest).",
    )
    ranking: Literal["global", "regions"] = option(
        "global", "global (whole images) or regions (their best part)."
    )


@dataclass(frozen=True, kw_only=True)
class TrainOptions(ComputeOptions):
    """What a run is given besides images and recipe."""

    minutes: float | None = option(None, "Time for the rounds that train more than the last layer.")
    size: int = option(0, "Side of all views in pixels; 0 = chosen by the photos.")
    changes: tuple[str, ...] = option((), "key=value of the recipe, e.g. network.dim=256.", "--set")
    backbone: str = option("", "A name of `insclr backbones`, or of timm; empty = the recipe's.")
    weights: str = option("", "File with the backbone's weights.")
    labels: Path | None = option(
        None, "CSV (path, instance): to log mAP; recipes that say SUPERVISED learn from it."
    )
    resume: bool = option(False, "Continue an interrupted run; it remembers its options.")
    cache: Path | None = option(None, "Keep features here, for other runs on these images.")
    answers: str | None = option(None, "A store whose names and answers are learned from.")
    local: Literal["auto", "off"] = option(
        "auto", "Learn from pairs that matched points prove: auto (where they are safe) or off."
    )
    clock: Callable[[], float] = time.monotonic  # of `minutes` and of the seconds in the log

    @property
    def recipe_changes(self) -> tuple[str, ...]:
        """All changes of the recipe, those by options of their own among them."""
        minutes = () if self.minutes is None else (f"minutes={float(self.minutes)}",)
        weights = (f"network.weights={self.weights!r}",) if self.weights else ()
        sides = ("descriptor.size", "rounds.plain_size", "rounds.augmented_size") if self.size else ()
        backbone = (f"network.backbone={self.backbone!r}",) if self.backbone else ()
        return (*self.changes, *backbone, *weights, *minutes, *(f"{side}={self.size}" for side in sides))


@dataclass(frozen=True, kw_only=True)
class WhitenOptions(SizeOptions, WeightsOptions, DeviceOptions):
    """How a whitening is learned; the new model describes images in the same way."""

    protocol: str = option("", "Describe images as this public protocol does, e.g. roxford5k.")

    dim: int = option(0, "Length of the new descriptor; 0 = as long as it can be.")
    power: float = option(0.5, "0 = centred rotation, 0.5 = full whitening.")


@dataclass(frozen=True, kw_only=True)
class IndexOptions(WeightsOptions, ComputeOptions):
    """What a store keeps of images, and how it is brought up to date."""

    prune: bool = option(False, "Drop rows whose image is no longer listed.")
    verify: bool = option(False, "Read every image: size and time may be old, the content new.")
    regions: bool = option(False, "Keep vectors of parts too, to find small instances: use --size 448.")
    local: Local = option(
        "auto", "Local features, at most 40 kB an image: auto (where they help), on or off."
    )
    size: int = option(0, "Side at which images are described; 0 = the model's own.")
    boxes: Path | None = option(
        None, "Index boxes in the images instead: COCO or MegaDetector JSON, or CSV (path, x1, y1, x2, y2)."
    )
    box_confidence: float = option(0.2, "Least confidence of a box, where the file has confidences.")
    batch: int = 256  # images written in one transaction: what a kill can cost
    shard: str = option("", SHARD_HELP)


@dataclass(frozen=True, kw_only=True)
class SearchOptions(RankingOptions, StoreModelOptions):
    """What is asked of a search besides its queries."""

    top: int = option(20, "Most results.")
    min_score: float = option(0.0, "Least calibrated score, 0 to 1.")
    local: Local = option(
        "auto", "Use matched points: auto (where the store's test found that they help), on or off."
    )
    where: str = option("", 'Filter on metadata, e.g. "year >= 1900 and room = attic".')
    aggregate: Literal["mean", "max"] = "mean"  # psi of the paper, over the images of a query set

    def __post_init__(self) -> None:
        """UserError for a value that makes no sense."""
        super().__post_init__()
        if not 1 <= self.top <= MAX_TOP:
            raise UserError(f"top must be between 1 and {MAX_TOP}, not {self.top}")
        if not 0 <= self.min_score <= 1:
            raise UserError(f"min score must be between 0 and 1, not {self.min_score:g}")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(RankingOptions, LoadOptions):
    """What is measured, and how."""

    protocol: str = option("", "roxford5k, rparis6k, oxford5k, paris6k, instre or gldv2.")
    root: Path | None = option(None, "Folder with the protocol's images.")
    ground_truth: Path | None = option(None, "Its ground truth, where not under --root.")
    distractors: Path | None = option(None, "Distractors: images, or descriptors (.npy, .npz, .parquet).")
    region_size: int = option(
        0, "Side at which index images are described for --ranking regions; 0 = --size."
    )
    local: Local = option("off", "Rank by matched points too: auto (where they help), on or off.")
    allow_missing: bool = option(False, "Leave missing images out.")
    shard: str = option("", SHARD_HELP)
    parts: Path | None = option(None, "Folder that keeps the descriptors; all shards must see it.")

    def __post_init__(self) -> None:
        """UserError for options that exclude each other."""
        super().__post_init__()
        if self.protocol and (self.local != "off" or self.ranking != "global"):
            raise UserError("Local evidence and rankings by parts are measured with --labels CSV.")
        if self.rerank and (self.local != "off" or self.ranking != "global"):
            raise UserError("A re-ranker of descriptors goes with --ranking global and --local off.")


@dataclass(frozen=True, kw_only=True)
class PaperOptions(LoadOptions):
    """What a table of the paper is made of; size, fit and scales are those of the measurement."""

    benchmarks: tuple[str, ...] = option((), "NAME=DIR: a protocol that measures; once each.", "--protocol")
    distractors: Path | None = option(None, "With --protocol: distractor images, for a second column.")
    labels: Path | None = option(None, "Labels of IMAGES (path, instance), for precision and ArcFace.")
    data: tuple[str, ...] = option((), "Own sets instead: a labels.csv beside its images; once each.")
    sample: int = option(0, "With --data: so many images of each set, drawn with a fixed seed; 0 = all.")
    recipe: str = option("", "The recipe that the rows change; empty = the table's own.")
    changes: tuple[str, ...] = option((), "key=value of the recipe, for all rows.", "--set")
    seeds: int = option(1, "Runs of each row.")
    rows: str = option("", "Only these rows, e.g. A,D; empty = all.")
    layers: Literal["", "late", "all"] = option(
        "", "rivals: train late or all layers, as long as default; empty = the last."
    )

    def __post_init__(self) -> None:
        """UserError for a value that makes no sense."""
        super().__post_init__()
        if self.seeds < 1:
            raise UserError("--seeds must be 1 or more.")
        if self.sample < 0 or (self.sample and not self.data):
            raise UserError("--sample is a number of images beside --data.")
        if self.data and self.labels:
            raise UserError("--data has its labels: leave --labels out.")
        if not self.benchmarks and (self.distractors or self.size or self.fit or self.scales):
            raise UserError(
                "--distractors, --size, --fit and --scales go with --protocol: add it or leave them out."
            )

    @property
    def recipe_changes(self) -> tuple[str, ...]:
        """All changes of the recipe, the weights among them."""
        return (*self.changes, *((f"network.weights={self.weights!r}",) if self.weights else ()))
