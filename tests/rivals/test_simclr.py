"""SimCLR: the loss pair by pair, on any number of ranks."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from helpers.seen_collection import batch_of, learn, seen_collection
from insclr.errors import UserError
from insclr.methods.method import Batch
from insclr_rivals.simclr import Simclr, SimclrSettings
from insclr_rivals.views import view_similarities

_SMALL = SimclrSettings(hidden=16, projected=8, temperature=0.2)


def test_the_loss_pair_by_pair(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method = Simclr(_SMALL)
    method.prepare(start)
    batch = batch_of(method, start)
    assert batch.ids.shape == (6, 1)
    found = method.loss(batch, 0, torch.Generator())
    # Slowly: every view must find the other view of its image among the eleven other views.
    projected = method.heads["projection"](torch.cat([batch.views[0, :, 0], batch.views[1, :, 0]]))
    z = normalize(projected, dim=1)
    losses = []
    for i in range(12):
        others = [j for j in range(12) if j != i]
        logits = torch.stack([z[i] @ z[j] / 0.2 for j in others])
        losses.append(cross_entropy(logits[None], torch.tensor([others.index((i + 6) % 12)])))
    torch.testing.assert_close(found.loss, torch.stack(losses).mean())


def test_views_of_an_image_move_together_and_away_from_others(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, tuples=30)
    method = Simclr(_SMALL)
    method.prepare(start)
    learn(method, _SMALL, start)
    before = view_similarities(batch_of(method, seen_collection(tmp_path, tuples=30)))
    after = view_similarities(batch_of(method, start))

    def gap(seen: dict[str, torch.Tensor]) -> float:
        return float(seen["positive_similarity"] - seen["negative_similarity"])

    assert gap(after) > gap(before) + 0.004


def test_the_heads_are_trained_and_kept(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method, other = Simclr(_SMALL), Simclr(_SMALL)
    method.prepare(start)
    other.prepare(start)
    weights = [parameter.clone() for parameter in method.parameters()]
    assert all(
        torch.equal(a, b) for a, b in zip(weights, other.parameters(), strict=True)
    )  # by the seed alone
    learn(method, _SMALL, start, steps=2)
    assert not any(torch.equal(a, b) for a, b in zip(weights, method.parameters(), strict=True))
    other.load_state_dict(method.state_dict(), {}, start.ranks)
    batch = batch_of(method, start)
    one, two = (each.loss(batch, 0, torch.Generator()).loss for each in (method, other))
    assert torch.equal(one, two)


def test_every_rank_computes_the_loss_of_the_whole_batch(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method = Simclr(_SMALL)
    method.prepare(start)
    whole = batch_of(method, start)
    part = Batch(whole.ids[:2], whole.views[:, :2], whole=whole)
    method.heads.eval()  # running statistics would move in between
    assert torch.equal(
        method.loss(part, 0, torch.Generator()).loss, method.loss(whole, 0, torch.Generator()).loss
    )


def test_a_batch_of_one_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to compare"):
        Simclr(_SMALL).prepare(seen_collection(tmp_path, tuples=1))
