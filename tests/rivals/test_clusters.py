"""k-means, DBSCAN and k-reciprocal distances, against dense slow versions and on degenerate collections."""

import math

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.cluster import DBSCAN
from torch.nn.functional import normalize

from insclr_rivals.clusters import (
    Clusters,
    cluster_count,
    concentration,
    dbscan,
    group_means,
    jaccard_distances,
    k_means,
)


def _blobs(groups: int, images: int, spread: float) -> torch.Tensor:
    centres = torch.randn(groups, 1, 16)
    return normalize((centres + spread * torch.randn(groups, images, 16)).flatten(0, 1), dim=1)


def test_k_means_finds_groups_that_stand_apart() -> None:
    features = _blobs(5, 20, 0.05)
    found = k_means(features, 15, seed=0)
    assert len(found) == 15
    of_group = found.of_image.view(5, 20)
    assert (
        sum(len(row.unique()) for row in of_group) == 15
    )  # all are in use, and none reaches over two groups
    torch.testing.assert_close(found.centres.norm(dim=1), torch.ones(15))
    assert torch.equal(found.of_image, k_means(features, 15, seed=0).of_image)


@pytest.mark.parametrize("count", [3, 4, 9])
def test_k_means_with_as_few_images_as_clusters(count: int) -> None:
    features = _blobs(2, 2, 0.3)
    found = k_means(features, count, seed=0)
    assert torch.isfinite(found.centres).all()
    assert len(found) == min(count, 4)
    assert found.of_image.max() < len(found)


def test_k_means_of_equal_images() -> None:
    found = k_means(normalize(torch.ones(30, 8), dim=1), 4, seed=0)
    assert torch.isfinite(found.centres).all()


def test_how_many_clusters_a_collection_is_cut_into() -> None:
    assert cluster_count(1000, 10.0) == 100
    assert cluster_count(5, 100.0) == 2
    assert cluster_count(7, 1.0) == 7
    assert cluster_count(1, 10.0) == 1


def test_the_concentration_of_pcl_by_hand() -> None:
    # One cluster of two images at distances 0.6 and 0.2, one of three at 0.5 each, one of a single image.
    centres = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    features = torch.tensor([[1.6, 0.0], [1.2, 0.0], [0.5, 1.0], [-0.5, 1.0], [0.0, 1.5], [-1.0, 0.3]])
    clusters = Clusters(torch.tensor([0, 0, 1, 1, 1, 2]), centres)
    first, second = 0.4 / math.log(12), 0.5 / math.log(13)
    raw = np.array([first, second, max(first, second)])
    cut = np.clip(raw, np.quantile(raw, 0.1), np.quantile(raw, 0.9))
    found = concentration(features, clusters, alpha=10.0, mean=0.2)
    np.testing.assert_allclose(found.numpy(), 0.2 * cut / cut.mean(), rtol=1e-5)
    assert found.mean().item() == pytest.approx(0.2)


def test_concentration_where_every_image_is_alone() -> None:
    features = normalize(torch.randn(4, 8), dim=1)
    found = concentration(features, k_means(features, 4, seed=0), alpha=10.0, mean=0.2)
    torch.testing.assert_close(found, torch.full((4,), 0.2))


@pytest.mark.parametrize(("eps", "least"), [(0.2, 2), (0.4, 4), (0.7, 6), (1.2, 3)])
def test_dbscan_equals_the_dense_one(eps: float, least: int) -> None:
    features = _blobs(6, 15, 0.35).numpy()
    distances = np.sqrt(np.maximum(0, 2 - 2 * features @ features.T))
    np.fill_diagonal(distances, 0)
    near = sparse.csr_array(np.where(distances <= 1.5, distances + 1e-9, 0))
    expected = DBSCAN(eps=eps + 1e-9, min_samples=least, metric="precomputed").fit(distances).labels_
    np.testing.assert_array_equal(dbscan(near, eps + 1e-9, least), expected)


def test_dbscan_of_nothing_near_and_of_everything_near() -> None:
    nothing = sparse.csr_array((5, 5))
    np.testing.assert_array_equal(dbscan(nothing, 0.5, 2), [-1] * 5)
    np.testing.assert_array_equal(dbscan(nothing, 0.5, 1), range(5))
    everything = sparse.csr_array(np.full((5, 5), 0.1))
    np.testing.assert_array_equal(dbscan(everything, 0.5, 4), [0] * 5)


def test_the_mean_of_a_group_leaves_out_what_belongs_to_none() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [9.0, 9.0], [0.0, -2.0]])
    found = group_means(rows, torch.tensor([0, 0, -1, 1]))
    torch.testing.assert_close(found, torch.tensor([[0.5**0.5, 0.5**0.5], [0.0, -1.0]]))


def test_sparse_jaccard_distances_equal_dense_ones() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = jaccard_distances(rows, k1=10, k2=4).toarray()
    expected = _dense_jaccard(rows, k1=10, k2=4)
    # What is not stored is as far as can be.
    found[(found == 0) & (expected == 1)] = 1
    np.testing.assert_allclose(found, expected, atol=1e-5)
    near = jaccard_distances(rows, k1=10, k2=4, largest=0.6).toarray()
    np.testing.assert_allclose(near, np.where(expected <= 0.6, expected, 0), atol=1e-5)


def _dense_jaccard(rows: np.ndarray, k1: int, k2: int) -> np.ndarray:
    """Zhong et al. 2017 with whole matrices and sets, image by image; k1 counts the image, as in the code of SpCL."""
    count = len(rows)
    similar = rows @ rows.T
    order = [[j for j in np.argsort(-similar[i], kind="stable").tolist() if j != i] for i in range(count)]

    def reciprocal(i: int, k: int) -> set[int]:
        return {j for j in order[i][:k] if i in order[j][:k]} | {i}

    encoded = np.zeros((count, count))
    for i in range(count):
        first = reciprocal(i, k1 - 1)
        whole = set(first)
        for j in first:
            half = reciprocal(j, round(k1 / 2))
            if len(half & first) > 2 / 3 * len(half):
                whole |= half
        members = sorted(whole)
        weights = np.exp(-(2 - 2 * similar[i, members]))
        encoded[i, members] = weights / weights.sum()
    mean = np.stack([encoded[[i, *order[i][: k2 - 1]]].mean(0) for i in range(count)])
    distances = np.empty((count, count))
    for i in range(count):
        for j in range(count):
            smaller, larger = np.minimum(mean[i], mean[j]).sum(), np.maximum(mean[i], mean[j]).sum()
            distances[i, j] = 1 - smaller / larger
    return np.maximum(distances, 0)
