"""Runs of the tables: every entry x every set x every seed, trained and measured, resumable."""

import csv
import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import stdev
from typing import Any, Literal

import numpy as np
from scipy import stats

from insclr.api import evaluate, whiten
from insclr.data.images import list_images
from insclr.data.table import read_table
from insclr.errors import OtherShardsMissing, UserError
from insclr.evaluation.results import LabelResult
from insclr.files import whole_file
from insclr.jobs.train import train
from insclr.model.device import pick_device
from insclr.model.stored import PRETRAINED
from insclr.options import EvaluateOptions, LoadOptions, PaperOptions, TrainOptions
from insclr.progress import progress_bar
from insclr.ranks import join_ranks
from insclr.recipe import Recipe, load_recipe
from insclr.run_folder import RunReader
from insclr.shards import shard_of

Network = Literal["trained", "pretrained", "pca", "printed"]


@dataclass(frozen=True)
class Entry:
    """A recipe with changes, under the name it has in the table, and the numbers that the paper prints for it."""

    name: str
    changes: tuple[str, ...] = ()
    recipe: str = ""  # the recipe that is changed; empty = the table's
    network: Network = (
        "trained"  # pretrained as it comes, or with a PCA; printed = not run, the paper's numbers alone
    )
    printed: Mapping[str, float] = field(default_factory=dict)  # by the column of the table
    x: float | None = None  # its place in a figure
    line: str = ""  # the line of the figure that it is on
    needs_labels: bool = False


@dataclass(frozen=True)
class Benchmark:
    """A public protocol with its images, with distractors or without."""

    protocol: str
    root: Path
    distractors: Path | None = None
    label: str = ""  # of its columns


@dataclass(frozen=True)
class LabelledSet:
    """Images to train on, and what measures the result: their labels, public protocols, or both."""

    name: str
    images: Path
    labels: Path | None
    benchmarks: tuple[Benchmark, ...] = ()
    measuring: LoadOptions = LoadOptions()  # the size, device and engine that were asked for
    by_labels: bool = False  # where not, the labels are for precision alone


@dataclass(frozen=True)
class Outcome:
    """The results of one run."""

    entry: str
    collection: str
    seed: int
    recipe: str  # the hash of all its settings
    start: float  # mAP before training; 0 without labels
    map: float
    precision: float | None  # of the pairs mined in the last round
    seconds: float  # of the whole run, features included where they were not cached yet
    run: str = ""  # its folder, beside the table
    recall: float = 0.0  # R@1
    training_seconds: float = 0.0  # of all rounds
    steps: int = 0
    images: int = 0  # augmented views seen
    measured: dict[str, float] = field(default_factory=dict)  # mAP by column
    described: dict[str, str] = field(default_factory=dict)  # size, fit and scales by column


def find_benchmarks(options: PaperOptions, distractors: str = "R1M") -> tuple[Benchmark, ...]:
    """The protocols that were asked for; each a second time with distractors, as NAME+`distractors`."""
    found = []
    for given in options.benchmarks:
        name, _, root = given.partition("=")
        if not root or not Path(root).is_dir():
            raise UserError(
                f"--protocol {given} is not NAME=DIR with a folder, such as roxford5k=data/roxford5k."
            )
        found.append(Benchmark(name, Path(root), None, name))
        if options.distractors is not None:
            found.append(Benchmark(name, Path(root), options.distractors, f"{name}+{distractors}"))
    return tuple(found)


def find_sets(options: PaperOptions, measuring: LoadOptions, out: Path) -> list[LabelledSet]:
    """The sets of some labels.csv, each beside its images, or samples of them; named by their folders."""
    files = [Path(file) for file in options.data]
    sets = [
        LabelledSet(file.absolute().parent.name, file.parent, file, (), measuring, True) for file in files
    ]
    if len({place.name for place in sets}) < len(sets):
        raise UserError("Two sets lie in folders of the same name: rename one, results are kept by it.")
    return [_sample(place, file, options.sample, out) for place, file in zip(sets, files, strict=True)]


