"""The benchmarks Google Landmarks v2 and INSTRE, and their training images."""

import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import scipy.io
from scipy.io.matlab import MatReadError

from insclr.data.images import ImageList
from insclr.data.table import read_table
from insclr.errors import UserError
from insclr.evaluation.protocol import (
    PUBLISHED,
    Benchmark,
    Judgement,
    RetrievalProtocol,
    as_box,
    as_ids,
    check_rows,
    ground_truth_file,
    map_at_100_metric,
    trapezoid_metric,
)
from insclr.files import open_text

GLDV2_SOURCE = "the Google Landmarks project (github.com/cvdfoundation/google-landmarks)"
SPLITS = ("public", "private")
SHORTEST_ID = 3  # its first three letters name folders
Solution = dict[str, dict[str, frozenset[str]]]  # split: query: the right index images


def load_gldv2(root: Path, ground_truth: Path | None = None) -> RetrievalProtocol:
    """Queries under `root`/test, index images under `root`/index, each at a/b/c/<id>.jpg.

    Beside retrieval_solution_v2.1.csv, index.csv in `root` (column id) lists the index; without it the folder
    itself does.
    """
    file = ground_truth_file(root, ground_truth, "retrieval_solution_v2.1.csv", GLDV2_SOURCE)
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
        if usage not in SPLITS or not images or min(map(len, (row["id"], *images))) < SHORTEST_ID:
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
            if len(row["id"]) < SHORTEST_ID:
                raise UserError(f"{listed}, line {line}: expected an id, not {row['id']!r}.")
        return [row["id"] for _, row in rows]
    if not (root / "index").is_dir():
        raise UserError(
            f"{root} has neither index.csv nor a folder index. Give the folder with both as --root."
        )
    return sorted(file.stem for file in (root / "index").glob("?/?/?/*.jpg"))


INSTRE_SOURCE = "the diffusion project of Iscen et al. (INSTRE ground truth)"


def load_instre(root: Path, ground_truth: Path | None = None) -> RetrievalProtocol:
    """INSTRE with its three folders INSTRE-S1, INSTRE-S2, INSTRE-M and gnd_instre.mat in `root`.

    `ok` counts from 1 and `bbx` is x1, y1, x2, y2. The released InsCLR evaluator counts from 0 and reads x, y, width,
    height: there, a ranking in the order of the ground truth has an mAP of 95.9 instead of 100.
    """
    file = ground_truth_file(root, ground_truth, "gnd_instre.mat", INSTRE_SOURCE)
    try:
        content = scipy.io.loadmat(file, simplify_cells=True)
        # A cell of one element comes as that element.
        database, queries = (
            [str(name) for name in np.atleast_1d(content[key])] for key in ("imlist", "qimlist")
        )
        entries = [content["gnd"]] if isinstance(content["gnd"], dict) else content["gnd"]
        truth = [(as_ids(entry["ok"]) - 1, as_box(entry["bbx"])) for entry in entries]
    # scipy passes on whatever a damaged file makes its parser do
    except (MatReadError, LookupError, TypeError, ValueError, RuntimeError, OSError, zlib.error) as error:
        raise UserError(
            f"{file}: not the INSTRE ground truth (imlist, qimlist, gnd of ok and bbx): {error}"
        ) from error
    if len(truth) != len(queries):
        raise UserError(f"{file}: {len(queries)} queries but {len(truth)} ground truths. Get it again.")
    judged = (
        Judgement(check_rows(file, query, positives, len(database)))
        for query, (positives, _) in zip(queries, truth, strict=True)
    )
    return RetrievalProtocol(
        name="instre",
        queries=ImageList(root, tuple(queries)),
        database=ImageList(root, tuple(database)),
        settings={"all": tuple(judged)},
        metric=trapezoid_metric,
        boxes=tuple(box for _, box in truth),
    )


def read_gldv2(file: Path, root: Path) -> Iterator[tuple[str, str]]:  # noqa: ARG001
    """The images of train.csv (id, url, landmark_id) or train_clean.csv (landmark_id, images)."""
    with open_text(file, encoding="utf-8-sig") as text:
        clean = "images" in text.readline()
    for line, row in read_table(file, ("landmark_id", "images") if clean else ("id", "landmark_id")):
        for image in row["images"].split() if clean else [row["id"]]:
            if len(image) < SHORTEST_ID:
                raise UserError(f"{file}, line {line}: {image!r} is not the id of an image.")
            yield image_path(image), row["landmark_id"].strip()


def read_instre(file: Path, root: Path) -> Iterator[tuple[str, str]]:
    """The 27,293 database images of gnd_instre.mat, without its 1,250 queries; the instance is an image's folder."""
    for path in load_instre(root, file).database.paths:
        yield path, str(PurePosixPath(path).parent)


GLDV2 = Benchmark(load_gldv2, training=read_gldv2)
INSTRE = Benchmark(load_instre, PUBLISHED.with_(size=256), read_instre)
