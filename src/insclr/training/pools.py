"""The candidate pool of a round: built by all ranks, and memory-mapped where it is large."""

from pathlib import Path

import torch
from torch import Tensor

from insclr.atomic import whole_file
from insclr.mining.pool import Pool, build_pool
from insclr.mining.pool_file import build_pool_blocks, collect_pool
from insclr.training.distributed import Ranks

_LARGE = 50_000_000  # candidates


def round_pool(
    descriptors: Tensor, size: int, folder: Path, ranks: Ranks, device: torch.device, *, large: int = _LARGE
) -> Pool:
    """The pool of every image; ranks share the work, and of a large one finished blocks are kept in `folder`."""
    is_large = len(descriptors) * size > large
    if ranks.alone and not is_large:
        return build_pool(descriptors, size, device=device)
    build_pool_blocks(
        descriptors,
        size,
        folder,
        rank=ranks.rank,
        ranks=ranks.world,
        dtype=torch.float16 if is_large else torch.float32,
        device=device,
    )
    ranks.barrier()
    return collect_pool(descriptors, size, folder)


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
    mapped = {
        name: torch.from_file(str(files[name]), shared=False, size=part.numel(), dtype=part.dtype).view_as(
            part
        )
        for name, part in parts.items()
    }
    return Pool(mapped["ids"], mapped["similarities"], pool.recall)
