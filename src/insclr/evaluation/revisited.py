"""Revisited Oxford and Paris (Radenovic et al. 2018): Easy, Medium and Hard."""

from pathlib import Path

import numpy as np

from insclr.arrays import Ids
from insclr.data.decode import Box
from insclr.errors import UserError
from insclr.evaluation.protocol import (
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
from insclr.evaluation.safe_pickle import load_pickle

SOURCE = "the revisitop project (cmp.felk.cvut.cz/revisitop)"

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
    file = ground_truth_file(root, ground_truth, f"gnd_{name}.pkl", SOURCE)
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
