"""Do scores hold after Learn? A sample of a set, ten named groups, eight answered screens, `insclr learn`.

    python benchmarks/learned_scores.py LABELS.csv --out FOLDER [--things 34] [--photos 572] [--seed 0]

A person is simulated from the labels. One line of JSON each for the store before and after: mAP, the sure results of
searches for every sixth photo (50 results each), the right ones among them, and the expected calibration error (ECE).
`by_score` leaves out results that names and answers decide.
"""

import argparse
import json
import random
import shutil
from collections import Counter, defaultdict
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

import insclr
from insclr.data.labels import read_labels
from insclr.feedback.asking import Asking
from insclr.feedback.entries import answer, merge_things, name_thing, remove_images
from insclr.feedback.feedback import KnownPairs, read_feedback
from insclr.feedback.names import assign_permanent_id, build_gallery
from insclr.options import SearchOptions
from insclr.retrieval.local_store import uses_local
from insclr.retrieval.query import Query
from insclr.retrieval.score import LIKELY, SURE
from insclr.retrieval.search import search
from insclr.store import Store, open_store

NAMED, SCREENS, DEPTH, EVERY = 10, 8, 50, 6


def sample(labels_file: Path, out: Path, things: int, photos: int, seed: int) -> dict[str, str]:
    """Copy photos of some instances under camera names; the instance of each."""
    labels = read_labels(labels_file)
    files = defaultdict(list)
    for i, instance in enumerate(labels.instances):
        files[str(instance)].append(labels.images.file(i))
    chance = random.Random(seed)
    chosen = chance.sample(sorted(one for one in files if len(files[one]) >= 4), things)
    each = -(-photos // things)
    taken = [(file, one) for one in chosen for file in chance.sample(files[one], min(each, len(files[one])))]
    chance.shuffle(taken)
    out.mkdir(parents=True)
    shown = {}
    for number, (file, instance) in enumerate(taken[:photos]):
        name = f"IMG_{number:04d}{file.suffix}"
        shutil.copy(file, out / name)
        shown[name] = instance
    return shown


def teach(store: Store, shown: dict[str, str]) -> None:
    """Do as a person at the page: name the largest groups, their wrong photos taken out; answer screens."""
    named: dict[str, str] = {}
    for thing in [one for one in build_gallery(store).things if len(one.rows) >= 3][:NAMED]:
        name = Counter(shown[row.image.path] for row in thing.rows).most_common(1)[0][0]
        wrong = [row.image.hash for row in thing.rows if shown[row.image.path] != name]
        id_, entries = assign_permanent_id(thing)
        entries += remove_images(id_, wrong)
        entries += [merge_things(named[name], id_)] if name in named else name_thing(id_, name, [])
        store.append(entries)
        named.setdefault(name, id_)
    instance = {row.image.hash: shown[path] for path, row in store.rows_by_path().items()}
    for _ in range(SCREENS):
        asking = Asking(store)
        if (screen := asking.screen()) is None:
            return
        query, *others = (asking.hashes[place] for place in (screen.query, *screen.candidates))
        same = [one for one in others if instance[one] == instance[query]]
        different = [one for one in others if one not in same]
        model, expected = store.info.fingerprint, asking.predict(query, others)
        store.append([answer(query, same, different, model, expected)])


def measure(store: Store, shown: dict[str, str]) -> dict[str, object]:
    """What searches for every sixth photo call sure, with and without the results that people decided."""
    rows = store.rows_by_path()
    known, scores, right = [], [], []
    pairs = KnownPairs(read_feedback(store))
    for path in sorted(rows)[::EVERY]:
        query = Query(partial(_never, path), rows[path].image.hash, (store, rows[path]))
        for match in search(store, None, [query], SearchOptions(top=DEPTH), known=pairs):  # type: ignore[arg-type]
            if not match.is_query:
                known.append(pairs.relation({rows[path].image.hash}, rows[match.path].image.hash))
                scores.append(match.score)
                right.append(shown[match.path] == shown[path])
    is_open, score_of, is_right = np.array(known) == 0, np.array(scores), np.array(right)
    return {
        "map": round(100 * mean_average_precision(store, shown), 1),
        "local": uses_local(store, "auto"),
        "all": _figures(score_of, is_right),
        "by_score": _figures(score_of[is_open], is_right[is_open]),
    }


def _never(path: str, longest: int) -> tuple[Image.Image, None]:
    raise AssertionError(f"{path} was decoded at {longest}")


def mean_average_precision(store: Store, shown: dict[str, str]) -> float:
    """Leave-one-out, by cosine."""
    ids = store.ids()
    path_of = {row.id: row.image.path for row in store.rows(ids.tolist())}
    instances = np.array([shown[path_of[int(one)]] for one in ids])
    descriptors = store.descriptors(ids)
    similar = descriptors @ descriptors.T
    np.fill_diagonal(similar, -1)
    order = np.argsort(-similar, axis=1, kind="stable")[:, :-1]
    right = instances[order] == instances[:, None]
    ranks = np.arange(1, right.shape[1] + 1)
    return float(np.mean([(np.cumsum(one) / ranks)[one].mean() for one in right if one.any()]))


def _figures(scores: np.ndarray, right: np.ndarray) -> dict[str, float]:
    places = np.minimum((scores * 10).astype(int), 9)
    error = sum(
        abs(scores[places == one].mean() - right[places == one].mean()) * (places == one).mean()
        for one in np.unique(places)
    )
    sure, likely = scores >= SURE, scores >= LIKELY
    return {
        "sure": int(sure.sum()),
        "sure_right": int(right[sure].sum()),
        "precision": round(float(right[sure].mean()), 3) if sure.any() else 1.0,
        "likely": int(likely.sum()),
        "likely_right": int(right[likely].sum()),
        "ece": round(float(error), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("labels", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    for name, default in (("--things", 34), ("--photos", 572), ("--seed", 0)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    photos, store, learned = (given.out / name for name in ("photos", "store", "learned"))
    shown = sample(given.labels, photos, given.things, given.photos, given.seed)
    insclr.train(photos, given.out / "run", "fast")
    insclr.index(given.out / "run", photos, store)
    with closing(open_store(store)) as opened:
        teach(opened, shown)
    insclr.learn(store, learned)
    for what, uri in (("before", store), ("after", learned / "store")):
        with closing(open_store(uri)) as opened:
            print(json.dumps({"store": what, **measure(opened, shown)}), flush=True)


if __name__ == "__main__":
    main()