def _sample(place: LabelledSet, labels: Path, count: int, out: Path) -> LabelledSet:
    """So many images of a set, always the same ones; the whole set where it has no more, or `count` is 0."""
    rows = [row for _, row in read_table(labels, ("path", "instance"))] if count else []
    if len(rows) <= count:
        return place
    drawn = np.random.default_rng(0).permutation(len(rows))[:count]
    name = f"{place.name}-{count}"
    out.mkdir(parents=True, exist_ok=True)
    with whole_file(out / f"{name}.csv") as scratch, scratch.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        for n in sorted(drawn.tolist()):
            table.writerow({**rows[n], "path": str(labels.absolute().parent / rows[n]["path"])})
    return replace(place, name=name, images=out / f"{name}.csv", labels=out / f"{name}.csv")


def run_all(jobs: Sequence[tuple[Entry, LabelledSet, int]], out: Path) -> list[Outcome]:
    """The outcome of every job, in order; one that was run before is read from its file under `out`."""
    done = try_all(jobs, out)
    for one in done:
        if isinstance(one, UserError):
            raise one
    return [one for one in done if isinstance(one, Outcome)]


def try_all(jobs: Sequence[tuple[Entry, LabelledSet, int]], out: Path) -> list[Outcome | UserError]:
    """As `run_all`, with the error of a run that failed in its place."""
    for entry, _, _ in jobs:
        load_recipe(entry.recipe, entry.changes)  # a wrong setting is an error before hours of work
    done: list[Outcome | UserError] = []
    with progress_bar("runs", len(jobs)) as bar:
        for entry, place, seed in jobs:
            try:
                done.append(_run(entry, place, seed, out))
            except UserError as error:
                done.append(UserError(f"{entry.name} on {place.name}, seed {seed}: {error}"))
            bar.advance()
    return done


def _run(entry: Entry, place: LabelledSet, seed: int, out: Path) -> Outcome:
    recipe = load_recipe(entry.recipe, (*entry.changes, f"seed={seed}"))
    what = recipe.fingerprint() if entry.network == "trained" else recipe.network.model_dump_json()
    key = f"{entry.network} {place.images.absolute()} {place.labels and place.labels.absolute()} {what}"
    folder = out / "runs" / place.name / hashlib.sha256(key.encode()).hexdigest()[:12]
    folder.parent.mkdir(parents=True, exist_ok=True)
    kept = folder.with_suffix(".json")
    model: str | Path = folder
    with join_ranks() as ranks:
        is_kept: bool = ranks.from_first(kept.exists())  # the first rank may just be writing it
    if entry.network != "trained":
        model = _make_untrained(entry, place, recipe, folder.with_suffix(".safetensors"))
    if is_kept:
        outcome = replace(Outcome(**json.loads(kept.read_text())), entry=entry.name)
    else:
        if entry.network == "trained":
            began = time.monotonic()
            _train(entry, place, seed, folder, out)
            outcome = _read_outcome(
                entry, place, seed, recipe.fingerprint(), folder, time.monotonic() - began
            )
        else:
            outcome = _measure_untrained(entry, place, seed, model, recipe)
        if shard_of("").first:
            with whole_file(kept) as scratch:
                scratch.write_text(json.dumps(outcome.__dict__))
    measured, described = _measure_all(model, place, folder, out)
    if place.by_labels:
        measured = {place.name: outcome.map} | measured
    return replace(outcome, measured=measured, described=described)


def _train(entry: Entry, place: LabelledSet, seed: int, folder: Path, out: Path) -> None:
    # On a CPU, time is the processor's: other programs do not shorten a run that has a limit.
    on_cpu = pick_device(place.measuring.device).type == "cpu"
    options = TrainOptions(
        changes=(*entry.changes, f"seed={seed}"),
        labels=place.labels,
        resume=True,
        cache=out / "cache" / place.name,
        device=place.measuring.device,
        engine=place.measuring.engine,
        clock=time.process_time if on_cpu else time.monotonic,
        local="off",  # the rivals have no matched points, so ours learns from none either
    )
    train(place.images, folder, entry.recipe, options)


PCA_IMAGES = 20_000  # at most so many training images, drawn at random, make the row ImageNet + PCA


def _make_untrained(entry: Entry, place: LabelledSet, recipe: Recipe, file: Path) -> str:
    """The name of the pretrained network, or of the file with its PCA, which is made where it is not there."""
    network = recipe.network
    name = f"{PRETRAINED}{network.backbone}" + (f"@{network.weights}" if network.weights else "")
    if entry.network == "pretrained":
        return name
    with join_ranks() as ranks, ranks.in_turn():
        if not file.exists():
            images = list_images(place.images)
            drawn = np.random.default_rng(0).permutation(len(images))[:PCA_IMAGES]
            whiten(name, images.subset(sorted(drawn.tolist())), file, **_sizes(place, recipe))
    return str(file)


