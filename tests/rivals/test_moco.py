"""MoCo v2: loss and queue image by image, on one rank and on two."""

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, normalize

from helpers.seen_collection import batch_of, learn, seen_collection
from insclr_rivals.moco import Moco, MocoSettings
from insclr_rivals.views import view_similarities

_SMALL = MocoSettings(hidden=16, projected=8, queue=20, momentum=0.9)


def test_the_loss_image_by_image_and_the_queue_after_it(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method = Moco(_SMALL)
    assert method.prepare(start).criteria["queue"] == 20
    queue = method.state_dict()["queue"].clone()
    batch = batch_of(method, start)
    found = method.loss(batch, 0, torch.Generator())
    assert batch.teacher is not None
    queries = normalize(method.heads["projection"](batch.views[0, :, 0]), dim=1)
    keys = normalize(method.heads["slow"](batch.teacher[1, :, 0]), dim=1)
    losses = []
    for query, key in zip(queries, keys, strict=True):
        logits = torch.stack([query @ key, *(query @ row for row in queue)]) / 0.2
        losses.append(cross_entropy(logits[None], torch.tensor([0])))
    torch.testing.assert_close(found.loss, torch.stack(losses).mean())
    torch.testing.assert_close(method.state_dict()["queue"][:6], keys)
    assert torch.equal(method.state_dict()["queue"][6:], queue[6:])


def test_a_queue_is_at_most_half_of_the_collection_and_may_be_smaller_than_a_batch(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, instances=2, images=3, tuples=6)  # six images, a queue of three
    method = Moco(MocoSettings(hidden=16, projected=8))
    assert method.prepare(start).criteria["queue"] == 3
    for step in range(4):
        assert torch.isfinite(method.loss(batch_of(method, start, step), step, torch.Generator()).loss)


def test_the_slow_head_follows_by_its_momentum(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method = Moco(_SMALL)
    method.prepare(start)
    head, slow = (next(method.heads[name].parameters()) for name in ("projection", "slow"))
    before = slow.clone()
    with torch.no_grad():
        head.add_(1.0)
    method.loss(batch_of(method, start), 0, torch.Generator())
    torch.testing.assert_close(slow, before + 0.1)
    assert not slow.requires_grad


def test_views_of_an_image_move_together_and_away_from_others(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, tuples=30)
    method = Moco(_SMALL)
    method.prepare(start)
    before = view_similarities(batch_of(method, start))
    learn(method, _SMALL, start)
    after = view_similarities(batch_of(method, start))
    assert after["negative_similarity"] < before["negative_similarity"] + 0.05
    gaps = [float(seen["positive_similarity"] - seen["negative_similarity"]) for seen in (before, after)]
    assert gaps[1] > gaps[0]


def test_resumed_it_goes_on_with_its_queue(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method, other = Moco(_SMALL), Moco(_SMALL)
    method.prepare(start)
    other.prepare(start)
    for step in range(3):
        method.loss(batch_of(method, start, step), step, torch.Generator())
    other.load_state_dict(method.state_dict(), {}, start.ranks)
    batch = batch_of(method, start, 3)
    one, two = (each.loss(batch, 3, torch.Generator()).loss for each in (method, other))
    assert torch.equal(one, two)
