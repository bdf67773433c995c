"""DeepCluster: a classifier of clusters that are assigned anew every epoch."""

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from helpers.seen_collection import batch_of, learn, measured_map, seen_collection, truth
from insclr_rivals.deepcluster import DeepCluster, DeepClusterSettings

_SETTINGS = DeepClusterSettings(images_per_cluster=6.0)


def test_the_loss_is_that_of_a_classifier_of_the_clusters(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method = DeepCluster(_SETTINGS)
    assert method.prepare(start).criteria["clusters"] == 10
    batch = batch_of(method, start)
    state = method.state_dict()
    logits = batch.augmented[:, 0] @ state["heads"]["classifier.weight"].T
    wanted = state["of_image"][batch.ids[:, 0]]
    torch.testing.assert_close(method.loss(batch, 0, torch.Generator()).loss, cross_entropy(logits, wanted))


def test_clusters_are_drawn_evenly(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method = DeepCluster(_SETTINGS)
    method.prepare(start)
    of_image = method.state_dict()["of_image"]
    drawn = torch.cat([of_image[method.sampler.step(n)[:, 0]] for n in range(500)])
    counts = torch.bincount(drawn, minlength=10)
    assert (counts > 0.75 * len(drawn) / 10).all()


def test_it_recovers_clusters_and_assigns_anew_every_epoch(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, tuples=30, seed=2)
    method = DeepCluster(_SETTINGS)
    method.prepare(start)
    assert method.epoch_steps == 2
    before, first = measured_map(start), method.state_dict()["of_image"]
    learn(method, _SETTINGS, start, steps=30)
    assert measured_map(start) > before + 0.02
    last = method.state_dict()["of_image"]
    assert not torch.equal(first, last)
    # Images of one instance end in one cluster, mostly.
    same = last[:, None] == last
    right = truth()[:, None] == truth()
    assert (same & right).sum() / right.sum() > 0.7


def test_equal_images_and_fewer_images_than_clusters_are_no_trouble(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, spread=0.0, instances=1, images=12)  # all alike: one true cluster
    method = DeepCluster(DeepClusterSettings(images_per_cluster=1.0))
    assert method.prepare(start).criteria["clusters"] == 12
    learn(method, DeepClusterSettings(images_per_cluster=1.0), start, steps=5)
    assert all(
        torch.isfinite(parameter).all() for parameter in start.network.parameters() if parameter.numel()
    )
