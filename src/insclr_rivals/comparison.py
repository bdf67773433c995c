"""The paper's comparison on one's own photos: baselines, our method, its rivals and the supervised anchors.

The same network, images and number of images seen (or the same minutes of training) for all. Where every rival and
anchor begins (at the PCA or at our closed-form start) and its learning rate are the best of a small grid by its own
mAP, which is generous to them: ours keep their own.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Literal

from insclr.errors import UserError
from insclr.files import whole_file
from insclr.options import PaperOptions
from insclr.recipe import load_recipe
from insclr_rivals.comparison_page import RivalRow, write_rivals
from insclr_rivals.runs import Entry, LabelledSet, Outcome, find_sets, interval, run_all, try_all

Budget = Literal["images", "minutes"]
Group = Literal["baseline", "ours", "rival", "supervised"]
LEARNING_RATES = (3e-4, 1e-3, 3e-3)
MIDDLE_RATE = 1e-3  # tried at every start; the other rates at the better start
STARTS = ("pca", "views")
PRETRAINED, WHITENED, CEILING, YARDSTICK = "pretrained", "PCA", "oracle", "D (fast)"
ONE_SIZE = "large_size=0"  # all at the size of the smallest photos, so that the methods alone differ
NEEDED = {PRETRAINED, WHITENED, CEILING, YARDSTICK}  # the table cannot do without


@dataclass(frozen=True)
class Layers:
    """Which layers rivals train: the last one alone by their recipes, or more of them, as long as `default`."""

    name: str = ""
    minutes: float = 0.0
    rate: float = MIDDLE_RATE
    fc_factor: float = 0.0  # the rate of the last layer, as a multiple

    @property
    def changes(self) -> tuple[str, ...]:
        """What a rival's recipe has other."""
        if not self.name:
            return ()
        keys = ("warmup=20", "batch_norm=frozen", "epochs=0.0", "steps=20000", f"train={self.name}")
        return (*(f"rounds.{key}" for key in keys), f"minutes={self.minutes}")

    @property
    def rates(self) -> tuple[float, ...]:
        """The rates that a rival tries: one alone with more layers."""
        return (self.rate,) if self.name else LEARNING_RATES


LAST_LAYER = Layers()


def choose_layers(name: str, minutes: float) -> Layers:
    """The layers of this name, trained for so many minutes (0: as long as the recipe `default`)."""
    if not name:
        return LAST_LAYER
    rate = 1e-4 if name == "late" else 3e-5
    return Layers(name, minutes or load_recipe("default").minutes, rate, 6.0)


@dataclass(frozen=True)
class Contender:
    """A row of the table."""

    name: str
    group: Group
    recipe: str
    changes: tuple[str, ...] = ()
    at_start: bool = False  # measured before anything is trained

    @property
    def has_grid(self) -> bool:
        """Whether its learning rate is chosen by its own result."""
        return self.group in ("rival", "supervised")

    @property
    def starts(self) -> tuple[str, ...]:
        """Where it may begin: both starts for a rival; the oracle is ours but for the mining."""
        return STARTS if self.has_grid and self.name != CEILING else ("",)

    def entry(
        self,
        rate: float | None = None,
        steps: int | None = None,
        start: str = "",
        layers: Layers = LAST_LAYER,
    ) -> Entry:
        """Its run at a learning rate, with so many steps instead of the recipe's, from this start or its own."""
        changes = (*self.changes, *(layers.changes if self.group == "rival" else ()))
        name = self.name
        if start and start != load_recipe(self.recipe).network.initial_fc:
            changes, name = (*changes, f"network.initial_fc={start}"), f"{name} from {start}"
        if rate is not None:
            changes, name = (*changes, f"rounds.lr={rate}"), f"{name} lr {rate:g}"
        if layers.fc_factor and self.group == "rival" and rate is not None:
            changes = (*changes, f"rounds.fc_lr={layers.fc_factor * rate}")
        if self.name == "default" and layers.minutes:
            changes = (*changes, f"minutes={layers.minutes}")
        if steps is not None:
            changes, name = (*changes, "rounds.epochs=0.0", f"rounds.steps={steps}"), f"{name} {steps} steps"
        return Entry(name, changes, self.recipe)


def _start(name: str, recipe: str, *changes: str) -> Contender:
    return Contender(name, "baseline", recipe, (*changes, "rounds.steps=1"), at_start=True)


def _variant(name: str, variant: str) -> Contender:
    # Without the guard of `fast`, which skips rounds where mined pairs are inconsistent: the row measures the method.
    return Contender(name, "ours", "fast", (f'rounds.method.variant="{variant}"', "guard=false", ONE_SIZE))


