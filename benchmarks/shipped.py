"""The shipped recipes, beside the pretrained network and its PCA whitening, on collections with labels.

    python benchmarks/shipped.py LABELS.csv ... --out FOLDER [--recipes fast,default] [--seeds 0,1,2] [--minutes 120]
        [--backbone NAME] [--weights FILE] [--photos 500: about as many, every so manieth of the list]

Every descriptor has the shipped size and views; trained ones are measured with one view, too. One line of JSON
a measurement goes to FOLDER/measured.jsonl, and a second call makes what is missing there; then the table is printed.
"""

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np

from insclr.data.labels import Labels, read_labels
from insclr.describe.pipeline import describe_images
from insclr.evaluation.evaluate import evaluate_labels
from insclr.jobs.train import train
from insclr.jobs.whiten import whiten_model
from insclr.model.model_file import Model, resolve_model
from insclr.recipe import load_recipe
from insclr.tracking import read_metrics
from insclr.training.view_size import fit_size
from insclr_rivals.runs import interval


@dataclass(frozen=True)
class Measured:
    """What one descriptor finds in one collection."""

    collection: str
    who: str  # pretrained, whitened or a recipe
    seed: int
    map: float
    recall_at_1: float
    recall_at_10: float
    one_view: float | None = None  # mAP
    seconds: float | None = None  # of training, processor time


class Bench:
    """The measurements of one folder."""

    def __init__(self, folder: Path, changes: tuple[str, ...], minutes: float | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.changes, self.minutes = folder, changes, minutes
        self.file = folder / "measured.jsonl"
        self.file.touch()

    def all(self) -> list[Measured]:
        """What was measured so far."""
        return [Measured(**json.loads(line)) for line in self.file.read_text().splitlines()]

    def missing(self, collection: str, who: str, seed: int) -> bool:
        """Whether this was not measured yet."""
        return not any((m.collection, m.who, m.seed) == (collection, who, seed) for m in self.all())

    def add(self, made: Measured) -> None:
        """Keep a measurement."""
        with self.file.open("a") as out:
            out.write(json.dumps(asdict(made)) + "\n")
        print(made, flush=True)

    def untrained(self, name: str, labels: Labels, recipe_name: str) -> None:
        """The pretrained network and its whitening, at the size and with the views of a recipe."""
        recipe, _ = fit_size(load_recipe(recipe_name, self.changes), labels.images)
        weights = recipe.network.weights and f"@{recipe.network.weights}"
        pretrained = resolve_model(f"pretrained:{recipe.network.backbone}{weights}")
        pretrained = replace(pretrained, recipe=pretrained.recipe.with_(descriptor=recipe.descriptor))
        if self.missing(name, "pretrained", 0):
            self.add(_measured(name, "pretrained", 0, pretrained, labels))
        if self.missing(name, "whitened", 0):
            file = self.folder / f"{name}-whitened.safetensors"
            whiten_model(pretrained, labels.images, file, dim=recipe.network.dim, power=0.25)
            self.add(_measured(name, "whitened", 0, resolve_model(file), labels))

    def trained(self, name: str, labels_file: Path, labels: Labels, recipe: str, seed: int) -> None:
        """One run of a recipe; a run that was interrupted goes on."""
        out = self.folder / f"{name}-{recipe}-{seed}"
        limit = () if self.minutes is None else (f"minutes={self.minutes}",)
        began = time.process_time()
        model = train(
            labels.images,
            out,
            recipe,
            changes=(f"seed={seed}", *self.changes, *(limit if recipe != "fast" else ())),
            labels=labels_file,
            cache=self.folder / f"{name}-features",
            resume=out.exists(),
        )
        seconds = time.process_time() - began
        one_view = [line["map"] for line in read_metrics(out) if line.get("map") is not None][-1]
        made = _measured(name, recipe, seed, model, labels)
        self.add(replace(made, one_view=one_view, seconds=seconds))


def _measured(collection: str, who: str, seed: int, model: Model, labels: Labels) -> Measured:
    found = evaluate_labels(describe_images(model, labels.images), labels)
    return Measured(collection, who, seed, found.map, found.recall(1), found.recall(10))


def table(measured: list[Measured]) -> Iterator[str]:
    """A row a collection and descriptor: means, and the 95 % interval where there are several seeds."""
    yield "| collection | | mAP | one view | R@1 | R@10 | seeds | seconds |"
    yield "|---|---|---|---|---|---|---|---|"
    rows: dict[tuple[str, str], list[Measured]] = {}
    for made in measured:
        rows.setdefault((made.collection, made.who), []).append(made)
    for (collection, who), runs in sorted(rows.items()):
        one_view = [run.one_view for run in runs if run.one_view is not None]
        seconds = [run.seconds for run in runs if run.seconds is not None]
        cells = (
            _mean([run.map for run in runs]),
            _mean(one_view),
            _mean([run.recall_at_1 for run in runs]),
            _mean([run.recall_at_10 for run in runs]),
            ", ".join(str(run.seed) for run in runs) if one_view else "",
            f"{mean(seconds):.0f}" if seconds else "",
        )
        yield f"| {collection} | {who} | {' | '.join(cells)} |"


def _mean(values: list[float]) -> str:
    return f"{mean(values):.1f}{interval(values)}" if values else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("labels", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", default="fast,default")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--minutes", type=float, help="time limit of the recipes that have one")
    parser.add_argument("--backbone", help="instead of the recipe's")
    parser.add_argument("--weights", type=Path, help="file with the backbone's weights")
    parser.add_argument("--photos", type=int, help="of a larger collection, about so many")
    wanted = parser.parse_args()
    named = {"backbone": wanted.backbone, "weights": wanted.weights and str(wanted.weights)}
    changes = tuple(f"network.{key}={value!r}" for key, value in named.items() if value)
    bench = Bench(wanted.out, changes, wanted.minutes)
    recipes = wanted.recipes.split(",")
    for file in wanted.labels:
        labels, name = read_labels(file), file.absolute().parent.name
        if wanted.photos:
            labels = labels.subset(np.arange(0, len(labels), max(1, round(len(labels) / wanted.photos))))
        bench.untrained(name, labels, recipes[0])
        for recipe in recipes:
            for seed in map(int, wanted.seeds.split(",")):
                if bench.missing(name, recipe, seed):
                    bench.trained(name, file, labels, recipe, seed)
        shutil.rmtree(bench.folder / f"{name}-features", ignore_errors=True)
    print("\n".join(table(bench.all())))


if __name__ == "__main__":
    main()
