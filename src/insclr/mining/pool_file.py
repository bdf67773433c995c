"""The candidate pool on disk: one whole file, and blocks that let a long build go on where it stopped."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from insclr.atomic import whole_file
from insclr.errors import UserError
from insclr.mining.nearest import BLOCK_BYTES, nearest_rows
from insclr.mining.pool import BLOCK_ROWS, Pool, check_pool_size
from insclr.progress import progress_bar


def save_pool(path: Path | str, pool: Pool) -> None:
    """Write the pool as one .npz file."""
    _save(
        Path(path),
        {
            "ids": pool.ids.numpy(),
            "similarities": pool.similarities.numpy(),
            "recall": np.float64(pool.recall),
        },
    )


def load_pool(path: Path | str) -> Pool:
    """Read a pool that `save_pool` wrote."""
    arrays = _load(Path(path))
    if arrays is None or not {"ids", "similarities", "recall"} <= arrays.keys():
        raise UserError(f"{path} is not a whole candidate pool. Delete it: the next run builds it anew.")
    ids, similarities = torch.from_numpy(arrays["ids"]), torch.from_numpy(arrays["similarities"])
    return Pool(ids, similarities, float(arrays["recall"]))


def build_pool_blocks(
    features: Tensor,
    size: int,
    folder: Path,
    *,
    rank: int = 0,
    ranks: int = 1,
    dtype: torch.dtype = torch.float16,
    block_bytes: int = BLOCK_BYTES,
    block_rows: int = BLOCK_ROWS,
    device: str | torch.device | None = None,
) -> None:
    """Build this rank's share of the exact pool as block files in `folder`; finished blocks are kept.

    Blocks that belong to other features or another size are built again.
    """
    check_pool_size(len(features), size)
    mark = _fingerprint(features, size)
    starts = range(rank * block_rows, len(features), ranks * block_rows)
    with progress_bar("candidate pool", len(starts)) as bar:
        for start in starts:
            file = _block_file(folder, start)
            if _matching(file, mark) is None:
                rows = torch.arange(start, min(start + block_rows, len(features)))
                values, ids = nearest_rows(features, rows, size, block_bytes=block_bytes, device=device)
                ids_array, values_array = ids.to(torch.int32).numpy(), values.to(dtype).numpy()
                _save(file, {"ids": ids_array, "similarities": values_array, "mark": np.uint32(mark)})
            bar.advance()


def collect_pool(features: Tensor, size: int, folder: Path, *, block_rows: int = BLOCK_ROWS) -> Pool:
    """Put the blocks that all ranks built together; the block files stay until their folder is removed."""
    mark = _fingerprint(features, size)
    blocks = []
    for start in range(0, len(features), block_rows):
        file = _block_file(folder, start)
        block = _matching(file, mark)
        if block is None:
            raise UserError(f"The candidate pool lacks {file}. Start the same command again to build it.")
        blocks.append(block)
    ids = torch.cat([torch.from_numpy(block["ids"]) for block in blocks])
    return Pool(ids, torch.cat([torch.from_numpy(block["similarities"]) for block in blocks]))


def _block_file(folder: Path, start: int) -> Path:
    return folder / f"block-{start:09d}.npz"


def _fingerprint(features: Tensor, size: int) -> int:
    """A number that changes with the collection, the network or P, from rows spread over the collection."""
    rows = torch.linspace(0, len(features) - 1, min(len(features), 256)).long()
    sample = features[rows].to("cpu", torch.float32).contiguous().numpy()
    return zlib.crc32(sample.tobytes(), zlib.crc32(f"{tuple(features.shape)} {size}".encode()))


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
    except FileNotFoundError:
        raise UserError(f"There is no candidate pool at {path}.") from None
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error):
        return None
