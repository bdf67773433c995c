"""Image lists with labels from the files that GLDv2 and INSTRE publish: the training images of the paper."""

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path, PurePosixPath

from insclr.data.table import read_table, safe_cell
from insclr.errors import UserError
from insclr.evaluation.protocols import SHORTEST_ID, image_path, load_instre
from insclr.files import open_text, whole_file

_PROBED = 100  # images of which one must be there
Listed = tuple[str, str]  # path below the root, instance


def read_gldv2(file: Path, root: Path) -> Iterator[Listed]:  # noqa: ARG001
    """The images of train.csv (id, url, landmark_id) or train_clean.csv (landmark_id, images)."""
    with open_text(file, encoding="utf-8-sig") as text:
        clean = "images" in text.readline()
    for line, row in read_table(file, ("landmark_id", "images") if clean else ("id", "landmark_id")):
        for image in row["images"].split() if clean else [row["id"]]:
            if len(image) < SHORTEST_ID:
                raise UserError(f"{file}, line {line}: {image!r} is not the id of an image.")
            yield image_path(image), row["landmark_id"].strip()


def read_instre(file: Path, root: Path) -> Iterator[Listed]:
    """The 27,293 database images of gnd_instre.mat, without its 1,250 queries; the instance is an image's folder."""
    for path in load_instre(root, file).database.paths:
        yield path, str(PurePosixPath(path).parent)


LISTS: dict[str, Callable[[Path, Path], Iterator[Listed]]] = {"gldv2": read_gldv2, "instre": read_instre}


def write_list(name: str, file: Path, root: Path, out: Path, at_least: int = 1) -> tuple[int, int]:
    """Write a list (path, instance) of the images of instances that have `at_least` so many; images and instances."""
    if name not in LISTS:
        raise UserError(f"There is no list {name!r}: choose one of {', '.join(LISTS)}.")
    if not file.is_file():
        raise UserError(f"There is no file {file}: give the one that {name} publishes.")
    if not root.is_dir():
        raise UserError(f"{root} is no folder: give the folder with the images as --root.")
    listed = list(LISTS[name](file, root))
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
