"""The contrastive loss over the mini-batch and the memory bank (paper, Loss and Details of the Loss)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from insclr.mining.expand import compact


@dataclass(frozen=True)
class PairMasks:
    """Which pairs (i, j) attract and which repel, for every i of each tuple's in-batch query set."""

    query: Tensor  # (T, M) bool: i ranges over these slots, the anchor and the selected
    batch_positive: Tensor  # (T, M, B) bool over the images of the batch
    batch_negative: Tensor  # (T, M, B) bool
    bank_positive: Tensor | None = None  # (T, P) bool over the pool's rows, the same for every i
    bank_negative: Tensor | None = None  # (T, P) bool
    shared_negative: Tensor | None = None  # (T, R) bool over rows that all tuples share (methods B and C)


@dataclass(frozen=True)
class LossValue:
    """The loss, with gradient, and what it was made of, without; means over the tuples."""

    loss: Tensor
    batch_positives: Tensor  # positives an anchor has in its tuple
    bank_positives: Tensor  # positives it has in the memory
    active_negatives: Tensor  # negatives above the margin, per query-set member
    positive_similarity: Tensor  # mean S over all positive pairs
    negative_similarity: Tensor  # mean S over all negative pairs, active or not


def pair_masks(
    tuple_ids: Tensor,
    selected: Tensor,
    pool_ids: Tensor | None = None,
    eligible: Tensor | None = None,
    mined: Tensor | None = None,
    *,
    ignored_pool: Tensor | None = None,
    batch_ignored: Tensor | None = None,
    shared_negative: Tensor | None = None,
    batch_tuple_ids: Tensor | None = None,
    first_tuple: int = 0,
) -> PairMasks:
    """Label the pairs of each tuple (T, M) with the batch (B images) and with its pool (T, P).

    Positives: the tuple's `selected` slots (anchor included) with each other, and the `mined` candidates.
    Negatives: the tuple's other slots, every image of other tuples, the `eligible` rest of the pool. Neither:
    an image of another tuple that is a member of this query set or was mined for it, and what is ignored
    (`ignored_pool` (T, P), `batch_ignored` (T, B)) unless it is a positive.
    The batch is these tuples, or `batch_tuple_ids` (T_all, M) in which these start at `first_tuple`.
    """
    everyone = tuple_ids if batch_tuple_ids is None else batch_tuple_ids
    batch_ids = everyone.reshape(-1)  # (B,)
    own, own_selected = _own_slots(selected, len(everyone), first_tuple)  # (T, B) both

    friend = _contains(tuple_ids, selected, batch_ids)
    if mined is not None and pool_ids is not None:
        friend |= _contains(pool_ids, mined, batch_ids)
    negative = torch.where(own, ~own_selected, ~friend)  # (T, B)
    if batch_ignored is not None:
        negative &= ~batch_ignored

    slots = torch.arange(tuple_ids.numel(), device=tuple_ids.device) + first_tuple * tuple_ids.shape[1]
    is_self = slots.view_as(tuple_ids)[..., None] == torch.arange(len(batch_ids), device=slots.device)
    query = selected[..., None]  # (T, M, 1)
    bank_positive, bank_negative = _bank_masks(eligible, mined, ignored_pool)
    return PairMasks(
        query=selected,
        batch_positive=query & own_selected[:, None] & ~is_self,
        batch_negative=query & negative[:, None],
        bank_positive=bank_positive,
        bank_negative=bank_negative,
        shared_negative=shared_negative,
    )


def random_negatives_mask(shared_ids: Tensor, tuple_ids: Tensor, selected: Tensor | None = None) -> Tensor:
    """Which of the shared random bank rows (R,) are negatives of each tuple: (T, R) bool.

    All but the tuple's own images; with `selected` (T, M), all but the images of its query set.
    """
    taken = torch.ones_like(tuple_ids, dtype=torch.bool) if selected is None else selected
    return ~_contains(tuple_ids, taken, shared_ids)


