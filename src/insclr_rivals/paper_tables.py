"""The paper's tables and figures: for each, the runs it is made of and the numbers that the paper prints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from insclr.errors import UserError
from insclr.methods.insclr import InsclrSettings
from insclr.options import PaperOptions
from insclr.recipe import load_recipe
from insclr.shards import shard_of
from insclr_rivals.paper_figures import Figure, draw_lines, draw_mining, draw_retrieval
from insclr_rivals.paper_page import write_table
from insclr_rivals.runs import Entry, LabelledSet, Outcome, find_benchmarks, find_sets, run_all

ON_BENCHMARKS, ON_OWN_SETS = "paper-gldv2", "paper-small"  # recipes where --recipe names none
Rows = Callable[[str], tuple[Entry, ...]]  # of T_m and phi: a number, or auto
Draw = Callable[[Sequence[tuple[Entry, list[Outcome]]], Sequence[LabelledSet], Path], list[Figure]]


@dataclass(frozen=True)
class Table:
    """A table of the paper, or the data of one of its figures."""

    name: str
    title: str
    rows: Rows
    recipe: str = ON_BENCHMARKS
    draw: Draw | None = None
    distractors: str = "R1M"  # what the columns of --distractors are called

    def run(self, images: Path | None, out: Path, options: PaperOptions) -> str:
        """Run and measure what is not there yet; write NAME.md, NAME.json and NAME.html under `out`; the table.

        Every run is kept under `out`, and shared by all tables that need it. The ranks of torchrun share each run.
        """
        if options.layers:
            raise UserError("Every row of this table is trained by its recipe: leave --layers out.")
        places = find_places(images, options, self.distractors, out)
        recipe = options.recipe or (self.recipe if images is not None else ON_OWN_SETS)
        method = load_recipe(recipe, options.recipe_changes).rounds[0].method
        measures = isinstance(method, InsclrSettings) and method.batch_threshold == "auto"
        entries = choose_rows(self.rows("auto" if measures else "0.6"), options.rows)
        if self.draw is draw_mining and any(place.labels is None for place in places):
            raise UserError(
                "This figure counts right pairs: give the labels of the training images by --labels."
            )
        without = [one.name for one in entries if one.needs_labels and places[0].labels is None]
        entries = [
            replace(one, recipe=one.recipe or recipe, changes=(*options.recipe_changes, *one.changes))
            for one in entries
            if one.name not in without
        ]
        done = run_entries(entries, places, range(options.seeds), out)
        if not shard_of("").first:
            return ""
        notes = [f"{name} learns from labels: it is left out without --labels." for name in without]
        figures = self.draw(done, places, out) if self.draw else []
        return write_table(out / self.name, self.title, done, notes, figures)


def run_entries(
    entries: Sequence[Entry], places: Sequence[LabelledSet], seeds: Sequence[int], out: Path
) -> list[tuple[Entry, list[Outcome]]]:
    """The outcomes of each entry, on every place, of every seed; a network that is not trained has one seed."""
    jobs = [
        (entry, place, seed)
        for place in places
        for seed in seeds
        for entry in entries
        if entry.network == "trained" or (seed == seeds[0] and entry.network != "printed")
    ]
    outcomes = run_all(jobs, out)
    return [
        (entry, [one for job, one in zip(jobs, outcomes, strict=True) if job[0] is entry])
        for entry in entries
    ]


def choose_rows(entries: Sequence[Entry], names: str) -> list[Entry]:
    """The entries of these names, separated by commas; all where none is named."""
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    if unknown := wanted - {entry.name for entry in entries}:
        known = ", ".join(entry.name for entry in entries)
        raise UserError(f"There is no row {sorted(unknown)[0]!r}: choose from {known}.")
    return [entry for entry in entries if not wanted or entry.name in wanted]


def find_places(images: Path | None, options: PaperOptions, distractors: str, out: Path) -> list[LabelledSet]:
    """Where a table is made: on labelled sets, or on images to train on and protocols that measure."""
    if (images is None) == (not options.data) or (images is None) != (not options.benchmarks):
        raise UserError(
            "Give either IMAGES to train on with --protocol NAME=DIR to measure, or --data labels.csv for own sets."
        )
    measuring = options.change({"weights": ""})  # those of the recipe's backbone, not of trained models
    if images is None:
        return find_sets(options, measuring, out)
    benchmarks = find_benchmarks(options, distractors)
    return [LabelledSet(images.stem, images, options.labels, benchmarks, measuring)]


def _name_numbers(columns: Sequence[str], values: Sequence[float]) -> Mapping[str, float]:
    return dict(zip(columns, values, strict=True))


_FOUR = tuple(f"{name} {setting}" for setting in ("medium", "hard") for name in ("roxford5k", "rparis6k"))
_EIGHT = tuple(
    f"{name} {setting}"
    for setting in ("medium", "hard")
    for name in ("roxford5k", "roxford5k+R1M", "rparis6k", "rparis6k+R1M")
)
_IMAGENET = Entry("ImageNet", network="pretrained", printed=_name_numbers(_FOUR, (23.0, 52.0, 6.5, 25.9)))


def _variant(name: str, *values: float) -> Entry:
    return Entry(name, (f'rounds.method.variant="{name}"',), printed=_name_numbers(_FOUR, values))


def _table1(_: str) -> tuple[Entry, ...]:
    return (
        _IMAGENET,
        Entry("ImageNet + PCA", network="pca", printed=_name_numbers(_FOUR, (40.9, 65.6, 30.5, 41.7))),
        Entry(
            "ArcFace",
            recipe="gldv2-arcface",
            printed=_name_numbers(_FOUR, (76.2, 86.8, 55.1, 72.5)),
            needs_labels=True,
        ),
        _variant("A", 57.6, 68.1, 30.3, 43.7),
        _variant("B", 61.0, 73.4, 35.4, 52.6),
        _variant("C", 65.2, 75.1, 39.9, 55.7),
        _variant("D-anchor", 67.4, 75.6, 42.2, 56.5),
        _variant("D", 73.1, 77.6, 48.3, 59.5),
    )


def _table2(threshold: str) -> tuple[Entry, ...]:
    def row(name: str, *values: float, **changes: object) -> Entry:
        settings = {"aggregate": "mean", "choose": "topk", "sparsity": "off", "repeats": 2} | changes
        keys = tuple(f"rounds.method.{key}={value}" for key, value in settings.items())
        return Entry(name, keys, printed=_name_numbers(_FOUR, values))

    sparse = {"sparsity": threshold}
    by_threshold = {"choose": "threshold", "memory_threshold": threshold}
    return (
        row("avg topk", 71.3, 77.0, 45.5, 58.3),
        row("avg topk w/ spa.", 70.4, 77.1, 44.8, 58.8, **sparse),
        row("avg threshold", 68.4, 76.3, 42.0, 57.4, **by_threshold),
        row("max topk", 70.6, 77.2, 44.5, 58.7, aggregate="max"),
        row("max topk w/ spa.", 70.4, 77.2, 44.0, 58.5, aggregate="max", **sparse),
        row("max threshold", 61.1, 71.5, 34.9, 47.6, aggregate="max", **by_threshold),
        row("avg topk 1x", 69.5, 76.2, 42.8, 57.2, repeats=1),
        row("avg topk 4x", 73.1, 77.6, 48.3, 59.5, repeats=4),
    )


def _batch(_: str) -> tuple[Entry, ...]:
    rows = [Entry("nn", ("rounds.method.strategy=nn",), line="nn")]
    for strategy in ("augmented", "plain", "relative", "multiscale"):
        for value in (0.5, 0.6, 0.65, 0.7, 0.8):
            keys = (f"rounds.method.strategy={strategy}", f"rounds.method.batch_threshold={value}")
            medium = {"roxford5k medium": 35.7, "rparis6k medium": 39.5} if strategy == "augmented" else {}
            rows.append(Entry(f"{strategy} {value}", keys, printed=medium, x=value, line=strategy))
    return tuple(rows)


def _sweep(symbol: str, key: str, values: Sequence[int]) -> Rows:
    rows = tuple(Entry(f"{symbol} {n}", (f"rounds.method.{key}={n}",), x=n, line=symbol) for n in values)
    return lambda _: rows


def _ours(printed: Mapping[str, float], name: str = "InsCLR") -> Entry:
    return Entry(name, printed=printed)


def _table3(_: str) -> tuple[Entry, ...]:
    def rival(name: str, recipe: str, *values: float) -> Entry:
        return Entry(name, recipe=f"gldv2-{recipe}", printed=_name_numbers(_EIGHT, values))

    return (
        rival("DeepCluster", "deepcluster", 29.8, 9.8, 49.1, 13.3, 9.0, 0.9, 26.0, 3.2),
        rival("SimCLR", "simclr", 22.2, 9.4, 50.5, 14.4, 6.3, 2.2, 19.6, 1.1),
        rival("MoCo v2", "moco-v2", 27.3, 11.0, 65.1, 17.4, 6.1, 0.8, 38.4, 3.2),
        rival("BYOL", "byol", 11.0, 1.9, 28.4, 3.7, 2.3, 0.1, 8.8, 0.2),
        rival("PCL", "pcl", 29.2, 10.3, 59.3, 17.6, 7.9, 0.5, 28.9, 2.6),
        rival("SwAV", "swav", 19.9, 7.1, 38.5, 10.4, 3.7, 0.1, 10.5, 0.4),
        _ours(_name_numbers(_EIGHT, (73.1, 56.2, 77.6, 56.7, 48.3, 29.6, 59.5, 29.2))),
    )


def _table4(_: str) -> tuple[Entry, ...]:
    columns = ("oxford5k", "oxford5k+100k", "paris6k", "paris6k+100k")
    return (
        Entry(
            "Iscen et al. 2018", network="printed", printed=_name_numbers(columns, (78.2, 72.6, 85.1, 78.0))
        ),
        _ours(_name_numbers(columns, (92.0, 91.4, 94.2, 90.5))),
    )


def _table5(_: str) -> tuple[Entry, ...]:
    columns = ("gldv2 public", "gldv2 private")  # its validation and test queries
    return (
        Entry("Weyand et al. 2020", network="printed", printed=_name_numbers(columns, (23.30, 25.57))),
        replace(_IMAGENET, printed=_name_numbers(columns, (0.89, 0.52))),
        _ours(_name_numbers(columns, (13.39, 13.71))),
    )


def _table6(_: str) -> tuple[Entry, ...]:
    without = ("rounds.method.variant=A", "rounds.method.neighbours=1")
    return (
        replace(_IMAGENET, name="ImageNet (w/o PCA)", printed={"instre": 32.7}),
        Entry("Iscen et al. 2017", network="printed", printed={"instre": 62.6}),
        Entry("Iscen et al. 2018", network="printed", printed={"instre": 57.7}),
        Entry("InsCLR w/o P.M. (nn=1)", without, printed={"instre": 55.6}),
        _ours({"instre": 76.2}),
    )


def _two_models(_: str) -> tuple[Entry, ...]:
    return (_ours({}), Entry("MoCo v2", recipe="gldv2-moco-v2"))


TABLE1 = Table("table1", "Ablation on pseudo positive mining", _table1)
TABLE2 = Table("table2", "Ablation on mining positives in the memory bank", _table2)
FIGURE_BATCH = Table(
    "figure-batch", "Ablation on the positive selection in mini-batches, by T_b", _batch, draw=draw_lines
)
NEIGHBOURS = Table(
    "neighbours", "Images in a tuple, N_b", _sweep("N_b", "neighbours", (1, 3, 5, 7)), draw=draw_lines
)
POOL = Table(
    "pool", "Size of the candidate pool, P", _sweep("P", "pool", (50, 100, 250, 500, 1000)), draw=draw_lines
)
TABLE3 = Table("table3", "Comparison with self-supervised methods", _table3)
TABLE4 = Table("table4", "Original Oxford5k and Paris6k", _table4, distractors="100k")
TABLE5 = Table("table5", "Retrieval task of GLDv2, mAP@100", _table5)
TABLE6 = Table("table6", "INSTRE", _table6, recipe="paper-instre")
FIGURE_MINING = Table(
    "figure-mining", "Pseudo positives during training", lambda _: (_ours({}),), draw=draw_mining
)
FIGURE_RETRIEVAL = Table("figure-retrieval", "First results of two models", _two_models, draw=draw_retrieval)
