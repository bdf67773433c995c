"""The paper's comparison on one's own photos: baselines, our method, its rivals and the supervised anchors.

The same network, images and number of images seen for all. Where every rival and anchor begins (at the PCA or at our
closed-form start) and its learning rate are the best of a small grid by its own mAP, which is generous to them: ours
keep their own. With more layers, rivals train as long as `default`, from our start and at its rates.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Literal

from insclr.errors import UserError
from insclr.files import whole_file
from insclr.options import PaperOptions
from insclr.recipe import load_recipe
from insclr.shards import shard_of
from insclr_rivals.comparison_chart import draw_shares
from insclr_rivals.paper_figures import Figure
from insclr_rivals.paper_page import write_files
from insclr_rivals.runs import (
    Entry,
    LabelledSet,
    Network,
    Outcome,
    find_benchmarks,
    find_sets,
    interval,
    run_all,
    try_all,
)

Group = Literal["baseline", "ours", "rival", "supervised"]
MIDDLE_RATE = 1e-3  # tried at every start; the other rates at the better start
LEARNING_RATES = (MIDDLE_RATE, 3e-4, 3e-3)
STARTS = ("pca", "views")
PRETRAINED, UNGUARDED, CEILING = "pretrained", "default without its guard", "oracle"
ONE_SIZE = "large_size=0"  # all at the size of the smallest photos, so that the methods alone differ
_LEAST_MINUTES = 0.1  # of rivals
NEEDED = {PRETRAINED, CEILING, "D (fast)"}  # the table cannot do without


@dataclass(frozen=True)
class Layers:
    """More layers than the last one, which rivals train as long as `default` took for all its rounds."""

    name: str
    rate: float
    fc_rate: float
    minutes: float = 0.0

    def changes(self, recipe: str) -> tuple[str, ...]:
        """What a rival's recipe has other."""
        keys = [
            "batch_norm=frozen",
            "epochs=0.0",
            "steps=20000",
            f"train={self.name}",
            f"fc_lr={self.fc_rate}",
        ]
        if self.name == "late":
            keys += ["warmup=20"]
        else:  # 64 views a step instead of 256, as in the late rounds of `default`: more steps in the same time
            keys += ["warmup=5", f"tuples={load_recipe(recipe).rounds[0].tuples // 4}"]
        # Images are decoded by the process whose time is counted.
        return (*(f"rounds.{key}" for key in keys), f"minutes={self.minutes}", "workers=0")


def choose_layers(name: str) -> Layers | None:
    """The layers of this name, at the rates of `default`."""
    if not name:
        return None
    late = next(one for one in load_recipe("default").rounds if one.train == "late")
    # All layers take a smaller step; the last one learns as it does in `default`.
    return Layers(name, late.lr if name == "late" else 0.3 * late.lr, late.fc_lr)


@dataclass(frozen=True)
class Contender:
    """A row of the table."""

    name: str
    group: Group
    recipe: str
    changes: tuple[str, ...] = ()
    network: Network = "trained"

    def starts(self, layers: Layers | None) -> tuple[str, ...]:
        """Where it may begin: both starts for a rival; the oracle is ours but for the mining."""
        if self.group == "rival" and layers:
            return ("views",)
        return STARTS if self.group in ("rival", "supervised") and self.name != CEILING else ("",)

    def rates(self, layers: Layers | None) -> tuple[float | None, ...]:
        """The rates that it may have, the first one at every start; None for its recipe's own."""
        if self.group == "rival" and layers:
            return (layers.rate,)
        return LEARNING_RATES if self.group in ("rival", "supervised") else (None,)

    def entry(self, rate: float | None = None, start: str = "", layers: Layers | None = None) -> Entry:
        """Its run at a learning rate, from this start or its own."""
        changes, name = self.changes, self.name
        if layers and self.group == "rival":
            changes = (*changes, *layers.changes(self.recipe))
        if start and start != load_recipe(self.recipe).network.initial_fc:
            changes, name = (*changes, f"network.initial_fc={start}"), f"{name} from {start}"
        if rate is not None:
            changes, name = (*changes, f"rounds.lr={rate}"), f"{name} lr {rate:g}"
        return Entry(name, changes, self.recipe, self.network)


def _start(name: str, recipe: str, *changes: str) -> Contender:
    """An initial FC: one step of a rate that changes nothing."""
    return Contender(name, "baseline", recipe, (*changes, "rounds.steps=1", "rounds.lr=1e-12"))


def _variant(name: str, variant: str) -> Contender:
    # Without the guard of `fast`, which skips rounds where mined pairs are inconsistent: the row measures the method.
    return Contender(name, "ours", "fast", (f'rounds.method.variant="{variant}"', "guard=false", ONE_SIZE))