def contrastive_loss(
    features: Tensor,
    masks: PairMasks,
    *,
    bank: Tensor | None = None,
    shared_bank: Tensor | None = None,
    batch: Tensor | None = None,
    margin: float | Tensor = 0.4,
    normalise: Literal["sum", "mean"] = "sum",
) -> LossValue:
    """L = 1/N_p sum_i [ sum of S_ij over negatives with S_ij > margin - sum of S_ij over positives ].

    `features` (T, M, D) are augmented and carry the gradient, `bank` (T, P, D) and `shared_bank` (R, D) are
    constants; `batch` (B, D) is everybody's features where the masks were made with `batch_tuple_ids`.
    The mean over tuples is returned. "mean" averages the positives and the active negatives of each i
    before the difference. `margin` is a number or one per tuple, (T,).
    """
    tuples, slots, dim = features.shape
    rows = features.reshape(-1, dim)
    in_batch = rows @ (rows if batch is None else batch).T  # (T * M, B)
    groups = [_Group(in_batch.view(tuples, slots, -1), masks.batch_positive, masks.batch_negative)]
    query = masks.query[..., None]  # (T, M, 1)
    if bank is not None:
        if masks.bank_positive is None or masks.bank_negative is None:
            raise ValueError("bank rows need masks made with the pool's ids, eligible and mined")
        in_bank = torch.bmm(features, bank.detach().transpose(1, 2))  # (T, M, P)
        positive, negative = query & masks.bank_positive[:, None], query & masks.bank_negative[:, None]
        groups.append(_Group(in_bank, positive, negative))
    if shared_bank is not None:
        if masks.shared_negative is None:
            raise ValueError("shared bank rows need masks made with shared_negative")
        in_shared = (rows @ shared_bank.detach().T).view(tuples, slots, -1)  # (T, M, R)
        groups.append(_Group(in_shared, None, query & masks.shared_negative[:, None]))
    limit = margin.reshape(-1, 1, 1) if isinstance(margin, Tensor) else margin
    return _combine(groups, masks, limit, normalise)


@dataclass
class _Group:
    """Similarities (T, M, J) to one source of images, with their labels."""

    similarities: Tensor
    positive: Tensor | None
    negative: Tensor


def _combine(groups: list[_Group], masks: PairMasks, margin: float | Tensor, normalise: str) -> LossValue:
    zero = groups[0].similarities.new_zeros(masks.query.shape)  # (T, M)
    attract, repel, negative_sum = zero, zero, zero.clone()
    positives, active, negatives = zero.clone(), zero.clone(), zero.clone()
    for group in groups:
        s = group.similarities
        above = group.negative & (s.detach() > margin)
        repel = repel + (s * above).sum(2)
        active += above.sum(2)
        negatives += group.negative.sum(2)
        negative_sum += (s.detach() * group.negative).sum(2)
        if group.positive is not None:
            attract = attract + (s * group.positive).sum(2)
            positives += group.positive.sum(2)
    if normalise == "mean":
        per_member = repel / active.clamp(min=1) - attract / positives.clamp(min=1)
    else:
        per_member = repel - attract  # (T, M); zero outside the query set
    members = masks.query.sum(1)  # (T,) N_p
    bank_positive = masks.bank_positive
    return LossValue(
        loss=(per_member.sum(1) / members).mean(),
        batch_positives=members.to(zero.dtype).mean() - 1,
        bank_positives=zero.new_zeros(())
        if bank_positive is None
        else bank_positive.sum(1).to(zero.dtype).mean(),
        active_negatives=active.sum() / members.sum(),
        positive_similarity=attract.detach().sum() / positives.sum().clamp(min=1),
        negative_similarity=negative_sum.sum() / negatives.sum().clamp(min=1),
    )


def _own_slots(selected: Tensor, all_tuples: int, first_tuple: int) -> tuple[Tensor, Tensor]:
    """Which images of the batch (T, B) are the tuple's own, and which of those are in its query set."""
    tuples, slots = selected.shape
    number = torch.arange(tuples, device=selected.device) + first_tuple
    is_own = number[:, None] == torch.arange(all_tuples, device=selected.device)  # (T, T_all)
    own_selected = is_own[..., None] & selected[:, None, :]  # (T, T_all, M)
    return is_own.repeat_interleave(slots, dim=1), own_selected.flatten(1)


def _contains(ids: Tensor, mask: Tensor, wanted: Tensor) -> Tensor:
    """Which of `wanted` (J,) are among the marked `ids` (T, K) of each tuple: (T, J) bool."""
    columns, real = compact(mask)
    marked = ids.gather(1, columns).masked_fill(~real, -1)  # (T, most marked)
    return (marked[:, :, None] == wanted).any(1)


def _bank_masks(
    eligible: Tensor | None, mined: Tensor | None, ignored: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    if eligible is None:
        return None, None
    positive = torch.zeros_like(eligible) if mined is None else eligible & mined
    negative = eligible & ~positive
    return positive, negative if ignored is None else negative & ~ignored
