"""k-reciprocal encodings against a slow version of the paper with whole matrices."""

import numpy as np

from insclr_rivals.clusters import jaccard_distances


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
    """Zhong et al. 2017 with whole matrices and sets, image by image."""
    count = len(rows)
    similar = rows @ rows.T
    order = [[j for j in np.argsort(-similar[i], kind="stable").tolist() if j != i] for i in range(count)]

    def reciprocal(i: int, k: int) -> set[int]:
        return {j for j in order[i][:k] if i in order[j][:k]} | {i}

    encoded = np.zeros((count, count))
    for i in range(count):
        first = reciprocal(i, k1)
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
