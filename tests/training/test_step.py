from dataclasses import replace

import torch
from torch.nn.functional import normalize

from insclr.memory.bank import MemoryBank, MemoryBanks
from insclr.mining.criteria import Criteria
from insclr.mining.verdicts import Verdicts
from insclr.neighbours.pool import build_pool
from insclr.training.step import Batch, contrast, decide

_CRITERIA = Criteria(
    method="D", strategy="plain", similarity="overlap", batch_threshold=0.0, sparsity=None, aggregate="mean",
    choose="topk", k=2, memory_threshold=0.6, floor=0.0, repeats=1, random_negatives=0, pool_negatives=False,
    ignore_above=None, ignore_nearest=0, margin=-2.0, normalise="mean",
)  # fmt: skip


def _one_tuple() -> tuple[Batch, MemoryBanks, torch.Tensor]:
    """Image 0 with its nearest as a tuple, beside another tuple; all features random."""
    rows = normalize(torch.randn(12, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    pool = build_pool(rows, 5)
    ids = torch.stack([torch.cat([torch.tensor([i]), pool.ids[i, :1].long()]) for i in (0, 1)])
    banks = MemoryBanks(MemoryBank(12, 8), MemoryBank(12, 8))
    for bank in (banks.plain, banks.augmented):
        bank.fill(rows, 0)
    return Batch(ids, rows[ids], rows[ids].clone().requires_grad_()), banks, rows


def test_mined_pictures_attract_as_bank_rows_or_only_as_members() -> None:
    batch, banks, rows = _one_tuple()
    pool = build_pool(rows, 5)
    positive = torch.zeros(12, 5, dtype=torch.bool)
    positive[:, :3] = True  # the tuple's member, and two more in the memory
    verdicts = Verdicts(positive, torch.zeros_like(positive))

    def loss(criteria: Criteria) -> tuple[float, float]:
        decision = decide(batch, pool, banks, criteria, verdicts)
        value = contrast(batch, decision, pool, banks, criteria, torch.Generator(), verdicts)
        return float(value.loss.detach()), float(value.bank_positives)

    _, in_memory = loss(_CRITERIA)
    assert in_memory == 2
    assert decide(batch, pool, banks, _CRITERIA, verdicts).mined == 2
    alone, none = loss(replace(_CRITERIA, memory_positives=False))
    assert none == 0
    # By hand: each of a tuple's two images attracts the other, and repels what neither tuple's verdict excuses.
    expected = []
    for own, other in ((0, 1), (1, 0)):
        friends = set(pool.ids[batch.ids[own, 0], :3].tolist()) | set(batch.ids[own].tolist())
        strangers = [int(image) for image in batch.ids[other] if int(image) not in friends]
        for slot in (0, 1):
            me, partner = rows[batch.ids[own, slot]], rows[batch.ids[own, 1 - slot]]
            away = [float(me @ rows[image]) for image in strangers]
            expected.append((sum(away) / len(away) if away else 0.0) - float(me @ partner))
    assert abs(alone - sum(expected) / 4) < 1e-5


def test_no_random_bank_rows_means_no_memory_for_methods_b_and_c() -> None:
    assert not replace(_CRITERIA, method="C").random_memory
    assert replace(_CRITERIA, method="C", random_negatives=10).random_memory
