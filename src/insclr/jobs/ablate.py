"""Recipes against each other: every entry of a list x every set x every seed, two runs at a time, one table."""

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

from scipy import stats

from insclr.data.workers import usable_cores
from insclr.errors import UserError
from insclr.files import whole_file
from insclr.progress import progress_bar
from insclr.recipe import load_recipe
from insclr.run_folder import RunReader


@dataclass(frozen=True)
class Entry:
    """A recipe with changes, under the name it has in the table."""

    name: str
    changes: tuple[str, ...] = ()
    recipe: str = ""  # the recipe that is changed; empty = the table's


@dataclass(frozen=True)
class LabelledSet:
    """A set to run on: its images and the labels that measure it."""

    name: str
    images: Path
    labels: Path


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    entry: str
    collection: str
    seed: int
    recipe: str  # the hash of all its settings
    start: float  # mAP before training
    map: float
    precision: float | None  # of the pairs mined in the last round
    seconds: float  # of the whole run, features included where they were not cached yet
    run: str = ""  # its folder, beside the table
    start_recall: float = 0.0  # R@1 before training
    recall: float = 0.0  # R@1
    training_seconds: float = 0.0  # of all rounds
    steps: int = 0
    images: int = 0  # augmented views seen


@dataclass(frozen=True)
class Table:
    """A list of entries and the recipe they change: one whose method reads what they set."""

    recipe: str
    entries: tuple[Entry, ...]


# The paper's numbers, on cached features: what happens to a small collection that they were not made for.
_PRINTED = (
    "network.initial_fc=random",
    "network.bias=false",
    "rounds.lr=1e-4",
    "rounds.loss.margin=0.4",
    "rounds.loss.normalise=sum",
    "rounds.method.pool=500",
    "rounds.method.ignore_nearest=0",
)
_PRINTED_SELECTION = ("rounds.method.batch_threshold=0.65",)
_PRINTED_MEMORY = ("rounds.method.sparsity=0.6", "rounds.method.pool_negatives=true")


def _printed(variant: str) -> Entry:
    changes: tuple[str, ...] = (f'rounds.method.variant="{variant}"', *_PRINTED)
    changes += _PRINTED_SELECTION if variant not in "AB" else ()
    changes += _PRINTED_MEMORY if variant.startswith("D") else ()
    return Entry(f"{variant} as printed", changes)


def _batch(strategy: str, threshold: float | None) -> Entry:
    changes: tuple[str, ...] = (f"rounds.method.strategy={strategy}",)
    if threshold is not None:
        changes += (f"rounds.method.batch_threshold={threshold}",)
    return Entry(strategy if threshold is None else f"{strategy} {threshold}", changes)


def _memory(aggregate: str, choose: str, sparsity: str, repeats: int) -> Entry:
    changes = {"aggregate": aggregate, "choose": choose, "sparsity": sparsity, "repeats": repeats}
    if choose == "threshold":
        changes["memory_threshold"] = "auto"
    return Entry(
        f"{aggregate} {choose}{' sparse' if sparsity != 'off' else ''} {repeats}x",
        tuple(f"rounds.method.{key}={value}" for key, value in changes.items()),
    )


# The tables of the paper, each on a recipe whose method reads its settings.
TABLES: dict[str, Table] = {
    "methods": Table(
        "fast",
        tuple(Entry(name, (f'rounds.method.variant="{name}"',)) for name in ("A", "C", "D-anchor", "D")),
    ),
    "printed": Table("paper-small", tuple(_printed(name) for name in ("A", "B", "C", "D-anchor", "D"))),
    "memory": Table(
        "paper-small",
        tuple(
            _memory(aggregate, choose, sparsity, repeats)
            for aggregate in ("mean", "max")
            for choose, sparsity in (("topk", "off"), ("topk", "auto"), ("threshold", "off"))
            for repeats in (1, 2, 4)
        ),
    ),
    "batch": Table(
        "paper-small",
        (
            _batch("nn", None),
            *(
                _batch(strategy, threshold)
                for strategy in ("augmented", "plain", "relative", "multiscale")
                for threshold in (0.5, 0.6, 0.65, 0.7, 0.8)
            ),
        ),
    ),
    "neighbours": Table(
        "fast", tuple(Entry(f"N_b {n}", (f"rounds.method.neighbours={n}",)) for n in (1, 3, 5, 7))
    ),
    "pool": Table(
        "fast", tuple(Entry(f"P {n}", (f"rounds.method.pool={n}",)) for n in (50, 100, 250, 500, 1000))
    ),
}


def ablate(
    entries: Sequence[Entry],
    sets: Sequence[LabelledSet],
    seeds: Sequence[int],
    out: Path,
    *,
    recipe: str = "fast",
    parallel: int = 2,
) -> str:
    """Run what is not run yet, and write table.md and results.json under `out`; give back the table.

    Every run is an `insclr train --resume` in a process of its own: an interrupted ablation goes on where it was.
    """
    require_own_names(sets)
    entries = [replace(entry, recipe=entry.recipe or recipe) for entry in entries]
    jobs = [(entry, place, seed) for place in sets for seed in seeds for entry in entries]
    done = run_all(jobs, out, parallel)
    table = _table(done, entries, sets)
    with whole_file(out / "results.json") as scratch:
        scratch.write_text(json.dumps([outcome.__dict__ for outcome in done], indent=1))
    with whole_file(out / "table.md") as scratch:
        scratch.write_text(table)
    return table


