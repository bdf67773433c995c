"""ArcFace, image by image, and that it learns the instances."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from helpers.seen_collection import batch_of, learn, measured_map, seen_collection, truth
from insclr.errors import UserError
from insclr_rivals.arcface import Arcface, ArcfaceSettings


def test_the_loss_image_by_image(tmp_path: Path) -> None:
    start = replace(seen_collection(tmp_path), instances=truth())
    method = Arcface(ArcfaceSettings(scale=16.0))
    assert method.prepare(start).criteria["instances"] == 10
    batch = batch_of(method, start)
    assert batch.ids.shape == (6, 4)
    centres = normalize(method.parameters()[0], dim=0)  # (D, 10)
    losses = []
    for row, instance in zip(batch.augmented.flatten(0, 1), truth()[batch.ids.flatten()], strict=True):
        cosines = row @ centres
        angle = torch.acos(cosines[instance])
        moved = cosines.clone()
        moved[instance] = torch.cos(angle + math.radians(28.6))
        losses.append(cross_entropy(16 * moved[None], instance[None]))
    found = method.loss(batch, 0, torch.Generator()).loss
    torch.testing.assert_close(found, torch.stack(losses).mean(), atol=1e-4, rtol=1e-4)


def test_it_learns_the_instances(tmp_path: Path) -> None:
    start = replace(seen_collection(tmp_path, spread=0.8), instances=truth())
    settings = ArcfaceSettings(scale=16.0)
    method = Arcface(settings)
    method.prepare(start)
    before = measured_map(start)
    learn(method, settings, start)
    assert measured_map(start) > before + 0.1


def test_images_without_a_label_take_no_part(tmp_path: Path) -> None:
    known = truth()
    known[6:12] = -1
    start = replace(seen_collection(tmp_path), instances=known)
    method = Arcface(ArcfaceSettings())
    assert method.prepare(start).criteria["instances"] == 9
    drawn = torch.cat([method.sampler.step(n).flatten() for n in range(20)])
    assert not ((drawn >= 6) & (drawn < 12)).any()


def test_without_labels_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--labels"):
        Arcface(ArcfaceSettings()).prepare(seen_collection(tmp_path))
    start = replace(seen_collection(tmp_path), instances=torch.zeros(60, dtype=torch.int64))
    with pytest.raises(UserError, match="one instance only"):
        Arcface(ArcfaceSettings()).prepare(start)
