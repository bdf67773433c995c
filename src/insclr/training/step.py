"""One iteration's decisions and loss: select in the batch, mine the memory, contrast (the paper's steps 2 to 4)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from insclr.memory.bank import MemoryBanks
from insclr.mining.criteria import Criteria
from insclr.mining.expand import Expansion, anchor_only, compact, eligible_candidates, expand
from insclr.mining.select import decision_similarities, query_set, select_in_batch
from insclr.mining.verdicts import Verdicts
from insclr.neighbours.pool import Pool
from insclr.training.loss import LossValue, PairMasks, contrastive_loss, pair_masks, random_negatives_mask


@dataclass(frozen=True)
class Batch:
    """The features of T training tuples of M images each; slot 0 is the anchor."""

    ids: Tensor  # (T, M) int64
    plain: Tensor  # (T, M, D), no gradient: every decision is made on these
    augmented: Tensor  # (T, M, D), with gradient
    scales: tuple[Tensor, ...] = ()  # plain features at further scales, for strategy multiscale
    replaced: Tensor | None = None  # (T, M) bool: another image stands in for one that could not be read
    whole: "Batch | None" = None  # the tuples of all ranks, where these are one rank's
    first_tuple: int = 0  # where these begin in the whole

    @property
    def everyone(self) -> "Batch":
        """The whole batch: what enters the banks and stands in the loss."""
        return self if self.whole is None else self.whole


@dataclass(frozen=True)
class Decision:
    """What one iteration took for pictures of the same thing."""

    selected: Tensor  # (T, M) bool: the in-batch query set, anchor included
    similarities: Tensor  # (T, N_b) that decided in the batch
    pool_ids: Tensor | None  # (T, P) the anchors' candidates
    eligible: Tensor | None  # (T, P) bool
    expansion: Expansion | None

    @property
    def mined(self) -> float:
        """Positives that a tuple has in the memory on average, whether or not they stand in the loss."""
        return 0.0 if self.expansion is None else float(self.expansion.positives.sum()) / len(self.selected)


def decide(
    batch: Batch, pool: Pool, banks: MemoryBanks, criteria: Criteria, verdicts: Verdicts | None = None
) -> Decision:
    """Positives of every tuple, in the batch and, for methods D, in the memory. Plain features only.

    With `verdicts` the candidates were judged when the round began, and this only looks them up.
    """
    if verdicts is not None:
        return _look_up(batch, pool, criteria, verdicts)
    strategy = "nn" if criteria.method in ("A", "B") else criteria.strategy
    with torch.no_grad():
        similarities = decision_similarities(
            strategy, plain=batch.plain, augmented=batch.augmented, scales=batch.scales
        )
        chosen = select_in_batch(strategy, similarities, criteria.batch_threshold)  # (T, N_b)
        if batch.replaced is not None:
            # A stand-in is a random image, and the neighbours of a stand-in anchor are somebody else's.
            chosen &= ~(batch.replaced[:, 1:] | batch.replaced[:, :1])
        selected = query_set(chosen)
        if not criteria.mines_memory:
            return Decision(selected, similarities, None, None, None)
        device = batch.plain.device
        pool_ids = pool.ids[batch.ids[:, 0].cpu()].to(device).long()  # (T, P)
        eligible = eligible_candidates(pool_ids, batch.ids)
        expansion = expand(
            batch.plain,
            anchor_only(selected) if criteria.method == "D-anchor" else selected,
            banks.plain.read(pool_ids).to(device),
            eligible,
            sparsity=criteria.sparsity,
            aggregate=criteria.aggregate,
            choose=criteria.choose,
            k=criteria.k,
            threshold=criteria.memory_threshold,
            repeats=criteria.repeats,
            floor=criteria.floor,
        )
    return Decision(selected, similarities, pool_ids, eligible, expansion)


def announce(tuple_ids: Tensor, pool: Pool, banks: MemoryBanks, criteria: Criteria) -> None:
    """Say which bank rows the tuples (T, M) will need, before the network has seen their images."""
    if criteria.mines_memory and criteria.similarity == "cosine":
        pool_ids = pool.ids[tuple_ids[:, 0].cpu()].long()
        banks.plain.ahead(pool_ids)
        if criteria.pool_negatives:
            banks.augmented.ahead(pool_ids)


def _look_up(batch: Batch, pool: Pool, criteria: Criteria, verdicts: Verdicts) -> Decision:
    anchors, device = batch.ids[:, 0].cpu(), batch.ids.device
    pool_ids = pool.ids[anchors].to(device).long()  # (T, P)
    positive = verdicts.positive[anchors].to(device)
    member = pool_ids[:, :, None] == batch.ids[:, None, 1:]  # (T, P, N_b)
    chosen = (member & positive[:, :, None]).any(1)
    if batch.replaced is not None:
        chosen &= ~(batch.replaced[:, 1:] | batch.replaced[:, :1])
    similar = pool.similarities[anchors].to(device).float()
    similarities = (member * similar[:, :, None]).sum(1)  # (T, N_b)
    selected = query_set(chosen)
    if not criteria.mines_memory:
        return Decision(selected, similarities, None, None, None)
    eligible = eligible_candidates(pool_ids, batch.ids)
    mined = positive & eligible
    return Decision(
        selected, similarities, pool_ids, eligible, Expansion(mined, mined.to(torch.int8), similar)
    )


def contrast(
    batch: Batch,
    decision: Decision,
    pool: Pool,
    banks: MemoryBanks,
    criteria: Criteria,
    generator: torch.Generator,
    verdicts: Verdicts | None = None,
) -> LossValue:
    """The loss of these tuples; `generator` draws the random bank rows of methods B and C."""
    device = batch.plain.device
    bank = shared_ids = shared_bank = None
    if not (criteria.memory_positives or criteria.pool_negatives):
        # Nothing of the pool stands in the loss: what was mined comes as members of the tuples, with gradient.
        decision = replace(decision, pool_ids=None, eligible=None, expansion=None)
    elif decision.pool_ids is not None and decision.expansion is not None and not criteria.pool_negatives:
        # The rest of the pool plays no part: only the mined rows need to be read.
        columns, real = compact(decision.expansion.positives)
        decision = replace(
            decision,
            pool_ids=decision.pool_ids.gather(1, columns),
            eligible=real,
            expansion=replace(decision.expansion, positives=real),
        )
    if decision.pool_ids is not None:
        bank = banks.augmented.read(decision.pool_ids).to(device)  # (T, P, D)
    if criteria.random_memory:
        shared_ids = _random_rows(len(banks.augmented), criteria.random_negatives, generator).to(device)
        shared_bank = banks.augmented.read(shared_ids).to(device)  # (R, D)
    return contrastive_loss(
        batch.augmented,
        _masks(batch, decision, pool, criteria, shared_ids, verdicts),
        bank=bank,
        shared_bank=shared_bank,
        batch=None if batch.whole is None else batch.whole.augmented.flatten(0, 1),
        margin=criteria.margin,
        normalise=criteria.normalise,
    )


def _random_rows(rows: int, wanted: int, generator: torch.Generator) -> Tensor:
    if wanted >= rows:
        return torch.arange(rows)
    # With replacement: at a million rows a draw without would cost a pass over all of them.
    return torch.randint(rows, (wanted,), generator=generator)


def _masks(
    batch: Batch,
    decision: Decision,
    pool: Pool,
    criteria: Criteria,
    shared_ids: Tensor | None,
    verdicts: Verdicts | None,
) -> PairMasks:
    anchors, device = batch.ids[:, 0].cpu(), batch.ids.device
    ignored_pool = batch_ignored = shared_negative = None
    if shared_ids is not None:
        shared_negative = random_negatives_mask(shared_ids, batch.ids)
    if verdicts is not None:
        # What a verdict calls positive or doubtful is nowhere a negative, whoever brought it into the batch.
        excused = (verdicts.positive[anchors] | verdicts.ignored[anchors]).to(device)  # (T, P)
        candidates = pool.ids[anchors].to(batch.ids)
        excused_images = torch.zeros(len(anchors), len(pool.ids), dtype=torch.bool, device=device)
        excused_images.scatter_(1, candidates, excused)
        batch_ignored = excused_images[:, batch.everyone.ids.reshape(-1)]  # (T, B)
        if criteria.pool_negatives:
            ignored_pool = verdicts.ignored[anchors].to(device)
        if shared_negative is not None:
            shared_negative &= ~excused_images[:, shared_ids]
    else:
        if criteria.ignore_above is not None and decision.pool_ids is not None:
            # By the similarity that put a candidate into the pool: one number a candidate, no product needed.
            ignored_pool = pool.similarities[anchors].to(device) > criteria.ignore_above  # (T, P)
        if criteria.ignore_nearest:
            nearest = pool.ids[anchors, : criteria.ignore_nearest].to(batch.ids)  # (T, nearest)
            batch_ignored = (nearest[:, :, None] == batch.everyone.ids.reshape(-1)).any(1)  # (T, B)
    return pair_masks(
        batch.ids,
        decision.selected,
        decision.pool_ids,
        decision.eligible,
        decision.expansion.positives if decision.expansion else None,
        ignored_pool=ignored_pool,
        batch_ignored=batch_ignored,
        shared_negative=shared_negative,
        batch_tuple_ids=batch.everyone.ids,
        first_tuple=batch.first_tuple,
    )
