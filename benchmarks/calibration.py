"""How far the score can be trusted: expected calibration error and F1 at the line, on sets and samples of them.

    python benchmarks/calibration.py NAME=DESCRIPTORS.npz:LABELS.csv ...

Descriptors come from `insclr embed`; folder and name of a file are looked up in the labels. Samples hold 5, 10, 20 or
all images of each instance, or a random number of them with a third singles (mixed). A line of JSON for each.
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from insclr.data.labels import Labels
from insclr.describe.descriptor_file import read_descriptors
from insclr.evaluation.calibration import ANSWERS, Calibration, measure_calibration

SAMPLES = ("5", "10", "20", "all", "mixed")


def sampled(instances: NDArray[np.int64], kind: str, seed: int = 0) -> NDArray[np.int64]:
    """The rows of a sample, ascending."""
    generator = np.random.default_rng(seed)
    kept = []
    for instance in np.unique(instances):
        rows = generator.permutation(np.flatnonzero(instances == instance))
        if kind == "mixed":
            single = generator.random() <= 0.3
            count = 1 if single else max(2, int(np.exp(generator.uniform(np.log(2), np.log(len(rows) + 1)))))
        else:
            count = len(rows) if kind == "all" else int(kind)
        kept.append(rows[:count])
    return np.sort(np.concatenate(kept))


def read_set(descriptors: Path, labels: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Descriptors and a number for each row's instance."""
    with labels.open(newline="") as text:
        known = {Path(row["path"]).parts[-2:]: row["instance"] for row in csv.DictReader(text)}
    table = read_descriptors(descriptors)
    names = [known[Path(path).parts[-2:]] for path in table.paths]
    return table.descriptors, np.unique(names, return_inverse=True)[1]


def shown(measured: Calibration) -> dict[str, object]:
    """Rounded numbers, and the reliability as pairs of score and share of right ones."""
    values = {name: round(value, 3) for name, value in measured.to_json().items() if isinstance(value, float)}
    return values | {"reliability": [[round(one.score, 3), round(one.right, 3)] for one in measured.bins]}


def main() -> None:
    """Measure every set and sample that is named."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("sets", nargs="+")
    for one in arguments.parse_args().sets:
        name, _, files = one.partition("=")
        descriptors, instances = read_set(*map(Path, files.split(":")))
        for kind in SAMPLES:
            rows = sampled(instances, kind)
            truth = tuple(str(instance) for instance in instances[rows])
            labels = Labels(Path(), tuple(str(row) for row in rows), truth)
            measured, answered = measure_calibration(descriptors[rows], labels)
            line = {"set": name, "sample": kind, "images": len(rows), **shown(measured)}
            print(json.dumps(line | {f"with_{ANSWERS}_answers": shown(answered)}), flush=True)


if __name__ == "__main__":
    main()
