"""Photos of 34 things from three real sets, named as a camera names them, and 50 more of the next day."""

import csv
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np

# set: things and photos of each
_PARTS = {"products60": (12, 25), "monuments24": (12, 20), "smvs_dvd100": (10, 5)}
FIRST, NEXT_DAY = 572, 50
_UNSEEN = 2  # things of the next day that were not there before, of three photos each


def take_photos(shared: Path, folder: Path, seed: int = 0) -> tuple[dict[str, str], dict[str, str]]:
    """Copy photos to `folder`/first and `folder`/next; what each shows, by its file name, of both."""
    generator = np.random.default_rng(seed)
    files: dict[str, list[Path]] = {}  # by thing
    spare: list[tuple[str, list[Path]]] = []
    for name, (things, _) in _PARTS.items():
        by_thing: dict[str, list[Path]] = defaultdict(list)
        with (shared / "data" / name / "labels.csv").open(newline="") as text:
            for row in csv.DictReader(text):
                by_thing[f"{name}-{row['instance']}"].append(shared / "data" / name / row["path"])
        chosen = generator.permutation(sorted(by_thing))
        for thing in chosen[:things]:
            order = generator.permutation(len(by_thing[thing]))
            files[thing] = [by_thing[thing][i] for i in order]
        spare += [(thing, by_thing[thing]) for thing in chosen[things : things + 1]]
    first, later = [], []
    for name, (_, photos) in _PARTS.items():
        for thing in (one for one in files if one.startswith(name)):
            first += [(thing, file) for file in files[thing][:photos]]
            later += [(thing, file) for file in files[thing][photos : photos + 6]]
    first = [first[i] for i in generator.permutation(len(first))]
    first, rest = first[:FIRST], first[FIRST:]
    unseen = [(thing, file) for thing, some in spare[:_UNSEEN] for file in some[:3]]
    later = [*rest, *later]
    later = [later[i] for i in generator.permutation(len(later))][: NEXT_DAY - len(unseen)]
    later = [[*later, *unseen][i] for i in generator.permutation(NEXT_DAY)]
    return _copy(first, folder / "first", 1), _copy(later, folder / "next", 5001)


def _copy(photos: list[tuple[str, Path]], folder: Path, number: int) -> dict[str, str]:
    folder.mkdir(parents=True)
    shown = {}
    for at, (thing, file) in enumerate(photos, start=number):
        name = f"IMG_{at:04d}{file.suffix}"
        shutil.copy(file, folder / name)
        shown[name] = thing
    return shown
