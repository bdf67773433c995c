"""Exact nearest rows by cosine, in blocks of bounded memory, on CPU or GPU."""

import torch
from torch import Tensor

BLOCK_BYTES = 256 * 2**20
_FEWEST_ROWS, _MOST_ROWS = 256, 1024  # rows scored at once: enough to keep a matrix product at full speed
_GROUP = 16  # columns whose largest score stands for them


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
    images, dim = features.shape
    # All columns at once if possible, since every further block of columns is ranked and merged anew.
    count = min(len(rows), max(_FEWEST_ROWS, min(_MOST_ROWS, block_bytes // (4 * images))))
    # A column costs its scores and, where the features are stored smaller or elsewhere, a copy of its row.
    copied = dim if (features.dtype, features.device) != (torch.float32, device) else 0
    columns = min(images, max(size + 1, block_bytes // (4 * (count + copied))))
    scores = torch.empty(count * columns, device=device)
    parts = [
        _nearest_block(features, rows[start : start + count], size, columns, scores)
        for start in range(0, len(rows), count)
    ]
    return torch.cat([values for values, _ in parts]), torch.cat([ids for _, ids in parts])


def _nearest_block(
    features: Tensor, rows: Tensor, size: int, columns: int, buffer: Tensor
) -> tuple[Tensor, Tensor]:
    device = buffer.device
    queries = features[rows].to(device, torch.float32)  # (block, D)
    values = queries.new_empty(len(rows), 0)
    ids = torch.empty(len(rows), 0, dtype=torch.int64, device=device)
    for start in range(0, len(features), columns):
        gallery = features[start : start + columns].to(device, torch.float32)
        scores = buffer[: len(rows) * len(gallery)].view(len(rows), -1)  # (block, columns)
        torch.mm(queries, gallery.T, out=scores)
        _leave_out_self(scores, rows.to(device) - start)
        block_values, block_ids = _top(scores, min(size, scores.shape[1]))
        if start == 0:
            values, ids = block_values, block_ids
            continue
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
    groups = scores.shape[1] // _GROUP
    if groups <= size:
        values, columns, tied = _top_of(scores, size)
    else:
        # The `size` largest scores lie in the `size` groups with the largest maxima: only those are ranked.
        # Group g holds the columns g, g + groups, g + 2 groups ...; the few columns left over come with them.
        even = groups * _GROUP
        largest = scores[:, :even].view(-1, _GROUP, groups).amax(1)  # (B, groups)
        chosen = largest.topk(size, dim=1, sorted=False).indices  # (B, size)
        steps = torch.arange(0, even, groups, device=scores.device)[:, None]
        left_over = torch.arange(even, scores.shape[1], device=scores.device).expand(len(scores), -1)
        considered = torch.cat([(chosen[:, None, :] + steps).flatten(1), left_over], 1)
        values, columns, tied = _top_of(scores.gather(1, considered), size)
        columns = considered.gather(1, columns)
        tied |= (largest >= values[:, -1:]).sum(1) > size
    columns, order = columns.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    # A cut through a run of equal scores is arbitrary so far: those rare rows are sorted in full.
    for row in tied.nonzero().squeeze(1):
        values[row], columns[row] = (part[:size] for part in scores[row].sort(descending=True, stable=True))
    return values, columns


def _top_of(scores: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(values, columns) of the `size` largest, and which rows have more equals of the last one."""
    values, columns = scores.topk(min(size + 1, scores.shape[1]), dim=1)
    tied = values[:, size - 1] == values[:, -1]
    if values.shape[1] == size:
        tied = torch.zeros_like(tied)
    return values[:, :size], columns[:, :size], tied
