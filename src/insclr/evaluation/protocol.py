"""The type of a public benchmark (queries, a database, a ground truth, a score), and every metric once.

The benchmarks themselves are found by entry points, as methods are: `insclr_rivals` has those of the paper.
"""

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Ids, Scores
from insclr.data.decode import Box
from insclr.data.images import ImageList
from insclr.errors import UserError
from insclr.recipe import DescriptorRecipe
from insclr.recipe.tables import find_entry_points

Ranks = NDArray[np.int64]


def ranks_of(wanted: Ids, ranking: Ids) -> Ranks:
    """The ranks at which the wanted ids stand in `ranking`; ids that are not in it are left out."""
    return np.flatnonzero(np.isin(ranking, wanted))


def without_junk(positives: Ranks, junk: Ranks) -> Ranks:
    """The positives' ranks after every junk image has been taken out of the ranking."""
    positives = np.sort(positives)
    return positives - np.searchsorted(np.sort(junk), positives)


def trapezoid_ap(ranks: Ranks, positives: int) -> float:
    """AP of Oxford, Paris (revisited or not) and INSTRE: trapezoids under the precision-recall curve."""
    found = np.arange(len(ranks))
    before = np.where(ranks == 0, 1.0, found / np.maximum(ranks, 1))
    after = (found + 1) / (ranks + 1)
    return float((before + after).sum() / (2 * positives))


def precision_at(ranks: Ranks, k: int) -> float:
    """P@k with k lowered to the 1-based rank of the last positive, as the revisited benchmarks do."""
    if len(ranks) == 0:
        return 0.0
    k = min(int(ranks.max()) + 1, k)
    return float((ranks < k).sum() / k)


def mean_precision(ranks: Ranks, positives: int) -> float:
    """Leave-one-out average precision: the mean of the precision at each positive."""
    return float(((np.arange(len(ranks)) + 1) / (ranks + 1)).sum() / positives)


def ap_at(predictions: Sequence[Hashable], positives: Set[Hashable], k: int = 100) -> float:
    """Rectangular AP@k of GLDv2: sum of P@i at each hit / min(positives, k).

    A duplicate keeps its rank but counts once.
    """
    total, seen = 0.0, set[Hashable]()
    for i, prediction in enumerate(predictions[:k], start=1):
        if prediction in positives and prediction not in seen:
            seen.add(prediction)
            total += len(seen) / i
    return total / min(len(positives), k)


