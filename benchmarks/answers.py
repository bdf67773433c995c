"""What answers are worth: a person simulated from labels, who answers screens of twelve and has the model learn.

    python benchmarks/answers.py LABELS.csv --out FOLDER --cache CACHE [--screens 20,60,120,200] [--seed 0]
                                 [--order chosen|random] [--wrong 0.02]

Every part is that of `insclr serve` and `insclr train --answers`: the store's journal, the choice of screens, the
run. Only the descriptors in the store are those of the plain view, which the run's features give without reading the
images again; `insclr index` describes a second view too. One line of JSON a point goes to FOLDER/curve.jsonl.
"""

import argparse
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from insclr.data import loader
from insclr.data.images import ImageList, Skipped
from insclr.data.labels import read_labels
from insclr.errors import UserError
from insclr.feedback.asking import Asking, feedback_groups
from insclr.feedback.entries import answer
from insclr.feedback.feedback import answer_links
from insclr.methods.method import Needs
from insclr.model.model_file import Model
from insclr.ranks import Ranks
from insclr.recipe import load_recipe
from insclr.store import Entry, IndexedImage, Store, StoreInfo, create_store, open_store
from insclr.tracking import read_metrics
from insclr.training.run import train
from insclr.training.state import RoundFeatures

CANDIDATES = 12
NEAR = 100  # random screens draw from so many of a query's nearest: among all photos hardly any would be the same


@dataclass(frozen=True)
class Person:
    """Answers by the labels, and wrongly so often."""

    instances: np.ndarray  # (N,)
    wrong: float
    chance: np.random.Generator

    def same(self, one: int, other: int) -> bool:
        """What the person says of two images."""
        truth = bool(self.instances[one] == self.instances[other])
        return not truth if self.chance.random() < self.wrong else truth


class Collection:
    """The images of a labels file with their instances and the features that a run caches."""

    def __init__(self, labels_file: Path, cache: Path, recipe: str) -> None:
        labels = read_labels(labels_file)
        self.labels_file, self.cache, self.recipe = labels_file, cache, recipe
        self.images = ImageList(labels.root.absolute(), labels.paths)
        self.instances = labels.instance_ids()
        self.files = [self.images.file(i).stat() for i in range(len(labels))]

    def train(self, out: Path, seed: int, answers: Path | None) -> tuple[Model, float]:
        """A model and its mAP."""
        shutil.rmtree(out, ignore_errors=True)
        model = train(
            self.images,
            out,
            self.recipe,
            changes=(f"seed={seed}",),
            labels=self.labels_file,
            cache=self.cache,
            feedback=feedback_groups(answers, self.images) if answers else None,
        )
        return model, [line["map"] for line in read_metrics(out) if line.get("map") is not None][-1]

    def describe(self, model: Model) -> np.ndarray:
        """Unit descriptors (N, D) of the plain views."""
        recipe = load_recipe(self.recipe)
        features = RoundFeatures(
            recipe, loader.Collection(self.images, 0, Skipped()), self.cache, Ranks(), "auto"
        )
        pooled = features.pool_features(model.network, recipe.rounds[0], Needs(views=True))
        with torch.no_grad():
            return model.network.describe_pooled(pooled.plain).float().numpy()

    def store(self, folder: Path, model: Model, journal: list[Entry]) -> Store:
        """A store of the model's descriptors, with what was said before; its folder stands in for a fingerprint."""
        descriptors = self.describe(model)
        shutil.rmtree(folder, ignore_errors=True)
        info = StoreInfo("simulated", str(folder), descriptors.shape[1], self.images.root)
        store = create_store(folder, info)
        # The number of an image stands in for the hash of its content.
        rows = [
            IndexedImage(path, f"{i:032x}", state.st_size, state.st_mtime_ns)
            for i, (path, state) in enumerate(zip(self.images.paths, self.files, strict=True))
        ]
        store.upsert(rows, descriptors)
        store.append(journal)
        return store


def ask(
    store: Store, person: Person, screens: int, order: str, chance: np.random.Generator
) -> tuple[int, int]:
    """Let the person answer so many screens; gives the answers and how many said "the same"."""
    asking = Asking(store)
    answers = yes = 0
    for _ in range(screens):
        query, candidates = chosen(asking) if order == "chosen" else drawn(store, asking, chance)
        if not candidates:
            break
        image = [int(name, 16) for name in asking.hashes]
        said = {one: person.same(image[query], image[one]) for one in candidates}
        names = asking.hashes
        entry = answer(
            names[query],
            [names[one] for one, same in said.items() if same],
            [names[one] for one, same in said.items() if not same],
            store.info.fingerprint,
            asking.predict(names[query], [names[one] for one in said]),
        )
        store.append([entry])
        asking.add_answers(answer_links(entry))
        answers, yes = answers + len(said), yes + sum(said.values())
    return answers, yes


def chosen(asking: Asking) -> tuple[int, tuple[int, ...]]:
    screen = asking.screen()
    return (screen.query, screen.candidates) if screen else (0, ())


def drawn(store: Store, asking: Asking, chance: np.random.Generator) -> tuple[int, tuple[int, ...]]:
    """A random image and twelve random ones of its nearest."""
    query = int(chance.integers(len(asking.ids)))
    place = {int(one): at for at, one in enumerate(asking.ids)}
    found = store.search(store.descriptors(asking.ids[[query]]), NEAR + 1).ids[0]
    near = [place[int(one)] for one in found if place[int(one)] != query]
    return query, tuple(int(one) for one in chance.choice(near, CANDIDATES, replace=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--screens", default="20,60,120,200", help="learn after so many screens in all")
    parser.add_argument("--recipe", default="fast")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--order", choices=("chosen", "random"), default="chosen")
    parser.add_argument("--wrong", type=float, default=0.0)
    wanted = parser.parse_args()
    wanted.out.mkdir(parents=True, exist_ok=True)
    data = Collection(wanted.labels, wanted.cache, wanted.recipe)
    chance = np.random.default_rng(wanted.seed)
    person = Person(data.instances, wanted.wrong, np.random.default_rng(wanted.seed + 1))
    model, best = data.train(wanted.out / "run-0", wanted.seed, None)
    store = data.store(wanted.out / "store-0", model, [])
    lines = [{"screens": 0, "map": round(best, 2)}]
    asked = 0
    for point in map(int, wanted.screens.split(",")):
        began = time.monotonic()
        answers, yes = ask(store, person, point - asked, wanted.order, chance)
        asked, took = point, time.monotonic() - began
        journal = store.journal()
        store.close()
        began = time.monotonic()
        try:
            model, found = data.train(wanted.out / f"run-{point}", wanted.seed, Path(store.uri))
        except UserError as error:
            print(error)
            break
        lines.append(
            {
                "screens": point,
                "answers": answers,
                "same": yes,
                "map": round(found, 2),
                "seconds_asking": round(took),
                "seconds_learning": round(time.monotonic() - began),
            }
        )
        print(json.dumps(lines[-1]), flush=True)
        (wanted.out / "curve.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        store = data.store(wanted.out / f"store-{point}", model, journal)
    open_store(store.uri).close()


if __name__ == "__main__":
    main()
