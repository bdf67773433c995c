"""Collections in which many images have no partner: mAP at the start, before each round and at the end of recipes.

    python benchmarks/singles.py LABELS.csv ... --out FOLDER [--shares 30,60,90] [--recipes fast,default] [--seeds 0]

Of most instances one image is left, of the others --images, so that the share of images without a partner is as near
to the one asked for as the number of instances allows; a share of 0 takes the collection as it is. The seed draws
the collection, too. One view; every run has the size of the recipe, or --size. A line of JSON a run goes to
FOLDER/measured.jsonl, and a second call makes what is missing there.
"""

import argparse
import csv
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from insclr.data.labels import Labels, read_labels
from insclr.jobs.train import train
from insclr.recipe import load_recipe
from insclr.tracking import read_metrics


def with_singles(labels: Labels, share: float, images: int, seed: int) -> list[int]:
    """Rows of a collection: one image of most instances, `images` of the others."""
    by_instance: dict[str, list[int]] = {}
    for row, instance in enumerate(labels.instances):
        by_instance.setdefault(instance, []).append(row)
    chance = random.Random(seed)
    names = sorted(by_instance)
    chance.shuffle(names)
    # With m whole instances of n, (n - m) / (n - m + m * images) of the images are single.
    whole = max(2, round(len(names) / (1 + share / (1 - share) * images)))
    rows: list[int] = []
    for place, name in enumerate(names):
        members = by_instance[name]
        rows += chance.sample(members, min(len(members), images if place < whole else 1))
    return sorted(rows)


def write_collection(labels: Labels, rows: list[int], file: Path) -> float:
    """Write the labels of these rows; the share of images without a partner."""
    with file.open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(("path", "instance"))
        table.writerows((labels.images.file(row).resolve(), labels.instances[row]) for row in rows)
    counts = Counter(labels.instances[row] for row in rows)
    return sum(counts[labels.instances[row]] == 1 for row in rows) / len(rows)


def measure(labels_file: Path, recipe: str, out: Path, changes: tuple[str, ...]) -> dict[str, Any]:
    """Train on the images of a labels file; mAP before each round and at the end, and what the guard did."""
    labels = read_labels(labels_file)
    wanted = load_recipe(recipe, changes)
    train(labels.images, out, wanted, labels=labels_file, cache=out.parent / "features", resume=out.exists())
    log = list(read_metrics(out))
    guard = {line["round"]: line["action"] for line in log if line.get("event") == "guard"}
    starts = {line["round"]: line for line in log if line.get("map") is not None}
    end = starts[max(starts)]
    return {
        "start": starts[1]["map"],
        "before": [round(starts[each]["map"], 2) for each in sorted(starts)],
        "end": end["map"],
        "recall_at_1": end["recall_at_1"],
        "pairs": starts[1]["pairs"],
        "pair_precision": starts[1]["pair_precision"],
        "reasons": starts[1]["reasons"][-1:],
        "guard": [guard.get(each, "") for each in range(1, len(wanted.rounds) + 1)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("labels", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shares", default="30,60,90")
    parser.add_argument("--recipes", default="fast,default")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--images", type=int, default=5, help="of every instance that is not single")
    parser.add_argument("--size", type=int, help="side of all views; else as the recipe decides")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "measured.jsonl"
    file.touch()
    done = {tuple(json.loads(line)["run"]) for line in file.read_text().splitlines()}
    for source in asked.labels:
        for share in map(int, asked.shares.split(",")):
            for seed in map(int, asked.seeds.split(",")):
                labels, name = read_labels(source), source.absolute().parent.name
                rows = (
                    with_singles(labels, share / 100, asked.images, seed)
                    if share
                    else list(range(len(labels)))
                )
                folder = asked.out / f"{name}-{share}-{seed}"
                folder.mkdir(exist_ok=True)
                single = write_collection(labels, rows, folder / "labels.csv")
                for recipe in asked.recipes.split(","):
                    run = (name, share, seed, recipe)
                    if run in done:
                        continue
                    side = asked.size
                    sizes = (
                        () if side is None else (f"rounds.plain_size={side}", f"rounds.augmented_size={side}")
                    )
                    found = measure(folder / "labels.csv", recipe, folder / recipe, (f"seed={seed}", *sizes))
                    line = {"run": run, "images": len(rows), "single": round(single, 3), **found}
                    with file.open("a") as out:
                        out.write(json.dumps(line) + "\n")
                    print(line, flush=True)
                shutil.rmtree(folder / "features", ignore_errors=True)


if __name__ == "__main__":
    main()
