"""Training runs of the tables: every entry x every set x every seed, in processes of their own, resumable."""

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev

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
    """The results of one run."""

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


def find_sets(label_files: Sequence[Path]) -> list[LabelledSet]:
    """The sets of some labels.csv, each beside its images; named by their folders."""
    sets = [LabelledSet(file.absolute().parent.name, file.parent, file) for file in label_files]
    if len({place.name for place in sets}) < len(sets):
        raise UserError("Two sets lie in folders of the same name: rename one, results are kept by it.")
    return sets


def run_all(jobs: Sequence[tuple[Entry, LabelledSet, int]], out: Path, parallel: int) -> list[Outcome]:
    """The outcome of every job, in order; one that was run before is read from its file under `out`."""
    done = try_all(jobs, out, parallel)
    for one in done:
        if isinstance(one, UserError):
            raise one
    return [one for one in done if isinstance(one, Outcome)]


def try_all(
    jobs: Sequence[tuple[Entry, LabelledSet, int]], out: Path, parallel: int
) -> list[Outcome | UserError]:
    """As `run_all`, with the error of a run that failed in its place."""

    def attempt(job: tuple[Entry, LabelledSet, int]) -> Outcome | UserError:
        try:
            return _run(job[0], job[1], job[2], out, threads)
        except UserError as error:
            return error

    for entry, _, _ in jobs:
        load_recipe(entry.recipe, entry.changes)  # a wrong setting is an error before hours of work
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
        raise UserError(f"{entry.name} on {place.name}, seed {seed}: {_explain_failure(ended)}")
    outcome = _read_outcome(entry, place, seed, fingerprint, folder, time.monotonic() - began)
    with whole_file(kept) as scratch:
        scratch.write_text(json.dumps(outcome.__dict__))
    return outcome


def _explain_failure(ended: subprocess.CompletedProcess[str]) -> str:
    """The signal that ended a run, or the last line of its messages."""
    if ended.returncode < 0:
        return f"it was ended by {signal.Signals(-ended.returncode).name}"
    return (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]


def _read_outcome(
    entry: Entry, place: LabelledSet, seed: int, fingerprint: str, folder: Path, seconds: float
) -> Outcome:
    """The results in the log of a finished run."""
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


def interval(values: Sequence[float]) -> str:
    """The half width of the 95 % interval of their mean, by Student's t; empty for a single value."""
    if len(values) < 2:
        return ""
    quantile = float(stats.t.ppf(0.975, df=len(values) - 1))
    return f" ± {quantile * stdev(values) / math.sqrt(len(values)):.1f}"
