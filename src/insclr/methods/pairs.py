"""The labels that a method gives to the pairs of a batch: positive, negative or ignored."""

from dataclasses import dataclass

import torch
from torch import Tensor

from insclr.mining.expand import compact


@dataclass(frozen=True)
class BankPairs:
    """Bank rows that stand in the loss as constants, with their labels; the same for every query of a tuple."""

    rows: Tensor  # (T, P, D), or (R, D) where all tuples share them
    negative: Tensor  # (T, P) bool
    positive: Tensor | None = None  # (T, P) bool


@dataclass(frozen=True)
class Pairs:
    """For every query image i of each tuple: which j attract it, which repel it; all others count neither way."""

    query: Tensor  # (T, M) bool: i ranges over these slots, the anchor and the selected
    positive: Tensor  # (T, M, B) bool over the images of the whole batch
    negative: Tensor  # (T, M, B) bool
    bank: tuple[BankPairs, ...] = ()
    mined_ids: Tensor | None = None  # (T, P) images mined beyond the tuple, for the log
    mined: Tensor | None = None  # (T, P) bool: which of them are positives


def label_batch(
    tuple_ids: Tensor,
    selected: Tensor,
    *,
    ignored: Tensor | None = None,
    batch_tuple_ids: Tensor | None = None,
    first_tuple: int = 0,
) -> Pairs:
    """Label the pairs of each tuple (T, M) with the batch (B images).

    Positives: the tuple's `selected` slots (T, M), anchor included, with each other. Negatives: the tuple's other
    slots and every image of other tuples, but for copies of its own query set and what is `ignored` (T, B).
    The batch is these tuples, or `batch_tuple_ids` (T_all, M) in which these start at `first_tuple`.
    """
    global_batch = tuple_ids if batch_tuple_ids is None else batch_tuple_ids
    batch_ids = global_batch.reshape(-1)  # (B,)
    own, own_selected = _own_slots(selected, len(global_batch), first_tuple)  # (T, B) both
    negative = torch.where(own, ~own_selected, ~contains(tuple_ids, selected, batch_ids))  # (T, B)
    if ignored is not None:
        negative &= ~ignored
    slots = torch.arange(tuple_ids.numel(), device=tuple_ids.device) + first_tuple * tuple_ids.shape[1]
    is_self = slots.view_as(tuple_ids)[..., None] == torch.arange(len(batch_ids), device=slots.device)
    query = selected[..., None]  # (T, M, 1)
    return Pairs(
        query=selected,
        positive=query & own_selected[:, None] & ~is_self,
        negative=query & negative[:, None],
    )


def contains(ids: Tensor, marked: Tensor, wanted: Tensor) -> Tensor:
    """Which of `wanted` (J,) are among the marked `ids` (T, K) of each tuple: (T, J) bool."""
    columns, real = compact(marked)
    kept = ids.gather(1, columns).masked_fill(~real, -1)  # (T, most marked)
    return (kept[:, :, None] == wanted).any(1)


def _own_slots(selected: Tensor, all_tuples: int, first_tuple: int) -> tuple[Tensor, Tensor]:
    """Which images of the batch (T, B) are the tuple's own, and which of those are in its query set."""
    tuples, slots = selected.shape
    number = torch.arange(tuples, device=selected.device) + first_tuple
    is_own = number[:, None] == torch.arange(all_tuples, device=selected.device)  # (T, T_all)
    own_selected = is_own[..., None] & selected[:, None, :]  # (T, T_all, M)
    return is_own.repeat_interleave(slots, dim=1), own_selected.flatten(1)
