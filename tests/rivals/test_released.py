"""The step of the released code, against a literal one that follows it image by image."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.seen_collection import batch_of, seen_collection
from insclr.methods.method import Batch, RoundStart
from insclr.recipe import load_recipe
from insclr.tracking import read_metrics
from insclr.training.run import train
from insclr_rivals.released import Released, ReleasedSettings


def _literal_contrast(features: Tensor, labels: list[int], rows: Tensor, row_labels: list[int]) -> Tensor:
    total = features.new_zeros(())
    for one, label in zip(features, labels, strict=True):
        for row, other in zip(rows, row_labels, strict=True):
            similar = one @ row
            if label == other and similar < 1 - 1e-6:
                total = total + 1 - similar
            if label != other and similar > 0.4:
                total = total + similar
    return total / len(features)


class _Literal:
    """Banks, boundaries of the pool, labels by image, as sets and loops."""

    def __init__(self, settings: ReleasedSettings, start: RoundStart) -> None:
        self.settings = settings
        described = start.network.describe_pooled(start.plain)
        similar = (described @ described.T).fill_diagonal_(-2)
        self.near = similar.argsort(dim=1, descending=True)[:, : settings.pool].tolist()
        self.similar = similar.tolist()
        self.plain = described.clone()
        self.augmented = start.network.describe_pooled(start.views[0]).clone()
        self.written = set(range(len(start))) if settings.memory == "mined" else set()

    def step(self, batch: Batch) -> Tensor:
        settings, tuples = self.settings, batch.ids.tolist()
        labels: list[list[int]] = []
        for t, images in enumerate(tuples):
            own = images[0] + 1
            labels.append([own])
            for m in range(1, len(images)):
                right = True
                if settings.batch_threshold != "off":
                    assert batch.plain is not None
                    right = float(batch.plain[t, 0] @ batch.plain[t, m]) >= settings.batch_threshold
                labels[-1].append(own if right else -own)
        flat = [label for of_tuple in labels for label in of_tuple]
        features = batch.augmented.flatten(0, 1)
        loss = _literal_contrast(features, flat, features, flat)
        for t, images in enumerate(tuples):
            for m, image in enumerate(images):
                self.augmented[image] = batch.augmented[t, m].detach()
                if batch.plain is not None:
                    self.plain[image] = batch.plain[t, m]
                self.written.add(image)
        bank = self._negatives(tuples) if settings.memory == "negatives" else self._mine(tuples, labels)
        kept = [place for place, label in enumerate(flat) if label > 0]
        rows = self.augmented[list(bank)]
        return loss + _literal_contrast(features[kept], [flat[i] for i in kept], rows, list(bank.values()))

    def _negatives(self, tuples: list[list[int]]) -> dict[int, int]:
        spared = {
            near for images in tuples for image in images for near in self.near[image][: self.settings.spared]
        }
        return dict.fromkeys(sorted(self.written - spared), len(self.similar) + 1)

    def _mine(self, tuples: list[list[int]], labels: list[list[int]]) -> dict[int, int]:
        settings = self.settings
        members = {
            images[0] + 1: [i for i, label in zip(images, own, strict=True) if label > 0]
            for images, own in zip(tuples, labels, strict=True)
        }
        accepted: dict[int, int] = {}
        for label in sorted(members):  # a later label takes an image over
            for image in members[label]:
                for near in self.near[image]:
                    if self.similar[image][near] >= settings.accept_above and near not in members[label]:
                        accepted[near] = label
        mined = dict(accepted)
        for label in sorted(members):
            between = {
                near
                for image in members[label]
                for near in self.near[image]
                if settings.ignore_above <= self.similar[image][near] < settings.accept_above
            }
            candidates = sorted(between - accepted.keys())
            queries = members[label] + [image for image, of in accepted.items() if of == label]
            for image in self._grow(queries, candidates):
                mined[image] = label
        if not settings.negatives:
            return mined
        far = {
            near
            for images in members.values()
            for image in images
            for near in self.near[image]
            if self.similar[image][near] < settings.ignore_above
        }
        rest = self.written - mined.keys()
        return mined | dict.fromkeys(sorted(far & rest) + sorted(rest - far), len(self.similar) + 1)

    def _grow(self, queries: list[int], candidates: list[int]) -> set[int]:
        chosen: set[int] = set()
        query = list(queries)
        for _ in range(self.settings.repeats):
            scores = {}
            for image in candidates:
                similar = [float(self.plain[image] @ self.plain[q]) for q in query]
                kept = [one for one in similar if one >= self.settings.sparsity]
                if kept and image not in chosen:
                    scores[image] = sum(kept) / (len(kept) + 1e-6)
            best = sorted(scores, key=lambda image: -scores[image])[: self.settings.k]
            chosen |= set(best)
            query += best
        return chosen


def _gradients(tmp_path: Path, seed: int, **settings: Any) -> tuple[Tensor, Tensor]:
    """The gradient of the FC by the method and by the literal step."""
    start = seen_collection(tmp_path / str(seed), spread=0.45, seed=seed)
    chosen = ReleasedSettings(pool=30, **settings)
    method, literal = Released(chosen), _Literal(chosen, start)
    method.prepare(start)
    (weight,) = start.network.fc.parameters()  # type: ignore[union-attr]
    found = []
    for step in range(3):  # the banks of a step hold what the steps before it wrote
        batch = batch_of(method, start, step)
        for loss in (method.loss(batch, step, torch.Generator()).loss, literal.step(batch)):
            (gradient,) = torch.autograd.grad(loss, [weight], retain_graph=True)
            found.append(gradient.flatten())
    return torch.cat(found[0::2]), torch.cat(found[1::2])


@pytest.mark.parametrize(
    "settings",
    [
        {"memory": "negatives", "batch_threshold": "off", "spared": 5},
        {"accept_above": 0.8, "ignore_above": 0.3, "sparsity": 0.4},
        {"accept_above": 0.9, "ignore_above": 0.5, "k": 20, "repeats": 2, "negatives": False},
        {"accept_above": 0.5, "ignore_above": 0.2, "k": 2},
    ],
)
def test_the_gradient_is_that_of_the_released_step(tmp_path: Path, settings: dict[str, Any]) -> None:
    for seed in range(5):
        ours, theirs = _gradients(tmp_path, seed, **settings)
        assert float(torch.cosine_similarity(ours, theirs, dim=0)) >= 0.999
        assert float(ours.norm() / theirs.norm()) == pytest.approx(1, abs=1e-3)


def test_rows_are_read_only_once_they_were_written(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    settings = ReleasedSettings(
        pool=30, memory="negatives", batch_threshold="off", spared=0, write_from=1, read_from=2
    )
    method = Released(settings)
    method.prepare(start)
    numbers = [
        dict(method.loss(batch_of(method, start, step), step, torch.Generator()).numbers) for step in range(3)
    ]
    assert ["memory_loss" in one for one in numbers] == [False, False, True]
    seen = {int(i) for step in (1, 2) for i in method.sampler.step(step).flatten()}
    assert set(np.flatnonzero(method._written.numpy())) == seen


def test_a_step_after_a_checkpoint_is_the_same(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    settings = ReleasedSettings(pool=30, accept_above=0.8, ignore_above=0.3, rows=20)
    method = Released(settings)
    method.prepare(start)
    method.loss(batch_of(method, start, 0), 0, torch.Generator().manual_seed(0))
    other = Released(settings)
    other.prepare(start)
    other.load_state_dict(method.state_dict(), {}, start.ranks)
    batch = batch_of(method, start, 1)
    losses = [one.loss(batch, 1, torch.Generator().manual_seed(1)).loss for one in (method, other)]
    assert torch.equal(*losses)


@pytest.mark.parametrize("name", ["released-gldv2", "released-instre"])
def test_the_recipes_use_the_released_step(name: str) -> None:
    methods = [each.method for each in load_recipe(name).rounds]
    assert all(isinstance(one, ReleasedSettings) for one in methods)
    assert [one.memory for one in methods][-1] == "mined"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["released-gldv2", "released-instre"])
def test_the_recipes_train_through_all_rounds(name: str, small_collection: Path, tmp_path: Path) -> None:
    changes: tuple[str, ...] = (
        "workers=0", "network.backbone=efficientnet_lite0", "network.dim=16", "descriptor.size=48",
        "rounds.train=fc", "rounds.cached_views=1", "rounds.plain_size=48", "rounds.augmented_size=48",
        "rounds.steps=3", "rounds.tuples=6", "rounds.method.pool=10",
        "checkpoint_every=2",
    )  # fmt: skip
    if name == "released-gldv2":
        changes += ("rounds.0.method.write_from=0", "rounds.0.method.read_from=1")
    train(small_collection, tmp_path, name, changes=changes, labels=small_collection / "labels.csv")
    records = read_metrics(tmp_path)
    ends = [record["steps"] for record in records if record.get("event") == "end"]
    assert ends == [3] * len(load_recipe(name).rounds)
    assert 0 < records[-1]["map"] <= 100
