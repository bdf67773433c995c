"""Google Landmarks v2 retrieval (Weyand et al. 2020): mAP@100, separately for Public and Private."""

from pathlib import Path

import numpy as np

from insclr.data.images import ImageList
from insclr.data.table import read_table
from insclr.errors import UserError
from insclr.evaluation.protocol import Judgement, RetrievalProtocol, ground_truth_file, map_at_100_metric

SOURCE = "the Google Landmarks project (github.com/cvdfoundation/google-landmarks)"
SPLITS = ("public", "private")
_SHORTEST_ID = 3  # its first three letters name folders
Solution = dict[str, dict[str, frozenset[str]]]  # split: query: the right index images


def load_gldv2(root: Path, ground_truth: Path | None = None) -> RetrievalProtocol:
    """Queries under `root`/test, index images under `root`/index, each at a/b/c/<id>.jpg.

    Beside retrieval_solution_v2.1.csv, index.csv in `root` (column id) lists the index; without it the folder
    itself does.
    """
    file = ground_truth_file(root, ground_truth, "retrieval_solution_v2.1.csv", SOURCE)
    solution = read_solution(file)
    index = _index(root)
    row = {image: i for i, image in enumerate(index)}
    for images in (images for split in solution.values() for images in split.values()):
        for image in images - row.keys():
            row[image] = len(index)  # named by the solution but not listed: it will count as missing
            index.append(image)
    queries = [query for split in SPLITS for query in solution[split]]
    settings = {
        split: tuple(
            Judgement(np.array(sorted(row[i] for i in solution[split].get(q, ())), dtype=np.int64))
            for q in queries
        )
        for split in SPLITS
    }
    return RetrievalProtocol(
        name="gldv2",
        queries=ImageList(root / "test", tuple(image_path(query) for query in queries)),
        database=ImageList(root / "index", tuple(image_path(image) for image in index)),
        settings=settings,
        metric=map_at_100_metric,
        depth=100,
    )


def image_path(image: str) -> str:
    """Where an image lies: three folders named after the first letters of its id."""
    return f"{image[0]}/{image[1]}/{image[2]}/{image}.jpg"


def read_solution(file: Path) -> Solution:
    """Columns id, images (separated by spaces), Usage; rows whose usage is Ignored are skipped."""
    solution: Solution = {split: {} for split in SPLITS}
    for line, row in read_table(file, ("id", "images", "Usage")):
        usage = row["Usage"].lower()
        if usage == "ignored":
            continue
        images = frozenset(row["images"].split())
        if usage not in SPLITS or not images or min(map(len, (row["id"], *images))) < _SHORTEST_ID:
            raise UserError(
                f"{file}, line {line}: expected an id, image ids, and Public, Private or Ignored."
            )
        solution[usage][row["id"]] = images
    return solution


def _index(root: Path) -> list[str]:
    listed = root / "index.csv"
    if listed.is_file():
        rows = list(read_table(listed, ("id",)))
        for line, row in rows:
            if len(row["id"]) < _SHORTEST_ID:
                raise UserError(f"{listed}, line {line}: expected an id, not {row['id']!r}.")
        return [row["id"] for _, row in rows]
    if not (root / "index").is_dir():
        raise UserError(
            f"{root} has neither index.csv nor a folder index. Give the folder with both as --root."
        )
    return sorted(file.stem for file in (root / "index").glob("?/?/?/*.jpg"))
