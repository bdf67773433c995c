"""The exact nearest rows by cosine, in blocks of bounded memory, on CPU or GPU."""

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_BYTES = 256 * 2**20
_FEWEST_ROWS, _MOST_ROWS = 256, 1024  # rows scored at once: enough to keep a matrix product at full speed
_GROUP = 16  # columns whose largest score stands for them


def nearest(
    queries: Tensor,
    database: Tensor,
    size: int,
    *,
    own: Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
    device: str | torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """The `size` nearest rows of `database` (N, D) to each of `queries` (Q, D), best first.

    `own` (Q,) is the row of the database that a query may not find, -1 where there is none; at most N - 1 rows
    can then be asked for. Gives (similarities float32, ids int64), both (Q, size) on the CPU. Equal similarities
    are ordered by id. The scores alive at any time fill at most about `block_bytes` on `device` (default: where
    the database is).
    """
    device = database.device if device is None else torch.device(device)
    images, dim = database.shape
    own = torch.full((len(queries),), -1) if own is None else own
    if _is_whole(size, images):
        # Sorting a row whole takes its scores, their sorted copy and its order in int64.
        count, columns = min(_MOST_ROWS, block_bytes // (16 * max(1, images))), images
    else:
        # All columns at once if possible, since every further block of columns is ranked and merged anew.
        count = min(len(queries), max(_FEWEST_ROWS, min(_MOST_ROWS, block_bytes // (4 * images))))
        # A column costs its scores and, where the rows are stored smaller or elsewhere, a copy of its row.
        copied = dim if (database.dtype, database.device) != (torch.float32, device) else 0
        columns = min(images, max(size + 1, block_bytes // (4 * (max(1, count) + copied))))
    count = max(1, min(count, len(queries)))
    scores = torch.empty(count * columns, device=device)
    similarities = torch.empty(len(queries), size)
    ids = torch.empty(len(queries), size, dtype=torch.int64)
    for start in range(0, len(queries), count):
        block = slice(start, start + count)
        similarities[block], ids[block] = _nearest_block(
            queries[block], database, own[block], size, columns, scores
        )
    return similarities, ids


def nearest_rows(
    features: Tensor, rows: Tensor, size: int, *, device: str | torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """The `size` nearest rows of `features` (N, D) to each of its `rows` (B,), itself left out, as `nearest`."""
    return nearest(features[rows], features, size, own=rows, device=device)


def score_blocks(
    queries: Tensor, database: Tensor, *, own: Tensor | None = None, block_bytes: int = BLOCK_BYTES // 2
) -> Iterator[tuple[slice, Tensor]]:
    """Similarities of all queries to the whole database: slices of the queries, each with its scores (rows, N).

    For those who need every score; a query's `own` row (-1: none) has the score -inf.
    """
    rows = max(1, block_bytes // (4 * max(1, len(database))))
    for start in range(0, len(queries), rows):
        block = slice(start, min(start + rows, len(queries)))
        scores = queries[block] @ database.T
        if own is not None:
            _leave_out(scores, own[block])
        yield block, scores


def largest(scores: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """(values, columns) of the `size` largest of each row, descending; among equals the lower column wins."""
    if _is_whole(size, scores.shape[1]):
        values, columns = scores.sort(dim=1, descending=True, stable=True)
        return values[:, :size], columns[:, :size]
    groups = scores.shape[1] // _GROUP
    if groups <= 2 * size:
        values, columns, tied = _top_of(scores, size)
    else:
        # The `size` largest scores lie in the `size` groups with the largest maxima: only those are ranked.
        # Group g holds the columns g, g + groups, g + 2 groups ...; the few columns left over come with them.
        even = groups * _GROUP
        maxima = scores[:, :even].view(-1, _GROUP, groups).amax(1)  # (B, groups)
        chosen = maxima.topk(size, dim=1, sorted=False).indices  # (B, size)
        steps = torch.arange(0, even, groups, device=scores.device)[:, None]
        left_over = torch.arange(even, scores.shape[1], device=scores.device).expand(len(scores), -1)
        considered = torch.cat([(chosen[:, None, :] + steps).flatten(1), left_over], 1)
        values, columns, tied = _top_of(scores.gather(1, considered), size)
        columns = considered.gather(1, columns)
        tied |= (maxima >= values[:, -1:]).sum(1) > size
    columns, order = columns.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    # A cut through a run of equal scores is arbitrary so far: those rare rows are sorted in full.
    for row in tied.nonzero().squeeze(1):
        values[row], columns[row] = (part[:size] for part in scores[row].sort(descending=True, stable=True))
    return values, columns


def _is_whole(size: int, columns: int) -> bool:
    """Whether so much of a row is wanted that sorting all of it is quickest."""
    return 4 * size > columns


def _nearest_block(
    queries: Tensor, database: Tensor, own: Tensor, size: int, columns: int, buffer: Tensor
) -> tuple[Tensor, Tensor]:
    device = buffer.device
    queries, own = queries.to(device, torch.float32), own.to(device)  # (B, D), (B,)
    values = queries.new_empty(len(queries), 0)
    ids = torch.empty(len(queries), 0, dtype=torch.int64, device=device)
    for start in range(0, len(database), columns):
        part = database[start : start + columns].to(device, torch.float32)
        scores = buffer[: len(queries) * len(part)].view(len(queries), -1)  # (B, columns)
        torch.mm(queries, part.T, out=scores)
        _leave_out(scores, torch.where(own >= 0, own - start, -1))
        block_values, block_ids = largest(scores, min(size, scores.shape[1]))
        if start == 0:
            values, ids = block_values, block_ids
            continue
        # Blocks come in the order of their ids, so a stable sort keeps the lower id first among equals.
        values, order = torch.cat([values, block_values], 1).sort(dim=1, descending=True, stable=True)
        ids = torch.cat([ids, block_ids + start], 1).gather(1, order)[:, :size]
        values = values[:, :size]
    return values, ids


def _leave_out(scores: Tensor, own: Tensor) -> None:
    """Exclusion is by id, never by rank: an identical image elsewhere stays a neighbour."""
    here = ((own >= 0) & (own < scores.shape[1])).nonzero().squeeze(1)
    scores[here, own[here]] = -torch.inf


def _top_of(scores: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(values, columns) of the `size` largest, and which rows have more equals of the last one."""
    values, columns = scores.topk(min(size + 1, scores.shape[1]), dim=1)
    tied = values[:, size - 1] == values[:, -1]
    if values.shape[1] == size:
        tied = torch.zeros_like(tied)
    return values[:, :size], columns[:, :size], tied
