"""The candidate pool: for every image its P nearest neighbours in the whole collection (paper, Overview)."""

import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.neighbours.approximate import ApproximateSearch, make_plan
from insclr.neighbours.exact import BLOCK_BYTES, nearest_rows

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


def build_pool(
    features: Tensor,
    size: int,
    *,
    block_bytes: int = BLOCK_BYTES,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    approximate: bool = False,
) -> Pool:
    """Find the pool of every row of `features` (N, D), unit rows in any float type.

    Scores live in blocks of about `block_bytes` on `device` (default: where the features are); the pool
    itself is on the CPU, its similarities in `dtype` (float16 halves them for millions of images).
    `approximate` trades 5 % of the neighbours for time, on a CPU.
    """
    check_pool_size(len(features), size)
    on_cpu = torch.device(features.device if device is None else device).type == "cpu"
    plan = None
    if on_cpu and approximate:
        plan = make_plan(features, size, block_bytes=block_bytes)
    ids = torch.empty(len(features), size, dtype=torch.int32)
    similarities = torch.empty(len(features), size, dtype=dtype)
    if plan is not None:
        for rows, values, nearest in ApproximateSearch(features, plan).search(0, len(features)):
            ids[rows], similarities[rows] = nearest.to(torch.int32), values.to(dtype)
        return Pool(ids, similarities, plan.recall(ids))
    for start in range(0, len(features), BLOCK_ROWS):
        rows = torch.arange(start, min(start + BLOCK_ROWS, len(features)))
        values, nearest = nearest_rows(features, rows, size, block_bytes=block_bytes, device=device)
        ids[rows], similarities[rows] = nearest.to(torch.int32), values.to(dtype)
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
