"""BYOL's loss by hand, and that no gradient reaches the target."""

from pathlib import Path

import torch
from torch.nn.functional import normalize

from helpers.seen_collection import batch_of, learn, seen_collection
from insclr_rivals.byol import Byol, ByolSettings
from insclr_rivals.views import view_similarities

_SMALL = ByolSettings(hidden=16, projected=8, momentum=0.9)


def test_the_loss_is_the_cosine_of_prediction_and_slow_projection_both_ways(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method = Byol(_SMALL)
    method.prepare(start)
    batch = batch_of(method, start)
    method.heads.eval()  # running statistics, so that the order of the calls does not matter
    found = method.loss(batch, 0, torch.Generator()).loss
    assert batch.teacher is not None
    total = 0.0
    for one, other in ((0, 1), (1, 0)):
        predicted = method.heads["prediction"](method.heads["projection"](batch.views[one, :, 0]))
        target = method.heads["slow"](batch.teacher[other, :, 0])
        total -= float((normalize(predicted, dim=1) * normalize(target, dim=1)).sum(1).mean().detach())
    torch.testing.assert_close(found, torch.tensor(total / 2))


def test_no_gradient_reaches_the_target(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method = Byol(_SMALL)
    method.prepare(start)
    method.loss(batch_of(method, start), 0, torch.Generator()).loss.backward()
    assert all(parameter.grad is None for parameter in method.heads["slow"].parameters())
    assert all(parameter.grad is not None for parameter in method.parameters())


def test_views_of_an_image_move_together(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, tuples=30)
    method = Byol(_SMALL)
    method.prepare(start)
    before = view_similarities(batch_of(method, start))["positive_similarity"]
    learn(method, _SMALL, start)
    assert view_similarities(batch_of(method, start))["positive_similarity"] > before