RIVALS = (
    "simclr",
    "moco-v2",
    "byol",
    "swav",
    "deepcluster",
    "pcl",
    "cluster-contrast",
    "scan-nn",
    "manifold-mining",
)
CONTENDERS: tuple[Contender, ...] = (
    Contender(PRETRAINED, "baseline", "paper-small", network="pretrained"),
    _start("PCA", "paper-small"),
    _start("views start", "fast", ONE_SIZE),
    _variant("A", "A"),
    _variant("C", "C"),
    _variant("D-anchor", "D-anchor"),
    Contender("D (fast)", "ours", "fast", (ONE_SIZE,)),
    Contender("default", "ours", "default", (ONE_SIZE,)),
    Contender(UNGUARDED, "ours", "default", (ONE_SIZE, "guard=false")),
    *(Contender(name, "rival", name) for name in RIVALS),
    *(Contender(name, "supervised", name) for name in ("arcface", "gem-ap")),
    Contender(CEILING, "supervised", CEILING, (ONE_SIZE,)),
)


@dataclass(frozen=True)
class RivalRow:
    """A contender on one set; numbers in percent, means over seeds."""

    collection: str
    name: str
    group: Group
    start: float  # mAP before training
    map: float
    interval: str  # half width of the 95 % interval, empty for one seed
    maps: tuple[float, ...]  # seed by seed
    recall: float  # R@1
    measured: dict[str, float]  # mAP by protocol and setting
    seconds: float  # of training: the processor's on a CPU; 0 where nothing is trained
    images: int  # augmented views seen; 0 where nothing is trained
    share: float | None  # of the gap between pretrained and oracle
    rate: str | None  # the learning rate and the start that were best for it
    grid: dict[str, float]  # mAP of the first seed by learning rate and start
    beats_ours: bool
    runs: tuple[str, ...]  # folders, beside the page

    def cells(self, columns: Sequence[str]) -> list[str]:
        """The row for people; a rival that beats all of ours is marked."""
        return [
            self.name + (" (above ours)" if self.beats_ours else ""),
            self.collection,
            self.group,
            f"{self.start:.1f}" if self.images else "",
            f"{self.map:.1f}{self.interval}",
            f"{self.recall:.1f}",
            *(f"{self.measured[name]:.1f}" if name in self.measured else "" for name in columns),
            "" if self.share is None else f"{self.share:.0%}",
            f"{self.seconds:.0f}" if self.images else "",
            f"{self.images:,}" if self.images else "",
            self.rate or "",
        ]


def _head(columns: Sequence[str]) -> list[str]:
    later = ("share of the gap", "seconds", "images seen", "lr, start")
    return ["", "set", "kind", "mAP before", "mAP", "R@1", *columns, *later]


@dataclass(frozen=True)
class _Result:
    """A contender on one set: its runs, one for each seed, at the rate that was best for it."""

    contender: Contender
    outcomes: tuple[Outcome, ...]
    grid: dict[str, float]  # mAP of the first seed by learning rate and start; empty without a choice

    @property
    def maps(self) -> list[float]:
        return [one.map for one in self.outcomes]


def run(images: Path | None, out: Path, options: PaperOptions) -> str:
    """Run what is not run yet; write rivals.md, rivals.json and rivals.html under `out`; give back the table.

    Rows that are not asked for are left out, but for those that the table cannot do without. A protocol measures
    every row as well.
    """
    if images is not None or not options.data:
        raise UserError("The rivals are compared on labelled sets: give --data labels.csv, once a set.")
    if options.recipe or options.recipe_changes:
        raise UserError("The rivals have recipes of their own: leave --recipe and --set out.")
    asked = {name.strip() for name in options.rows.split(",") if name.strip()}
    if unknown := asked - {one.name for one in CONTENDERS}:
        known = ", ".join(one.name for one in CONTENDERS)
        raise UserError(f"There is no row {sorted(unknown)[0]!r}: choose from {known}.")
    layers, seeds = choose_layers(options.layers), range(options.seeds)
    needed = NEEDED | ({UNGUARDED} if layers else set())
    chosen = [one for one in CONTENDERS if not asked or one.name in needed | asked]
    benchmarks = find_benchmarks(options)
    rows: list[RivalRow] = []
    without: list[str] = []
    for place in find_sets(options, options, out):
        results, reasons = _on_set(chosen, replace(place, benchmarks=benchmarks), seeds, out, layers)
        rows += [_row(one, place.name, results) for one in results.values()]
        without += [f"Without a result: {why}" for why in reasons]
    if not shard_of("").first:
        return ""
    file = out / (f"rivals-{layers.name}" if layers else "rivals")
    chart = draw_shares(rows)
    with whole_file(file.with_suffix(".svg")) as scratch:
        scratch.write_text(chart)
    columns = list(dict.fromkeys(name for row in rows for name in row.measured))
    cells = [row.cells(columns) for row in rows]
    content = {"rows": [asdict(row) for row in rows], "without": without}
    figures = [Figure("Share of the supervised gap", (), None, chart)]
    about = [_about(seeds, layers), *without]
    return write_files(file, "The method and its rivals", about, _head(columns), cells, content, figures)