CONTENDERS: tuple[Contender, ...] = (
    _start(PRETRAINED, "paper-small", "network.initial_fc=random", "network.bias=false"),
    _start(WHITENED, "paper-small"),
    _start("views start", "fast", ONE_SIZE),
    _variant("A", "A"),
    _variant("C", "C"),
    _variant("D-anchor", "D-anchor"),
    Contender(YARDSTICK, "ours", "fast", (ONE_SIZE,)),
    Contender("default", "ours", "default", (ONE_SIZE,)),
    *(
        Contender(name, "rival", name)
        for name in (
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
    ),
    *(Contender(name, "supervised", name) for name in ("arcface", "gem-ap", CEILING)),
)


@dataclass(frozen=True)
class _Result:
    """A contender on one set: its runs, one for each seed, at the rate that was best for it."""

    contender: Contender
    place: LabelledSet
    outcomes: tuple[Outcome, ...]
    grid: dict[
        str, float
    ]  # mAP of the first seed by learning rate and start; empty where there was no choice

    @property
    def maps(self) -> list[float]:
        return [one.start if self.contender.at_start else one.map for one in self.outcomes]

    @property
    def recalls(self) -> list[float]:
        return [one.start_recall if self.contender.at_start else one.recall for one in self.outcomes]


def run(images: Path | None, out: Path, options: PaperOptions) -> str:
    """Run what is not run yet; write rivals.md, rivals.json and rivals.html under `out`; give back the table.

    Rows that are not asked for are left out, but for those that the table cannot do without.
    """
    if images is not None or options.benchmarks or not options.data:
        raise UserError("The rivals are compared on labelled sets: give --data labels.csv, once a set.")
    if options.recipe or options.recipe_changes:
        raise UserError("The rivals have recipes of their own: leave --recipe and --set out.")
    if options.layers and options.budget == "minutes":
        raise UserError("With --layers all train as long as default: leave --budget out.")
    rows = [name.strip() for name in options.rows.split(",") if name.strip()]
    if unknown := set(rows) - {one.name for one in CONTENDERS}:
        known = ", ".join(one.name for one in CONTENDERS)
        raise UserError(f"There is no row {sorted(unknown)[0]!r}: choose from {known}.")
    chosen = [one for one in CONTENDERS if not rows or one.name in NEEDED | set(rows)]
    layers, seeds = choose_layers(options.layers, options.minutes), range(options.seeds)
    budget, parallel = options.budget, options.parallel
    label_files = [Path(file) for file in options.data]
    name = f"rivals-{layers.name}" if layers.name else "rivals"
    sets = find_sets(label_files)
    results: list[_Result] = []
    without: list[str] = []
    for place in sets:
        found, reasons = _on_set(chosen, place, seeds, out, (budget, layers), parallel)
        results += found
        without += reasons
    table_rows = [_row(one, results) for one in results]
    table = _table(table_rows, sets, _about(seeds, budget, layers)) + "".join(
        f"Without a result: {why}\n" for why in without
    )
    results_table = {"budget": budget, "rows": [asdict(row) for row in table_rows], "without": without}
    with whole_file(out / f"{name}.json") as scratch:
        scratch.write_text(json.dumps(results_table, indent=1))
    with whole_file(out / f"{name}.md") as scratch:
        scratch.write_text(table)
    write_rivals(
        out / f"{name}.html",
        table_rows,
        about=_about(seeds, budget, layers),
        lines=(PRETRAINED, WHITENED),
        without=without,
    )
    return table


def _on_set(
    chosen: Sequence[Contender],
    place: LabelledSet,
    seeds: Sequence[int],
    out: Path,
    how: tuple[Budget, Layers],
    parallel: int,
) -> tuple[list[_Result], list[str]]:
    """The results on a set, and why a contender has none."""
    (budget, layers), (first, *rest) = how, seeds
    steps: dict[str, int] = {}
    if budget == "minutes":
        steps = _steps_in_the_same_time(chosen, place, first, out, parallel)
    # The grid, on the first seed: every start at the middle rate, then the other rates at the better start.
    best: dict[str, tuple[Entry, Outcome]] = {}
    grids: dict[str, dict[str, float]] = {one.name: {} for one in chosen}
    starts = {one.name: one.starts[0] for one in chosen}
    failed: dict[str, str] = {}

    def run(tried: Sequence[tuple[Contender, float | None, str]]) -> None:
        entries = [one.entry(rate, steps.get(one.name), start, layers) for one, rate, start in tried]
        outcomes = try_all([(entry, place, first) for entry in entries], out, parallel)
        for (one, rate, start), entry, outcome in zip(tried, entries, outcomes, strict=True):
            if isinstance(outcome, UserError):
                failed[one.name] = str(outcome)
                continue
            if rate is not None:
                grids[one.name][f"{rate:g}" + (f", {start}" if start else "")] = outcome.map
            if one.name not in best or outcome.map > best[one.name][1].map:
                best[one.name] = entry, outcome
                starts[one.name] = start

    rates = {one.name: layers.rates if one.group == "rival" else LEARNING_RATES for one in chosen}
    middle = {name: MIDDLE_RATE if MIDDLE_RATE in some else some[0] for name, some in rates.items()}
    run([(one, middle[one.name] if one.has_grid else None, start) for one in chosen for start in one.starts])
    others = [(one, rate) for one in chosen if one.has_grid for rate in rates[one.name]]
    run([(one, rate, starts[one.name]) for one, rate in others if rate != middle[one.name]])
    for name in NEEDED - best.keys():
        raise UserError(failed[name])
    # The other seeds, at the rate that was best.
    results = []
    for one in chosen:
        if one.name in best:
            entry, outcome = best[one.name]
            later = run_all([(entry, place, seed) for seed in rest], out, parallel)
            results.append(_Result(one, place, (outcome, *later), grids[one.name]))
    return results, [reason for name, reason in failed.items() if name not in best]


def _steps_in_the_same_time(
    chosen: Sequence[Contender], place: LabelledSet, seed: int, out: Path, parallel: int
) -> dict[str, int]:
    """Steps of each contender that take as long as the training of `fast`, by the pace of a run of its own."""
    timed = [one for one in chosen if one.has_grid]
    # Without its guard, which may leave all rounds out: the rivals would have no time at all.
    fast = Contender(YARDSTICK, "ours", "fast", (ONE_SIZE, "guard=false")).entry()
    (yardstick,) = run_all([(fast, place, seed)], out, parallel)
    outcomes = try_all([(one.entry(MIDDLE_RATE), place, seed) for one in timed], out, parallel)
    steps = {}
    for one, outcome in zip(timed, outcomes, strict=True):
        if isinstance(outcome, Outcome):
            fitting = yardstick.training_seconds * outcome.steps / outcome.training_seconds
            steps[one.name] = max(1, round(fitting / len(load_recipe(one.recipe).rounds)))
    return steps


def _row(result: _Result, results: Sequence[_Result]) -> RivalRow:
    """The numbers of a row; the share of the supervised gap by the pretrained and the oracle's row of the set."""
    on_set = {one.contender.name: one for one in results if one.place == result.place}
    floor, ceiling = mean(on_set[PRETRAINED].maps), mean(on_set[CEILING].maps)
    value, trained = mean(result.maps), not result.contender.at_start
    ours = [mean(one.maps) for one in on_set.values() if one.contender.group == "ours"]
    grid = result.grid
    return RivalRow(
        collection=result.place.name,
        name=result.contender.name,
        group=result.contender.group,
        map=value,
        interval=interval(result.maps),
        maps=tuple(result.maps),
        recall=mean(result.recalls),
        minutes=mean(one.training_seconds for one in result.outcomes) / 60 if trained else 0.0,
        images=round(mean(one.images for one in result.outcomes)) if trained else 0,
        share=(value - floor) / (ceiling - floor) if ceiling != floor else None,
        rate=max(grid, key=lambda rate: grid[rate]) if grid else None,
        grid=grid,
        beats_ours=result.contender.group == "rival" and value > max(ours),
        runs=tuple(one.run for one in result.outcomes),
    )


def _about(seeds: Sequence[int], budget: Budget, layers: Layers) -> str:
    same = "saw as many images as fast" if budget == "images" else "trained for as many minutes as fast"
    rates = ", ".join(f"{rate:g}" for rate in LEARNING_RATES)
    several = f"means of seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    more = (
        f"Rivals trained {layers.name} layers for {layers.minutes:g} minutes, as default did its late layers, at a "
        f"rate of {layers.rate:g} ({layers.fc_factor * layers.rate:g} for the last layer). "
    )
    return (
        f"Every rival and supervised anchor {same}, at the better of two starts (PCA, ours) and the best learning "
        f"rate of {rates} by its own mAP; {several}. {more if layers.name else ''}"
        "Minutes are those of training alone, without features and start. "
        "Share: (mAP - pretrained) / (oracle - pretrained). Supervised rows learned from the labels. "
        "D and default have their guard, which skips rounds where mined pairs are inconsistent; "
        "A, C and D-anchor have none."
    )


def _table(rows: Sequence[RivalRow], sets: Sequence[LabelledSet], about: str) -> str:
    """One table a set; a rival that beats all of ours is bold."""
    lines = [about, ""]
    for place in sets:
        lines += [
            f"**{place.name}**",
            "",
            "| | kind | mAP | R@1 | share of the gap | minutes | images seen | lr, start |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in rows:
            if row.collection == place.name:
                shown = replace(row, name=f"**{row.name}**") if row.beats_ours else row
                lines.append("| " + " | ".join(_cells(shown)) + " |")
        lines.append("")
    return "\n".join(lines)


def _cells(row: RivalRow) -> list[str]:
    value = f"{row.map:.1f}{row.interval}"
    return [
        row.name,
        row.group,
        f"**{value}**" if row.beats_ours else value,
        f"{row.recall:.1f}",
        "" if row.share is None else f"{row.share:.0%}",
        f"{row.minutes:.1f}" if row.images else "",
        f"{row.images:,}" if row.images else "",
        row.rate or "",
    ]