def require_own_names(sets: Sequence[LabelledSet]) -> None:
    """Refuse sets that could not be told apart."""
    if len({place.name for place in sets}) < len(sets):
        raise UserError("Two sets lie in folders of the same name: rename one, results are kept by it.")


def run_all(jobs: Sequence[tuple[Entry, LabelledSet, int]], out: Path, parallel: int) -> list[Outcome]:
    """What every entry x set x seed came to, in order; what was run before is read from its file under `out`."""
    done = try_all(jobs, out, parallel)
    for one in done:
        if isinstance(one, UserError):
            raise one
    return [one for one in done if isinstance(one, Outcome)]


def try_all(
    jobs: Sequence[tuple[Entry, LabelledSet, int]], out: Path, parallel: int
) -> list[Outcome | UserError]:
    """As `run_all`, with the error of every run that did not come to its end in its place."""

    def attempt(job: tuple[Entry, LabelledSet, int]) -> Outcome | UserError:
        try:
            return _run(job[0], job[1], job[2], out, threads)
        except UserError as error:
            return error

    for entry, _, _ in jobs:
        load_recipe(entry.recipe, entry.changes)  # a wrong setting is told before hours of work
    threads = max(1, usable_cores() // parallel)
    done: list[Outcome | UserError] = []
    with ThreadPoolExecutor(parallel) as pool, progress_bar("runs", len(jobs)) as bar:
        for one in pool.map(attempt, jobs):
            done.append(one)
            bar.advance()
    return done


def _run(entry: Entry, place: LabelledSet, seed: int, out: Path, threads: int) -> Outcome:
    changes = (*entry.changes, f"seed={seed}")
    fingerprint = load_recipe(entry.recipe, changes).fingerprint()
    name = hashlib.sha256(f"{entry.name} {fingerprint}".encode()).hexdigest()[:12]
    folder = out / "runs" / place.name / name
    kept = folder.with_suffix(".json")
    if kept.exists():
        return Outcome(**json.loads(kept.read_text()))
    command = [
        sys.executable,
        "-P",  # modules never come from the current folder
        "-m",
        "insclr",
        "train",
        str(place.images),
        "--out",
        str(folder),
        "--recipe",
        entry.recipe,
    ]
    command += ["--labels", str(place.labels), "--cache", str(out / "cache" / place.name), "--resume"]
    for change in changes:
        command += ["--set", change]
    began = time.monotonic()
    ended = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)}
    )
    if ended.returncode:
        raise UserError(f"{entry.name} on {place.name}, seed {seed}: {_why(ended)}")
    outcome = _outcome(entry, place, seed, fingerprint, folder, time.monotonic() - began)
    with whole_file(kept) as scratch:
        scratch.write_text(json.dumps(outcome.__dict__))
    return outcome


def _why(ended: subprocess.CompletedProcess[str]) -> str:
    """Why a run did not come to its end: its last words, unless it was killed in the middle of them."""
    if ended.returncode < 0:
        return f"it was ended by {signal.Signals(-ended.returncode).name}"
    return (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]


def _outcome(
    entry: Entry, place: LabelledSet, seed: int, fingerprint: str, folder: Path, seconds: float
) -> Outcome:
    """What the log of a finished run says."""
    records = RunReader(folder).metrics()
    measured = [record for record in records if record.get("map") is not None]
    first, last = measured[0], measured[-1]
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
        start_recall=first["recall_at_1"],
        recall=last["recall_at_1"],
        training_seconds=sum(end["seconds"] for end in ends),
        steps=sum(end["steps"] for end in ends),
        images=sum(end["images"] for end in ends),
    )


def _table(done: Sequence[Outcome], entries: Sequence[Entry], sets: Sequence[LabelledSet]) -> str:
    head = "| | " + " | ".join(f"{place.name} mAP | precision | s" for place in sets) + " | recipe |"
    lines = [head, "|---" * (3 * len(sets) + 2) + "|"]
    for entry in entries:
        cells = list(_cells(done, entry, sets))
        hashes = sorted({outcome.recipe for outcome in done if outcome.entry == entry.name})
        lines.append(f"| {entry.name} | " + " | ".join(cells) + f" | {', '.join(hashes)} |")
    return "\n".join(lines) + "\n"


def _cells(done: Sequence[Outcome], entry: Entry, sets: Sequence[LabelledSet]) -> Iterator[str]:
    for place in sets:
        some = [
            outcome for outcome in done if (outcome.entry, outcome.collection) == (entry.name, place.name)
        ]
        values = [outcome.map for outcome in some]
        shares = [outcome.precision for outcome in some if outcome.precision is not None]
        yield f"{mean(values):.1f}{interval(values)}"
        yield f"{mean(shares):.2f}" if shares else ""
        yield f"{mean(outcome.seconds for outcome in some):.0f}"


def interval(values: Sequence[float]) -> str:
    """The half width of the 95 % interval of their mean, by Student's t; empty for a single value."""
    if len(values) < 2:
        return ""
    quantile = float(stats.t.ppf(0.975, df=len(values) - 1))
    return f" ± {quantile * stdev(values) / math.sqrt(len(values)):.1f}"
