"""The candidate pool of a round: built by all ranks in block files, and memory-mapped where it is large."""

import logging
import mmap
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.files import whole_file
from insclr.neighbours.exact import nearest_rows
from insclr.neighbours.pool import (
    BLOCK_ROWS,
    ApproximateSearch,
    Plan,
    Pool,
    build_pool,
    check_pool_size,
    make_plan,
)
from insclr.progress import progress_bar
from insclr.ranks import Ranks

logger = logging.getLogger(__name__)
_LARGE = 50_000_000  # candidates
_APPROXIMATE_FROM = 50_000  # images; below, the exact pool takes a minute at most
_PLANNED_ROWS = 65_536  # rows a block of an approximate pool, which gains by large blocks


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
            plan = find_plan(descriptors, size, folder / "plan.safetensors")
    elif ranks.alone and not is_large:
        return build_pool(descriptors, size, device=device)
    blocks = PoolBlocks(descriptors, size, folder, plan)
    blocks.build(ranks, dtype, device)
    ranks.barrier()
    pool = blocks.collect()
    if pool.recall < 1 and ranks.first:
        logger.warning("the candidate pool holds %.1f %% of the true neighbours", 100 * pool.recall)
    return pool


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
    maps = {}
    for name, file in files.items():
        with file.open("rb") as opened:
            # Private, because torch wants a writable buffer; nobody writes.
            maps[name] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    ids, similarities = (
        torch.frombuffer(maps[name], dtype=part.dtype).view_as(part) for name, part in parts.items()
    )
    return Pool(ids, similarities, pool.recall, tuple(maps.values()))


def find_plan(features: Tensor, size: int, file: Path) -> Plan | None:
    """How to search these features; None where the exact search is the better one.

    The first rank finds it, the others and a resumed run read it from `file`.
    """
    mark = _fingerprint(features, size)
    stored = _read(file, mark)
    if stored is None:
        plan = make_plan(features, size)
        _write(file, {} if plan is None else vars(plan), mark)
        return plan
    return Plan(**stored) if stored else None


@dataclass(frozen=True)
class PoolBlocks:
    """A candidate pool as block files in `folder`, which ranks build together and a stopped build continues.

    Blocks of other features, another size or another plan are built again.
    """

    features: Tensor  # (N, D)
    size: int
    folder: Path
    plan: Plan | None = None  # None: the exact search
    block_rows: int = 0  # 0: as many as suit the search

    def build(
        self,
        ranks: Ranks,
        dtype: torch.dtype = torch.float16,
        device: torch.device | None = None,
    ) -> None:
        """Build this rank's share of the blocks; finished ones are kept. `dtype` is that of the similarities."""
        check_pool_size(len(self.features), self.size)
        starts = self._starts[ranks.rank :: ranks.world]
        with progress_bar("candidate pool", len(starts)) as bar:
            for start in starts:
                if _read(self._file(start), self._mark) is None:
                    rows, values, ids = self._search(start, device)
                    tensors = {"rows": rows.int(), "ids": ids.int(), "similarities": values.to(dtype)}
                    _write(self._file(start), tensors, self._mark)
                bar.advance()

    def collect(self) -> Pool:
        """Join the blocks that all ranks built; the block files stay until their folder is removed."""
        ids = torch.empty(len(self.features), self.size, dtype=torch.int32)
        similarities = torch.empty(0)
        for start in self._starts:
            block = _read(self._file(start), self._mark)
            if block is None:
                raise UserError(
                    f"The candidate pool lacks {self._file(start)}. Start the same command again to build it."
                )
            if not len(similarities):
                similarities = torch.empty(ids.shape, dtype=block["similarities"].dtype)
            rows = block["rows"].long()
            ids[rows], similarities[rows] = block["ids"], block["similarities"]
        return Pool(ids, similarities, 1.0 if self.plan is None else self.plan.recall(ids))

    def _search(self, start: int, device: torch.device | None) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, similarities and ids of the nearest of one block."""
        stop = min(start + self._starts.step, len(self.features))
        if self.plan is None:
            rows = torch.arange(start, stop)
            return rows, *nearest_rows(self.features, rows, self.size, device=device)
        found = list(self._approximate.search(start, stop))
        rows, values, ids = (torch.cat(parts) for parts in zip(*found, strict=True))
        return rows, values, ids

    @cached_property
    def _approximate(self) -> ApproximateSearch:
        assert self.plan is not None
        return ApproximateSearch(self.features, self.plan)

    @property
    def _starts(self) -> range:
        step = self.block_rows or (BLOCK_ROWS if self.plan is None else _PLANNED_ROWS)
        return range(0, len(self.features), step)

    def _file(self, start: int) -> Path:
        return self.folder / f"block-{start:09d}.safetensors"

    @cached_property
    def _mark(self) -> str:
        return _fingerprint(self.features, self.size, self.plan)


def _fingerprint(features: Tensor, size: int, plan: Plan | None = None) -> str:
    """A number that changes with the collection, the network, P or the plan, from rows spread over them."""
    rows = torch.linspace(0, len(features) - 1, min(len(features), 256)).long()
    sample = features[rows].to("cpu", torch.float32).contiguous().numpy()
    mark = zlib.crc32(sample.tobytes(), zlib.crc32(f"{tuple(features.shape)} {size}".encode()))
    return str(mark if plan is None else zlib.crc32(plan.list_of.numpy().tobytes(), mark + 1))


def _write(file: Path, tensors: Mapping[str, Tensor], mark: str) -> None:
    with whole_file(file) as scratch:
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        safetensors.torch.save_file(contiguous, scratch, {"mark": mark})


def _read(file: Path, mark: str) -> dict[str, Tensor] | None:
    """The tensors of a file with this mark; None where it is missing, damaged or of other features."""
    try:
        with safetensors.safe_open(file, "pt") as stored:
            if (stored.metadata() or {}).get("mark") != mark:
                return None
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError):
        return None
