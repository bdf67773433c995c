"""The candidate pool: for every image its P nearest neighbours in the whole collection (paper, Overview).

Exact, or for large collections on a CPU by inverted lists of faiss, with the measured recall.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.neighbours.exact import nearest_rows

faiss: Any = import_module("faiss")  # its type stubs lack the Python layer

SAMPLE = 512  # rows whose exact neighbours choose how many lists are probed, and measure the recall
_RECALL = 0.95
_TRAINING_ROWS = 16  # for each list
_MAIN_DIMENSIONS = 128
_BLOCK = 8192  # rows handed to faiss together


@dataclass(frozen=True)
class Plan:
    """How a collection is searched, and the sample of rows with known neighbours that chose it."""

    main: Tensor  # (D, d) the directions along which the rows differ most; lists are ranked by these alone
    centres: Tensor  # (lists, d) unit rows
    list_of: Tensor  # (N,) the list of each row
    probes: Tensor  # () lists that a row is compared with
    sample: Tensor  # (S,) row ids
    true_ids: Tensor  # (S, P) their nearest rows

    def recall(self, ids: Tensor) -> float:
        """The share of the sample's true neighbours that were found: `ids` (N, P) of all rows."""
        pairs = zip(self.true_ids, ids[self.sample], strict=True)
        return float(torch.stack([torch.isin(true, found).float().mean() for true, found in pairs]).mean())


def make_plan(features: Tensor, size: int) -> Plan | None:
    """A plan that finds the `size` nearest rows of each of `features` (N, D), missing about 5 % of them.

    None where a quarter of the lists or more would have to be probed: the exact search is the better one then.
    """
    images = len(features)
    lists = int(min(max(16, 4 * images**0.5), images / 8))
    shuffled = torch.randperm(images, generator=torch.Generator().manual_seed(0))
    faiss.omp_set_num_threads(torch.get_num_threads())
    training = features[shuffled[: _TRAINING_ROWS * lists]].float()
    main: Tensor = torch.linalg.eigh(training.T @ training).eigenvectors[:, -_MAIN_DIMENSIONS:].contiguous()
    kmeans = faiss.Kmeans(main.shape[1], lists, niter=3, spherical=True, min_points_per_centroid=1)
    kmeans.train((training @ main).numpy())
    centres = torch.from_numpy(kmeans.centroids)
    assigned = [kmeans.assign((block @ main).numpy())[1] for _, block in _blocks(features)]
    list_of = torch.cat([torch.from_numpy(part) for part in assigned])
    sample = shuffled[:SAMPLE]
    _, true_ids = nearest_rows(features, sample, size)
    order = (features[sample].float() @ main @ centres.T).argsort(1, descending=True)  # (S, lists)
    needed = order.argsort(1).gather(1, list_of[true_ids]).flatten().sort().values + 1  # (S * P,)
    # A little above the aim, since the sample is small.
    probes = needed[int((_RECALL + 0.01) * (len(needed) - 1))]
    return None if probes > lists / 4 else Plan(main, centres, list_of, probes, sample, true_ids)


class ApproximateSearch:
    """The rows of a collection in the lists of a plan, in half precision."""

    def __init__(self, features: Tensor, plan: Plan) -> None:
        self._features, self._plan, self._size = features, plan, plan.true_ids.shape[1]
        self._rows = plan.list_of.argsort(stable=True)  # (N,) list after list
        lists, dim = len(plan.centres), features.shape[1]
        self._centres = faiss.IndexFlatIP(plan.centres.shape[1])
        self._centres.add(plan.centres.numpy())
        self._unused = faiss.IndexFlatIP(dim)  # it would rank the lists; the index does not keep it alive
        self._index = faiss.IndexIVFScalarQuantizer(
            self._unused, dim, lists, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT, False
        )
        self._index.is_trained, self._index.nprobe = True, int(plan.probes)
        for start, block in _blocks(features):
            ids = torch.arange(start, start + len(block)).numpy()
            assigned = plan.list_of[start : start + len(block)].numpy()
            self._index.add_core(len(block), *map(faiss.swig_ptr, (block.numpy(), ids, assigned)))

    def search(self, first: int, last: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Blocks of (rows, similarities, ids) for the rows first ... last - 1 in the order of the lists."""
        faiss.omp_set_num_threads(torch.get_num_threads())
        for start in range(first, last, _BLOCK):
            rows = self._rows[start : min(start + _BLOCK, last)]
            queries = self._features[rows].float()
            nearest, lists = self._centres.search((queries @ self._plan.main).numpy(), int(self._plan.probes))
            found = self._index.search_preassigned(queries.numpy(), self._size + 1, lists, nearest)
            values, ids = map(torch.from_numpy, found)
            own = ids == rows[:, None]
            own[~own.any(1), -1] = True  # not among so many identical images
            values, ids = (found[~own].view(len(rows), self._size) for found in (values, ids))
            short = ids[:, -1] < 0  # the probed lists hold fewer rows
            if short.any():
                values[short], ids[short] = nearest_rows(self._features, rows[short], self._size)
            yield rows, values, ids


def _blocks(features: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Blocks of rows in single precision, each with the number of its first row."""
    return ((at, features[at : at + _BLOCK].float().contiguous()) for at in range(0, len(features), _BLOCK))


BLOCK_ROWS = 8192  # rows finished together


@dataclass(frozen=True)
class Pool:
    """The P nearest images of every image, best first, never itself, with their similarities."""

    ids: Tensor  # (N, P) int32
    similarities: Tensor  # (N, P) float16 or float32, descending
    recall: float = 1.0  # share of the true neighbours found; below 1 only for an approximate pool
    maps: tuple[mmap.mmap, ...] = ()  # the files it is mapped from, if it is

    @property
    def size(self) -> int:
        """P, the number of candidates an image has."""
        return int(self.ids.shape[1])

    def give_back(self) -> None:
        """Let go of the mapped pages that were touched: every step touches others, and they would add up."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for one in self.maps:
                one.madvise(mmap.MADV_DONTNEED)


def build_pool(features: Tensor, size: int, *, device: str | torch.device | None = None) -> Pool:
    """Find the exact pool of every row of `features` (N, D), unit rows in any float type; it is on the CPU.

    Scores are computed on `device`; default: where the features are.
    """
    check_pool_size(len(features), size)
    ids = torch.empty(len(features), size, dtype=torch.int32)
    similarities = torch.empty(len(features), size)
    for start in range(0, len(features), BLOCK_ROWS):
        rows = torch.arange(start, min(start + BLOCK_ROWS, len(features)))
        values, nearest = nearest_rows(features, rows, size, device=device)
        ids[rows], similarities[rows] = nearest.to(torch.int32), values
    return Pool(ids, similarities)


def check_pool_size(images: int, size: int) -> None:
    """Refuse a pool larger than the collection can fill."""
    if size < 1:
        raise UserError(f"The candidate pool must hold at least 1 image, not {size}.")
    if size >= images:
        raise UserError(
            f"A candidate pool of {size} needs more than {size} images, but there are {images}. "
            f"Set the pool to {max(1, images - 1)} or less, or add images."
        )