def _on_set(
    chosen: Sequence[Contender],
    place: LabelledSet,
    seeds: Sequence[int],
    out: Path,
    layers: Layers | None,
) -> tuple[dict[str, _Result], list[str]]:
    """The results on a set by name, and why a contender has none."""
    first, *rest = seeds
    if layers:  # all rounds of `default`: its guard may leave rounds out
        (default,) = (one for one in chosen if one.name == UNGUARDED)
        (done,) = run_all([(default.entry(), place, first)], out)
        layers = replace(layers, minutes=max(_LEAST_MINUTES, round(done.training_seconds / 60, 2)))
    # The grid, on the first seed: every start at the first rate, then the other rates at the better start.
    best: dict[str, tuple[Entry, Outcome]] = {}
    grids: dict[str, dict[str, float]] = {one.name: {} for one in chosen}
    starts: dict[str, str] = {}
    failed: dict[str, str] = {}

    def run(tried: Sequence[tuple[Contender, float | None, str]]) -> None:
        entries = [one.entry(rate, start, layers) for one, rate, start in tried]
        outcomes = try_all([(entry, place, first) for entry in entries], out)
        for (one, rate, start), entry, outcome in zip(tried, entries, outcomes, strict=True):
            if isinstance(outcome, UserError):
                failed[one.name] = str(outcome)
                continue
            if rate is not None:
                grids[one.name][f"{rate:g}" + (f", {start}" if start else "")] = outcome.map
            if one.name not in best or outcome.map > best[one.name][1].map:
                best[one.name] = entry, outcome
                starts[one.name] = start

    run([(one, one.rates(layers)[0], start) for one in chosen for start in one.starts(layers)])
    others = [(one, rate) for one in chosen for rate in one.rates(layers)[1:]]
    run([(one, rate, starts.get(one.name, one.starts(layers)[0])) for one, rate in others])
    for name in NEEDED - best.keys():
        raise UserError(failed[name])
    # The other seeds, at the rate that was best.
    results = {}
    for one in chosen:
        if one.name in best:
            entry, outcome = best[one.name]
            later = run_all([(entry, place, seed) for seed in rest if one.network == "trained"], out)
            results[one.name] = _Result(one, (outcome, *later), grids[one.name])
    return results, [reason for name, reason in failed.items() if name not in best]


def _row(result: _Result, collection: str, of_set: dict[str, _Result]) -> RivalRow:
    """The numbers of a row; the share of the supervised gap by the pretrained and the oracle's row of the set."""
    floor, ceiling = mean(of_set[PRETRAINED].maps), mean(of_set[CEILING].maps)
    value, outcomes, grid = mean(result.maps), result.outcomes, result.grid
    ours = [mean(one.maps) for one in of_set.values() if one.contender.group == "ours"]
    trained = result.contender.group != "baseline"
    return RivalRow(
        collection=collection,
        name=result.contender.name,
        group=result.contender.group,
        start=mean(one.start for one in outcomes),
        map=value,
        interval=interval(result.maps),
        maps=tuple(result.maps),
        recall=mean(one.recall for one in outcomes),
        measured={
            name: mean(one.measured[name] for one in outcomes)
            for name in outcomes[0].measured
            if name != collection
        },
        seconds=mean(one.training_seconds for one in outcomes) if trained else 0.0,
        images=round(mean(one.images for one in outcomes)) if trained else 0,
        share=(value - floor) / (ceiling - floor) if ceiling != floor else None,
        rate=max(grid, key=lambda rate: grid[rate]) if grid else None,
        grid=grid,
        beats_ours=result.contender.group == "rival" and value > max(ours),
        runs=tuple(one.run for one in outcomes),
    )


def _about(seeds: Sequence[int], layers: Layers | None) -> str:
    several = f"means of seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    whom = "Every supervised anchor" if layers else "Every rival and supervised anchor"
    more = (
        f"Rivals trained {layers.name} layers from our start, as long as default trained all its rounds, "
        f"at a rate of {layers.rate:g} ({layers.fc_rate:g} for the last layer). "
    ) if layers else ""  # fmt: skip
    rates = ", ".join(f"{rate:g}" for rate in LEARNING_RATES)
    return (
        f"{whom} saw as many images as fast, at the better of two starts (PCA, ours) and the best learning "
        f"rate of {rates} by its own mAP; {several}. {more}"
        "Seconds are those of training alone, without features and start; on a CPU, the processor's. "
        "Share: (mAP - pretrained) / (oracle - pretrained). Supervised rows learned from the labels. "
        "D and default have their guard, which skips rounds where mined pairs are inconsistent; "
        "A, C and D-anchor have none. No row learns from matched points."
    )
