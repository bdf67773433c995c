"""Cluster contrast: loss and memory image by image, and clusters recovered."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from helpers.seen_collection import batch_of, learn, measured_map, seen_collection, truth
from insclr.errors import UserError
from insclr_rivals.cluster_contrast import ClusterContrast, ClusterContrastSettings, follow

_SETTINGS = ClusterContrastSettings(k1=9, k2=3, min_images=3, images_per_tuple=3)


def test_the_loss_and_the_memory_image_by_image(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, spread=0.3)
    method = ClusterContrast(_SETTINGS)
    assert method.prepare(start).criteria["clusters"] >= 8
    batch = batch_of(method, start)
    of_image, memory = method.state_dict()["of_image"], method.state_dict()["memory"].clone()
    clusters = of_image[batch.ids]
    assert (clusters == clusters[:, :1]).all()  # a tuple shows one cluster
    descriptors = batch.augmented.flatten(0, 1)
    expected = cross_entropy(descriptors @ memory.T / 0.05, clusters.flatten())
    torch.testing.assert_close(method.loss(batch, 0, torch.Generator()).loss, expected)
    for image, cluster in zip(descriptors.detach(), clusters.flatten().tolist(), strict=True):
        memory[cluster] = normalize(0.1 * memory[cluster] + 0.9 * image, dim=0)
    torch.testing.assert_close(method.state_dict()["memory"], memory)


def test_the_memory_starts_at_the_means_of_the_clusters(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, spread=0.3)
    method = ClusterContrast(_SETTINGS)
    method.prepare(start)
    of_image, memory = method.state_dict()["of_image"], method.state_dict()["memory"]
    for cluster, centre in enumerate(memory):
        mean = start.descriptors[of_image == cluster].mean(0)
        torch.testing.assert_close(centre, mean / mean.norm())


def test_clusters_are_recovered_and_retrieval_gets_better(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, spread=0.45, tuples=12)
    method = ClusterContrast(_SETTINGS)
    method.prepare(start)
    before = measured_map(start)
    learn(method, _SETTINGS, start, steps=40)
    assert measured_map(start) > before
    of_image = method.state_dict()["of_image"]
    same = (of_image[:, None] == of_image) & (of_image >= 0)
    assert (same & (truth()[:, None] == truth())).sum() / same.sum() > 0.8


def test_no_cluster_and_one_cluster_are_reported(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, spread=3.0)
    with pytest.raises(UserError, match="no cluster among 60 images"):
        ClusterContrast(_SETTINGS.with_(min_images=50)).prepare(start)
    alike = seen_collection(tmp_path, spread=0.0, instances=1, images=20)
    with pytest.raises(UserError, match="all 20 images into one cluster"):
        ClusterContrast(_SETTINGS.with_(eps=0.9, min_images=1)).prepare(alike)


def test_an_epoch_without_clusters_keeps_the_last_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = seen_collection(tmp_path, spread=0.3)
    method = ClusterContrast(_SETTINGS)
    method.prepare(start)
    before = method.state_dict()["of_image"]
    method.settings = _SETTINGS.with_(min_images=50)
    method.begin_epoch(1, start.plain, start.ranks)
    assert torch.equal(method.state_dict()["of_image"], before)
    assert "fewer than two clusters" in caplog.text


def test_a_centre_moves_by_its_momentum() -> None:
    memory = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found = follow(memory, torch.tensor([[0.0, 1.0]]), torch.tensor([0]), 0.5)
    torch.testing.assert_close(found, torch.tensor([[0.5**0.5, 0.5**0.5], [0.0, 1.0]]))
    assert torch.equal(memory, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
