"""The paper's ablation tables on one's own labelled sets: a recipe, changed setting by setting."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from insclr.errors import UserError
from insclr.files import whole_file
from insclr_rivals.runs import Entry, LabelledSet, Outcome, find_sets, interval, run_all


@dataclass(frozen=True)
class Table:
    """A list of entries and the recipe that they change: one whose method reads what they set."""

    recipe: str
    entries: tuple[Entry, ...]

    def run(
        self,
        label_files: Sequence[Path],
        seeds: Sequence[int],
        out: Path,
        *,
        recipe: str = "",
        rows: Sequence[str] = (),
        budget: str = "images",
        parallel: int = 2,
    ) -> str:
        """Run what is not run yet, and write table.md and results.json under `out`; give back the table.

        Every run is an `insclr train --resume` in a process of its own, so an interrupted table can be continued.
        """
        if budget != "images":
            raise UserError("Every row of this table sees as many images as its recipe: leave --budget out.")
        if unknown := set(rows) - {entry.name for entry in self.entries}:
            known = ", ".join(entry.name for entry in self.entries)
            raise UserError(f"There is no row {sorted(unknown)[0]!r}: choose from {known}.")
        sets = find_sets(label_files)
        entries = [
            replace(entry, recipe=recipe or self.recipe)
            for entry in self.entries
            if not rows or entry.name in rows
        ]
        outcomes = run_all(
            [(entry, one, seed) for one in sets for seed in seeds for entry in entries], out, parallel
        )
        table = _write_table(outcomes, entries, sets)
        with whole_file(out / "results.json") as scratch:
            scratch.write_text(json.dumps([vars(outcome) for outcome in outcomes], indent=1))
        with whole_file(out / "table.md") as scratch:
            scratch.write_text(table)
        return table


def _write_table(done: Sequence[Outcome], entries: Sequence[Entry], sets: Sequence[LabelledSet]) -> str:
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


# The paper's printed numbers, on cached features of a small collection, which they were not made for.
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


def _make_printed(variant: str) -> Entry:
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


METHODS = Table(
    "fast", tuple(Entry(name, (f'rounds.method.variant="{name}"',)) for name in ("A", "C", "D-anchor", "D"))
)
PRINTED = Table("paper-small", tuple(_make_printed(name) for name in ("A", "B", "C", "D-anchor", "D")))
MEMORY = Table(
    "paper-small",
    tuple(
        _memory(aggregate, choose, sparsity, repeats)
        for aggregate in ("mean", "max")
        for choose, sparsity in (("topk", "off"), ("topk", "auto"), ("threshold", "off"))
        for repeats in (1, 2, 4)
    ),
)
BATCH = Table(
    "paper-small",
    (
        _batch("nn", None),
        *(
            _batch(strategy, threshold)
            for strategy in ("augmented", "plain", "relative", "multiscale")
            for threshold in (0.5, 0.6, 0.65, 0.7, 0.8)
        ),
    ),
)
NEIGHBOURS = Table("fast", tuple(Entry(f"N_b {n}", (f"rounds.method.neighbours={n}",)) for n in (1, 3, 5, 7)))
POOL = Table("fast", tuple(Entry(f"P {n}", (f"rounds.method.pool={n}",)) for n in (50, 100, 250, 500, 1000)))
