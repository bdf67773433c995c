"""Image lists with labels from the files that benchmarks publish: the training images of the paper."""

import csv
from collections import Counter
from itertools import islice
from pathlib import Path

from insclr.data.table import safe_cell
from insclr.errors import UserError
from insclr.evaluation.protocol import find_benchmark
from insclr.files import whole_file

_PROBED = 100  # images of which one must be there


def write_list(name: str, file: Path, root: Path, out: Path, at_least: int = 1) -> tuple[int, int]:
    """Write a list (path, instance) of the images of instances that have `at_least` so many; images and instances."""
    if (read := find_benchmark(name).training) is None:
        raise UserError(f"{name} publishes no training images: choose gldv2 or instre.")
    if not file.is_file():
        raise UserError(f"There is no file {file}: give the one that {name} publishes.")
    if not root.is_dir():
        raise UserError(f"{root} is no folder: give the folder with the images as --root.")
    listed = list(read(file, root))
    counts = Counter(instance for _, instance in listed)
    kept = [(path, instance) for path, instance in listed if counts[instance] >= at_least]
    if not kept:
        raise UserError(f"{file} has no instance with {at_least} images: give a lower --at-least.")
    if not any((root / path).is_file() for path, _ in islice(kept, _PROBED)):
        raise UserError(f"{root / kept[0][0]} does not exist, nor do the images after it: is --root right?")
    place = root.absolute()
    with whole_file(out) as scratch, scratch.open("w", newline="", encoding="utf-8") as opened:
        rows = csv.writer(opened, lineterminator="\n")
        rows.writerow(("path", "instance"))
        rows.writerows((safe_cell(str(place / path)), safe_cell(instance)) for path, instance in kept)
    return len(kept), len({instance for _, instance in kept})
