"""Oxford5k and Paris6k: the originals (Philbin et al. 2007, 2008) and the revisited ones (Radenovic et al. 2018)."""

import logging
from functools import partial
from pathlib import Path

import numpy as np

from insclr.arrays import Ids
from insclr.data.decode import Box
from insclr.data.images import natural_key
from insclr.errors import UserError
from insclr.evaluation.protocol import (
    Benchmark,
    Judgement,
    RetrievalProtocol,
    as_box,
    as_ids,
    check_rows,
    ground_truth_file,
    images_by_name,
    list_named,
    trapezoid_metric,
)
from insclr_rivals.safe_pickle import load_pickle

REVISITED_SOURCE = "the revisitop project (cmp.felk.cvut.cz/revisitop)"

# setting: (positives, junk)
SETTINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "easy": (("easy",), ("junk", "hard")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("junk", "easy")),
}


def load_revisited(name: str, root: Path, ground_truth: Path | None = None) -> RetrievalProtocol:
    """`roxford5k` or `rparis6k` with its images anywhere under `root` and gnd_<name>.pkl in it.

    Distractor descriptors (R1M) go behind the database: see evaluate_protocol.
    """
    file = ground_truth_file(root, ground_truth, f"gnd_{name}.pkl", REVISITED_SOURCE)
    database, queries, truth, boxes = _read(file)
    found = images_by_name(root)
    settings = {
        setting: tuple(Judgement(_join(t, right), _join(t, junk)) for t in truth)
        for setting, (right, junk) in SETTINGS.items()
    }
    for query, judged in zip(queries, settings["medium"], strict=True):
        check_rows(file, query, np.concatenate([judged.positives, judged.junk]), len(database))
    return RetrievalProtocol(
        name=name,
        queries=list_named(root, queries, found),
        database=list_named(root, database, found),
        settings=settings,
        metric=trapezoid_metric,
        boxes=boxes,
    )


def _read(file: Path) -> tuple[list[str], list[str], list[dict[str, Ids]], tuple[Box, ...]]:
    """Names of the database and of the queries, and each query's row lists and box."""
    content = load_pickle(file)
    try:
        if not isinstance(content, dict):
            raise TypeError(type(content).__name__)
        database, queries = [str(n) for n in content["imlist"]], [str(n) for n in content["qimlist"]]
        truth = [{part: as_ids(entry[part]) for part in ("easy", "hard", "junk")} for entry in content["gnd"]]
        boxes = tuple(as_box(entry["bbx"]) for entry in content["gnd"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file}: not a revisited ground truth ({error}). It should be a dict of imlist, qimlist and gnd, "
            "the latter with bbx, easy, hard and junk for each query."
        ) from error
    if not len(queries) == len(truth) > 0:
        raise UserError(f"{file}: {len(queries)} queries but {len(truth)} ground truths. Get it again.")
    return database, queries, truth, boxes


def _join(truth: dict[str, Ids], parts: tuple[str, ...]) -> Ids:
    return np.concatenate([truth[part] for part in parts])


logger = logging.getLogger(__name__)

QUERIES = 55
IMAGES = {"oxford5k": 5063, "paris6k": 6392}
OXFORD_PREFIX = "oxc1_"  # stands before the image names in Oxford's query files alone

# The 20 files that are damaged in the official archive; no evaluation uses them.
CORRUPT_PARIS = frozenset(
    {
        *(f"paris_louvre_{n}" for n in ("000136", "000146")),
        *(f"paris_pantheon_{n}" for n in ("000284", "000960", "000974")),
        *(f"paris_pompidou_{n}" for n in ("000195", "000196", "000201", "000467", "000640")),
        *(f"paris_sacrecoeur_{n}" for n in ("000299", "000330", "000353")),
        *(f"paris_triomphe_{n}" for n in ("000662", "000833", "000863", "000867")),
        "paris_moulinrouge_000422",
        "paris_museedorsay_001059",
        "paris_notredame_000188",
    }
)


def load_classic(name: str, root: Path, ground_truth: Path | None = None) -> RetrievalProtocol:
    """`oxford5k` or `paris6k`: images anywhere under `root`, *_query.txt and its companions in one folder.

    The database is every .jpg found but the damaged ones, so queries are in it, as the protocol wants. Images the
    ground truth names but the disk lacks are missing.
    """
    folder = ground_truth if ground_truth is not None else _truth_folder(root)
    files = sorted(folder.glob("*_query.txt"), key=lambda file: natural_key(file.name))
    if len(files) != QUERIES:
        raise UserError(
            f"{folder}: {len(files)} files *_query.txt instead of {QUERIES}. Unpack the ground truth again."
        )
    named = [_query(file) for file in files]
    right = [_names(file, "good") + _names(file, "ok") for file in files]
    junk = [_names(file, "junk") for file in files]

    found = images_by_name(root)
    wanted = {image for images in (*right, *junk) for image in images} | {query for query, _ in named}
    database = sorted((wanted | found.keys()) - CORRUPT_PARIS, key=natural_key)
    if len(database) != IMAGES[name]:
        logger.warning(
            "%s: %d images under %s, the benchmark has %d: keep others, such as distractors, elsewhere",
            name,
            len(database),
            root,
            IMAGES[name],
        )
    row = {image: i for i, image in enumerate(database)}

    def rows(images: list[str]) -> Ids:
        return np.array([row[image] for image in images if image in row], dtype=np.int64)

    return RetrievalProtocol(
        name=name,
        queries=list_named(root, [query for query, _ in named], found),
        database=list_named(root, database, found),
        settings={"all": tuple(Judgement(rows(r), rows(j)) for r, j in zip(right, junk, strict=True))},
        metric=trapezoid_metric,
        boxes=tuple(box for _, box in named),
    )


def _truth_folder(root: Path) -> Path:
    """The folder under `root` that holds the text files."""
    for file in sorted(root.rglob("*_query.txt")):
        return file.parent
    raise UserError(
        f"{root}: no ground truth (files such as all_souls_1_query.txt or defense_1_query.txt) in it. "
        "Unpack the benchmark's ground-truth archive there."
    )


def _query(file: Path) -> tuple[str, Box]:
    try:
        name, *sides = file.read_text(encoding="utf-8").split()
        x1, y1, x2, y2 = (float(side) for side in sides)
    except ValueError:
        raise UserError(f"{file}, line 1: expected an image name and four numbers x1 y1 x2 y2.") from None
    return name.removeprefix(OXFORD_PREFIX), (x1, y1, x2, y2)


def _names(query_file: Path, kind: str) -> list[str]:
    file = query_file.with_name(query_file.name.replace("_query.txt", f"_{kind}.txt"))
    if not file.is_file():
        raise UserError(
            f"{file} is missing, though {query_file.name} is there. Unpack the ground truth again."
        )
    try:
        return file.read_text(encoding="utf-8").split()
    except UnicodeDecodeError:
        raise UserError(f"{file} is not text: unpack the ground truth again.") from None


ROXFORD5K, RPARIS6K = (Benchmark(partial(load_revisited, name)) for name in ("roxford5k", "rparis6k"))
OXFORD5K, PARIS6K = (Benchmark(partial(load_classic, name)) for name in IMAGES)