def iou(one: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of two boxes."""
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    area = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - width * height
    return width * height / area if area > 0 else 0.0


def ranks_in_scores(positives: Scores, negatives: Scores) -> Ranks:
    """Ranks of positives with these scores among negatives, the latter sorted in ascending order.

    Ties count against the positives, so that a network which gives every image the same
    descriptor scores like the worst ranking, whatever the order of the files.
    """
    best_first = np.sort(positives)[::-1]
    ahead = len(negatives) - np.searchsorted(negatives, best_first, side="left")
    return ahead + np.arange(len(best_first))


@dataclass(frozen=True)
class Judgement:
    """The database rows that are right for a query, and those that count neither way."""

    positives: Ids
    junk: Ids = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(frozen=True)
class Score:
    """One setting of a benchmark, as fractions; a query without positives has the AP nan and does not count."""

    ap: NDArray[np.float64]  # (queries,)
    means: dict[str, float]  # "map" and what else the benchmark reports


Metric = Callable[[Iterable[Ids], Sequence[Judgement]], Score]  # from each query's ranked rows


@dataclass(frozen=True)
class RetrievalProtocol:
    """A benchmark ready to be run. `settings` are its difficulty levels or splits, by name."""

    name: str
    queries: ImageList
    database: ImageList
    settings: Mapping[str, tuple[Judgement, ...]]  # one judgement for each query
    metric: Metric
    boxes: tuple[Box, ...] | None = None  # queries are cropped to these before anything else
    depth: int | None = None  # results that the metric reads; None: whole rankings

    def missing(self) -> tuple[Ids, Ids]:
        """The queries and the database rows whose files are not on disk."""
        return _find_absent(self.queries), _find_absent(self.database)

    def without(self, queries: Ids, rows: Ids) -> "RetrievalProtocol":
        """The benchmark with these queries and database rows taken out."""
        asked = np.setdiff1d(np.arange(len(self.queries)), queries)
        kept = np.setdiff1d(np.arange(len(self.database)), rows)
        place = np.full(len(self.database), -1)
        place[kept] = np.arange(len(kept))

        def renumber(ids: Ids) -> Ids:
            new = place[ids]
            return new[new >= 0]

        settings = {
            name: tuple(Judgement(renumber(j.positives), renumber(j.junk)) for j in (truth[q] for q in asked))
            for name, truth in self.settings.items()
        }
        boxes = None if self.boxes is None else tuple(self.boxes[q] for q in asked)
        database = self.database.subset(kept.tolist())
        return replace(
            self,
            queries=self.queries.subset(asked.tolist()),
            database=database,
            settings=settings,
            boxes=boxes,
        )


# As the paper describes images (its supplement, Evaluation details), and cnnimageretrieval before it.
PUBLISHED = DescriptorRecipe(fit="thumbnail")


@dataclass(frozen=True)
class Benchmark:
    """What an entry point in the group `insclr.protocols` is.

    `load` takes the folder of the images, and the ground truth where it lies elsewhere; `descriptor` is how published
    numbers describe images. `training` gives path and instance of every training image, from a published file and the
    folder of the images.
    """

    load: Callable[[Path, Path | None], RetrievalProtocol]
    descriptor: DescriptorRecipe = PUBLISHED
    training: Callable[[Path, Path], Iterator[tuple[str, str]]] | None = None


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of this name."""
    points = find_entry_points("insclr.protocols")
    if name not in points:
        raise UserError(f'There is no protocol "{name}". Choose one of: {", ".join(sorted(points))}.')
    found: Benchmark = points[name].load()
    return found


def load_protocol(name: str, root: Path | str, ground_truth: Path | str | None = None) -> RetrievalProtocol:
    """The benchmark of this name with its images under `root`.

    The ground truth (a file; for the classic ones a folder) is looked for in `root` unless given.
    """
    benchmark = find_benchmark(name)
    if not Path(root).is_dir():
        raise UserError(f"{root} is no folder. Give the folder with the images of {name} as --root.")
    return benchmark.load(Path(root), Path(ground_truth) if ground_truth is not None else None)


def trapezoid_metric(ranking: Iterable[Ids], truth: Sequence[Judgement]) -> Score:
    """mAP and mP@1/5/10 of whole rankings, junk removed: Oxford, Paris, their revisited forms, INSTRE."""
    at = (1, 5, 10)
    ap = np.full(len(truth), np.nan)
    precisions = np.full((len(truth), len(at)), np.nan)
    for query, (row, judged) in enumerate(zip(ranking, truth, strict=True)):
        if len(judged.positives) == 0:
            continue
        ranks = without_junk(ranks_of(judged.positives, row), ranks_of(judged.junk, row))
        ap[query] = trapezoid_ap(ranks, len(judged.positives))
        precisions[query] = [precision_at(ranks, k) for k in at]
    means = {"map": _mean(ap)} | {f"mp@{k}": _mean(precisions[:, i]) for i, k in enumerate(at)}
    return Score(ap, means)


def map_at_100_metric(ranking: Iterable[Ids], truth: Sequence[Judgement]) -> Score:
    """Rectangular mAP@100 of GLDv2."""
    ap = np.full(len(truth), np.nan)
    for query, (row, judged) in enumerate(zip(ranking, truth, strict=True)):
        if len(judged.positives):
            ap[query] = ap_at(row[:100].tolist(), set(judged.positives.tolist()))
    return Score(ap, {"map": _mean(ap)})


def as_ids(values: object) -> Ids:
    """A list or array of row numbers as a flat integer array."""
    return np.asarray(values, dtype=np.int64).reshape(-1)


def as_box(values: object) -> Box:
    """Four numbers x1, y1, x2, y2 from whatever list or array holds them."""
    x1, y1, x2, y2 = np.asarray(values, dtype=float).reshape(-1).tolist()
    return x1, y1, x2, y2


def check_rows(file: Path, query: str, ids: Ids, count: int) -> Ids:
    """The same ids, once it is sure that all are rows of a database of `count` images."""
    if len(ids) and not (ids.min() >= 0 and ids.max() < count):
        raise UserError(
            f"{file}: query {query} names database rows outside 0 to {count - 1}: the file is damaged."
        )
    return ids


def images_by_name(root: Path) -> dict[str, str]:
    """Every .jpg under `root` by its name without suffix; one under a folder `jpg` wins over others."""
    if not root.is_dir():
        raise UserError(f"{root} is no folder. Give the folder with the benchmark's images as --root.")
    found = dict[str, str]()
    for folder, _, files in os.walk(root):
        for file in files:
            name, suffix = os.path.splitext(file)  # noqa: PTH122 (a hundred thousand of them)
            if suffix.lower() in (".jpg", ".jpeg") and (name not in found or Path(folder).name == "jpg"):
                found[name] = (Path(folder) / file).relative_to(root).as_posix()
    return found


def list_named(root: Path, names: Sequence[str], found: Mapping[str, str]) -> ImageList:
    """Images by name; one that was not found gets the path where it should be."""
    return ImageList(root, tuple(found.get(name, f"jpg/{name}.jpg") for name in names))


def ground_truth_file(root: Path, given: Path | None, name: str, source: str) -> Path:
    """The ground-truth file: the one given, else `name` in the root folder."""
    file = given if given is not None else root / name
    if not file.exists():
        raise UserError(f"There is no ground truth {file}. Get {name} from {source} and put it into {root}.")
    return file


def _find_absent(images: ImageList) -> Ids:
    return np.array([i for i in range(len(images)) if not images.file(i).is_file()], dtype=np.int64)


def _mean(values: NDArray[np.float64]) -> float:
    counted = values[~np.isnan(values)]
    return float(counted.mean()) if len(counted) else float("nan")
