"""The candidate pool of a round: built by all ranks, and memory-mapped where it is large."""

import logging
import mmap
from pathlib import Path

import torch
from torch import Tensor

from insclr.files import whole_file
from insclr.memory.pool_file import build_pool_blocks, collect_pool, load_plan, save_plan
from insclr.neighbours.approximate import Plan, make_plan
from insclr.neighbours.pool import Pool, build_pool
from insclr.ranks import Ranks

logger = logging.getLogger(__name__)
_LARGE = 50_000_000  # candidates
_APPROXIMATE_FROM = 50_000  # images; below, the exact pool takes a minute at most


def round_pool(
    descriptors: Tensor,
    size: int,
    folder: Path,
    ranks: Ranks,
    device: torch.device,
    *,
    large: int = _LARGE,
    approximate_from: int = _APPROXIMATE_FROM,
) -> Pool:
    """The pool of every image; what takes long is kept in `folder` and not done twice.

    In blocks that the ranks share: exact, or approximate for a large collection on a CPU.
    """
    is_large = len(descriptors) * size > large
    dtype = torch.float16 if is_large else torch.float32
    plan = None
    if device.type == "cpu" and len(descriptors) >= approximate_from:
        with ranks.in_turn():
            plan = _plan(descriptors, size, folder / "plan.npz")
    elif ranks.alone and not is_large:
        return build_pool(descriptors, size, device=device)
    build_pool_blocks(
        descriptors, size, folder, plan=plan, rank=ranks.rank, ranks=ranks.world, dtype=dtype, device=device
    )
    ranks.barrier()
    pool = collect_pool(descriptors, size, folder, plan=plan)
    if pool.recall < 1 and ranks.first:
        logger.warning("the candidate pool holds %.1f %% of the true neighbours", 100 * pool.recall)
    return pool


def _plan(descriptors: Tensor, size: int, file: Path) -> Plan | None:
    """How to search these descriptors: the first rank to come finds out, the others and a resumed run read it."""
    made, plan = load_plan(file, descriptors, size)
    if not made:
        plan = make_plan(descriptors, size)
        save_plan(file, plan, descriptors, size)
    return plan


def map_large_pool(pool: Pool, folder: Path, ranks: Ranks, *, large: int = _LARGE) -> Pool:
    """The same pool; a large one in files that the ranks of a node share, so that a step loads its rows only."""
    if pool.ids.numel() <= large:
        return pool
    parts = {"ids": pool.ids, "similarities": pool.similarities}
    files = {name: folder / f"node-{ranks.node}-pool-{name}.bin" for name in parts}
    if ranks.first_of_node:
        for name, part in parts.items():
            with whole_file(files[name]) as scratch:
                part.contiguous().numpy().tofile(scratch)
    ranks.barrier()
    maps = {name: _map(file) for name, file in files.items()}
    ids, similarities = (
        torch.frombuffer(maps[name], dtype=part.dtype).view_as(part) for name, part in parts.items()
    )
    return Pool(ids, similarities, pool.recall, tuple(maps.values()))


def _map(file: Path) -> mmap.mmap:
    with file.open("rb") as opened:
        # Private, so that torch may take it for writable; nobody writes.
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
