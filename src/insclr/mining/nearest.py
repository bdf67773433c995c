"""Exact nearest rows by cosine, in blocks of bounded memory, on CPU or GPU."""

import torch
from torch import Tensor

QUERY_ROWS = 1024  # rows scored at once: enough to keep a matrix product at full speed
BLOCK_BYTES = 256 * 2**20


def nearest_rows(
    features: Tensor,
    rows: Tensor,
    size: int,
    *,
    block_bytes: int = BLOCK_BYTES,
    device: str | torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """The `size` nearest rows of `features` (N, D) to each of `rows` (B,), itself left out, best first.

    Gives (similarities float32, ids int64), both (B, size) on the CPU. The scores alive at any time fill at
    most about `block_bytes`. Equal similarities are ordered by id.
    """
    device = features.device if device is None else torch.device(device)
    parts = [
        _nearest_block(features, rows[start : start + QUERY_ROWS], size, block_bytes, device)
        for start in range(0, len(rows), QUERY_ROWS)
    ]
    return torch.cat([values for values, _ in parts]), torch.cat([ids for _, ids in parts])


def _nearest_block(
    features: Tensor, rows: Tensor, size: int, block_bytes: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    queries = features[rows].to(device, torch.float32)  # (block, D)
    # A column costs its scores and, where the features are stored smaller or elsewhere, a copy of its row.
    columns = max(size + 1, block_bytes // (4 * (len(rows) + features.shape[1])))
    values = queries.new_empty(len(rows), 0)
    ids = torch.empty(len(rows), 0, dtype=torch.int64, device=device)
    for start in range(0, len(features), columns):
        gallery = features[start : start + columns].to(device, torch.float32)
        scores = queries @ gallery.T  # (block, columns)
        _leave_out_self(scores, rows.to(device) - start)
        block_values, block_ids = _top(scores, min(size, scores.shape[1]))
        # Blocks come in the order of their ids, so a stable sort keeps the lower id first among equals.
        values, order = torch.cat([values, block_values], 1).sort(dim=1, descending=True, stable=True)
        ids = torch.cat([ids, block_ids + start], 1).gather(1, order)[:, :size]
        values = values[:, :size]
    return values.cpu(), ids.cpu()


def _leave_out_self(scores: Tensor, own_column: Tensor) -> None:
    """Exclusion is by id, never by rank: an identical image elsewhere stays a neighbour."""
    here = ((own_column >= 0) & (own_column < scores.shape[1])).nonzero().squeeze(1)
    scores[here, own_column[here]] = -torch.inf


def _top(scores: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The `size` largest of each row, descending; among equals the lower column wins."""
    values, columns = scores.topk(size, dim=1)
    columns, order = columns.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    # topk cuts through a run of equal scores at random: those rare rows are sorted in full.
    tied = ((scores >= values[:, -1:]).sum(1) > size).nonzero().squeeze(1)
    for row in tied:
        values[row], columns[row] = (part[:size] for part in scores[row].sort(descending=True, stable=True))
    return values, columns
