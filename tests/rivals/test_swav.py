"""SwAV: assignments that sum as they must, the queue, the swapped prediction."""

from pathlib import Path

import torch
from torch.nn.functional import log_softmax, normalize

from helpers.seen_collection import batch_of, learn, seen_collection
from insclr_rivals.optional_packages import lightly
from insclr_rivals.swav import Swav, SwavSettings

_SMALL = SwavSettings(hidden=16, projected=8, queue=12, images_per_prototype=6.0)


def _even(scores: torch.Tensor, epsilon: float, iterations: int = 3) -> torch.Tensor:
    """Sinkhorn as the paper writes it, in double precision: prototypes alike, then images alike."""
    q = torch.exp(scores.double() / epsilon).T  # (K, B)
    for _ in range(iterations):
        q = q / q.sum(1, keepdim=True) / len(q)
        q = q / q.sum(0, keepdim=True) / q.shape[1]
    return (q * q.shape[1]).T


def test_assignments_sum_as_they_must() -> None:
    scores = torch.nn.functional.normalize(torch.randn(40, 8), dim=1) @ torch.randn(8, 5)
    few = lightly("loss.swav_loss").sinkhorn(scores / 3)
    torch.testing.assert_close(few.sum(1), torch.ones(40))  # an image is assigned once
    torch.testing.assert_close(few.double(), _even(scores / 3, 0.05), atol=1e-5, rtol=1e-4)
    many = lightly("loss.swav_loss").sinkhorn(scores / 3, iterations=200)
    torch.testing.assert_close(many.sum(0), torch.full((5,), 8.0), atol=1e-2, rtol=0)  # prototypes get alike


def test_the_loss_with_and_without_a_full_queue(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method = Swav(_SMALL)
    criteria = method.prepare(start).criteria
    assert (criteria["prototypes"], criteria["queue"]) == (10, 12)
    method.heads.eval()
    for step in range(3):  # six images a step: the queue is full from the third on
        batch = batch_of(method, start, step)
        state = method.state_dict()
        found = method.loss(batch, step, torch.Generator()).loss
        weight = method.heads["prototypes"].heads[0].weight  # type: ignore[index, union-attr]
        torch.testing.assert_close(weight.norm(dim=1), torch.ones(10))
        projected = [normalize(method.heads["projection"](view[:, 0]), dim=1) for view in batch.views]
        scores = [each @ weight.T for each in projected]
        expected = 0.0
        for one, other in ((0, 1), (1, 0)):
            considered = scores[one]
            if step == 2:
                assert state["queued"] == 12
                considered = torch.cat([considered, state["queue"][one] @ weight.T])
            codes = _even(considered.detach(), 0.05)[:6]
            expected -= float((codes * log_softmax(scores[other].detach() / 0.1, dim=1)).sum(1).mean())
        torch.testing.assert_close(found, torch.tensor(expected / 2), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(method.state_dict()["queue"][0, :6], projected[0])


def test_prototypes_wait_for_an_epoch_and_then_learn(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, tuples=30)  # two steps an epoch
    method = Swav(_SMALL)
    method.prepare(start)
    losses = []
    for step in range(3):
        method.heads.zero_grad()
        loss = method.loss(batch_of(method, start, step), step, torch.Generator()).loss
        loss.backward()
        losses.append(method.heads["prototypes"].heads[0].weight.grad is None)  # type: ignore[index, union-attr]
    assert losses == [True, True, False]


def test_the_swapped_prediction_gets_better(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, tuples=30)
    method = Swav(_SMALL)
    method.prepare(start)
    before = float(method.loss(batch_of(method, start), 0, torch.Generator()).loss.detach())
    learn(method, _SMALL, start)
    assert float(method.loss(batch_of(method, start), 60, torch.Generator()).loss.detach()) < before


def test_without_a_queue_and_with_more_prototypes_than_images_it_still_has_a_loss(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, instances=2, images=2, tuples=2)
    method = Swav(SwavSettings(hidden=8, projected=4, queue=0, images_per_prototype=1.0))
    assert method.prepare(start).criteria["prototypes"] == 4
    for step in range(3):
        assert torch.isfinite(
            method.loss(batch_of(method, start, step), step, torch.Generator()).loss.detach()
        )
