"""The candidate pool in blocks on disk, which ranks build together and a stopped build goes on with."""

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.files import whole_file
from insclr.neighbours.approximate import Lists, Plan, search
from insclr.neighbours.exact import BLOCK_BYTES, nearest_rows
from insclr.neighbours.pool import BLOCK_ROWS, Pool, check_pool_size
from insclr.progress import progress_bar

_PLANNED_ROWS = 65_536  # of an approximate pool finished together: its blocks gain by being large


def save_plan(path: Path, plan: Plan | None, features: Tensor, size: int) -> None:
    """Write how these features are searched; None says that the exact search is the better one."""
    arrays: dict[str, np.ndarray | np.generic] = {"mark": np.uint32(_fingerprint(features, size))}
    if plan is not None:
        tensors = {"sample": plan.sample, "true_ids": plan.true_ids} | {
            part.name: getattr(plan.lists, part.name) for part in fields(plan.lists)
        }
        arrays |= {name: tensor.numpy() for name, tensor in tensors.items()} | {"width": np.int64(plan.width)}
    _save(path, arrays)


def load_plan(path: Path, features: Tensor, size: int) -> tuple[bool, Plan | None]:
    """Whether there is a plan for these features, and the plan."""
    arrays = _matching(path, _fingerprint(features, size))
    if arrays is None:
        return False, None
    if "width" not in arrays:
        return True, None
    lists = Lists(*(torch.from_numpy(arrays[part.name]) for part in fields(Lists)))
    sample, true_ids = torch.from_numpy(arrays["sample"]), torch.from_numpy(arrays["true_ids"])
    return True, Plan(lists, int(arrays["width"]), sample, true_ids)


def build_pool_blocks(
    features: Tensor,
    size: int,
    folder: Path,
    *,
    plan: Plan | None = None,
    rank: int = 0,
    ranks: int = 1,
    dtype: torch.dtype = torch.float16,
    block_bytes: int = BLOCK_BYTES,
    block_rows: int | None = None,
    device: str | torch.device | None = None,
) -> None:
    """Build this rank's share of the pool as block files in `folder`; finished blocks are kept.

    By a `plan` if there is one, else exactly. Blocks of other features, another size or plan are built again.
    """
    check_pool_size(len(features), size)
    block_rows = block_rows or _block_rows(plan)
    mark = _fingerprint(features, size, plan)
    starts = range(rank * block_rows, len(features), ranks * block_rows)
    with progress_bar("candidate pool", len(starts)) as bar:
        for start in starts:
            file = _block_file(folder, start)
            if _matching(file, mark) is None:
                stop = min(start + block_rows, len(features))
                if plan is None:
                    rows = torch.arange(start, stop)
                    values, ids = nearest_rows(features, rows, size, block_bytes=block_bytes, device=device)
                else:
                    found = list(search(features, plan, start, stop, block_bytes=block_bytes))
                    rows, values, ids = (torch.cat(parts) for parts in zip(*found, strict=True))
                _save(
                    file,
                    {
                        "rows": rows.to(torch.int32).numpy(),
                        "ids": ids.to(torch.int32).numpy(),
                        "similarities": values.to(dtype).numpy(),
                        "mark": np.uint32(mark),
                    },
                )
            bar.advance()


def collect_pool(
    features: Tensor, size: int, folder: Path, *, plan: Plan | None = None, block_rows: int | None = None
) -> Pool:
    """Put the blocks that all ranks built together; the block files stay until their folder is removed."""
    mark = _fingerprint(features, size, plan)
    ids = torch.empty(len(features), size, dtype=torch.int32)
    similarities = torch.empty(0)
    for start in range(0, len(features), block_rows or _block_rows(plan)):
        file = _block_file(folder, start)
        block = _matching(file, mark)
        if block is None:
            raise UserError(f"The candidate pool lacks {file}. Start the same command again to build it.")
        values = torch.from_numpy(block["similarities"])
        if not len(similarities):
            similarities = torch.empty(len(features), size, dtype=values.dtype)
        rows = torch.from_numpy(block["rows"]).long()
        ids[rows], similarities[rows] = torch.from_numpy(block["ids"]), values
    return Pool(ids, similarities, 1.0 if plan is None else plan.recall(ids))


def _block_rows(plan: Plan | None) -> int:
    return BLOCK_ROWS if plan is None else _PLANNED_ROWS


def _block_file(folder: Path, start: int) -> Path:
    return folder / f"block-{start:09d}.npz"


def _fingerprint(features: Tensor, size: int, plan: Plan | None = None) -> int:
    """A number that changes with the collection, the network, P or the plan, from rows spread over them."""
    rows = torch.linspace(0, len(features) - 1, min(len(features), 256)).long()
    sample = features[rows].to("cpu", torch.float32).contiguous().numpy()
    mark = zlib.crc32(sample.tobytes(), zlib.crc32(f"{tuple(features.shape)} {size}".encode()))
    return mark if plan is None else zlib.crc32(plan.lists.rows.numpy().tobytes(), mark + 1)


def _matching(file: Path, mark: int) -> Mapping[str, np.ndarray] | None:
    block = _load(file) if file.exists() else None
    return block if block is not None and block.get("mark") == mark else None


def _save(path: Path, arrays: Mapping[str, np.ndarray | np.generic]) -> None:
    with whole_file(path) as scratch, scratch.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _load(path: Path) -> dict[str, np.ndarray] | None:
    """The arrays of an .npz file, or None where it is damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return dict(stored)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error):
        return None