def _measure_untrained(
    entry: Entry, place: LabelledSet, seed: int, model: str | Path, recipe: Recipe
) -> Outcome:
    """The mAP of a network as it is, by the labels of the set where they measure."""
    nothing = Outcome(entry.name, place.name, seed, "", 0.0, 0.0, None, 0.0)
    if not place.by_labels:
        return nothing
    given = {name: getattr(place.measuring, name) for name in ("device", "engine")}
    result = evaluate(model, place.labels, EvaluateOptions(**_sizes(place, recipe), **given))
    assert isinstance(result, LabelResult)
    return replace(nothing, start=result.map, map=result.map, recall=result.recall(1))


def _sizes(place: LabelledSet, recipe: Recipe) -> dict[str, Any]:
    """How images are described that measure a network: as the recipe, or a protocol, has it."""
    given, own = place.measuring, recipe.descriptor
    if place.by_labels:
        return {"size": own.size, "fit": own.fit, "scales": ",".join(map(str, own.scales))}
    protocol = place.benchmarks[0].protocol
    return {"protocol": protocol, "size": given.size, "fit": given.fit, "scales": given.scales}


def _measure_all(
    model: str | Path, place: LabelledSet, folder: Path, out: Path
) -> tuple[dict[str, float], dict[str, str]]:
    """mAP by column of the protocols, and how images were described; measured once and kept beside the run."""
    measured: dict[str, float] = {}
    described: dict[str, str] = {}
    for benchmark in place.benchmarks:
        found = _measure(model, benchmark, place.measuring, folder, out)
        label = benchmark.label
        measured |= {f"{label} {name}": one["map"] for name, one in found.items() if isinstance(one, dict)}
        measured |= {label: found["map"]} if "map" in found else {}
        if found:
            scales = ", ".join(f"{scale:.3g}" for scale in found["scales"])
            described[label] = f"{found['size']} px, {found['fit']}, scales {scales}"
    return measured, described


def _measure(
    model: str | Path, benchmark: Benchmark, given: LoadOptions, folder: Path, out: Path
) -> dict[str, Any]:
    """The numbers of a protocol; none in the ranks of torchrun that leave them to the first."""
    asked = f"{benchmark} {given}"
    kept = folder.with_name(f"{folder.name}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}.json")
    if not kept.exists():
        options = EvaluateOptions(
            protocol=benchmark.protocol,
            root=benchmark.root,
            distractors=benchmark.distractors,
            parts=out / "descriptors",
            **{name: getattr(given, name) for name in ("size", "fit", "scales", "device", "engine")},
        )
        try:
            result = evaluate(model, None, options)
        except OtherShardsMissing:
            return {}
        with whole_file(kept) as scratch:
            scratch.write_text(json.dumps(result.to_json()))
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def _read_outcome(
    entry: Entry, place: LabelledSet, seed: int, fingerprint: str, folder: Path, seconds: float
) -> Outcome:
    """The results in the log of a finished run."""
    records = RunReader(folder).metrics()
    measured = [record for record in records if record.get("map") is not None]
    nothing = {"map": 0.0, "recall_at_1": 0.0}  # without labels
    first, last = (measured[0], measured[-1]) if measured else (nothing, nothing)
    shares = [record["pair_precision"] for record in records if record.get("pair_precision") is not None]
    shares += [record["memory_precision"] for record in records if "memory_precision" in record][-1:]
    ends = [record for record in records if record.get("event") == "end"]
    return Outcome(
        entry.name,
        place.name,
        seed,
        fingerprint,
        first["map"],
        last["map"],
        shares[-1] if shares else None,
        seconds,
        run=f"runs/{place.name}/{folder.name}",
        recall=last["recall_at_1"],
        training_seconds=sum(end["seconds"] for end in ends),
        steps=sum(end["steps"] for end in ends),
        images=sum(end["images"] for end in ends),
    )


def interval(values: Sequence[float]) -> str:
    """The half width of the 95 % interval of their mean, by Student's t; empty for a single value."""
    if len(values) < 2:
        return ""
    quantile = float(stats.t.ppf(0.975, df=len(values) - 1))
    return f" ± {quantile * stdev(values) / math.sqrt(len(values)):.1f}"
