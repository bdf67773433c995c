"""Clusters of descriptors: k-means with PCL's concentration, and DBSCAN on k-reciprocal Jaccard distances."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn.functional import normalize

from insclr.arrays import Descriptors, Ids
from insclr.neighbours.exact import nearest_rows

_KMEANS_STEPS = 20


@dataclass(frozen=True)
class Clusters:
    """Which cluster every image belongs to, -1 for none, and the clusters' centres."""

    of_image: Tensor  # (N,) int64
    centres: Tensor  # (K, D) unit rows

    def __len__(self) -> int:
        return len(self.centres)


def cluster_count(images: int, images_per_cluster: float) -> int:
    """How many clusters a collection is cut into: two at least, and no more than there are images."""
    return min(images, max(2, round(images / images_per_cluster)))


def k_means(features: Tensor, count: int, seed: int) -> Clusters:
    """Spherical k-means of unit rows (N, D); with fewer images than `count` every image is its own cluster.

    Clusters that run empty take over half of a large one, so that all `count` centres are finite and in use unless
    images are equal.
    """
    faiss: Any = import_module("faiss")  # its type stubs know nothing of the Python layer
    rows = np.ascontiguousarray(features.float().numpy())
    if count >= len(rows):
        return Clusters(torch.arange(len(rows)), normalize(features.float(), dim=1))
    found = faiss.Kmeans(
        rows.shape[1],
        count,
        niter=_KMEANS_STEPS,
        seed=seed,
        spherical=True,
        min_points_per_centroid=1,
        max_points_per_centroid=2**31 - 1,
    )
    found.train(rows)
    nearest = found.index.search(rows, 1)[1][:, 0]
    return Clusters(torch.from_numpy(nearest), normalize(torch.from_numpy(found.centroids.copy()), dim=1))


def group_means(descriptors: Tensor, groups: Tensor) -> Tensor:
    """The mean direction of every group of rows (N, D): (K, D) unit rows; rows of no group (-1) stay out."""
    inside = groups >= 0
    sums = descriptors.new_zeros(int(groups.max()) + 1, descriptors.shape[1])
    return normalize(sums.index_add_(0, groups[inside], descriptors[inside]), dim=1)


def concentration(features: Tensor, clusters: Clusters, alpha: float, mean: float) -> Tensor:
    """How loose each cluster is (K,): phi of PCL, mean distance to the centre / log(size + alpha).

    As in the released code: a cluster of one image is as loose as the loosest, the tenths at both ends are cut, and
    the whole is scaled to the given mean, so that phi serves as a temperature.
    """
    count, of_image = len(clusters), clusters.of_image
    distances = (features.float() - clusters.centres[of_image]).norm(dim=1)  # (N,)
    sizes = torch.bincount(of_image, minlength=count)
    sums = torch.zeros(count).index_add_(0, of_image, distances)
    loose = sums / sizes.clamp(min=1) / torch.log(sizes + alpha)
    several = sizes > 1
    loose[~several] = loose[several].max() if several.any() else 1.0
    loose = loose.clamp(torch.quantile(loose, 0.1), torch.quantile(loose, 0.9)).clamp(min=1e-6)
    return mean * loose / loose.mean()


def dbscan(distances: sparse.csr_array, eps: float, min_images: int) -> NDArray[np.int64]:
    """Clusters by density (Ester et al. 1996): a number for every image, -1 for those in none.

    `distances` (N, N) holds at least every pair up to `eps`, both ways; what is not stored is far. An image with
    `min_images` within `eps`, itself among them, is a core; touching cores are one cluster, and an image that is no
    core belongs to the first cluster with a core within `eps` of it.
    """
    count = distances.shape[0]
    pairs = distances.tocoo()
    near = (pairs.data <= eps) & (pairs.row != pairs.col)
    rows, columns = pairs.row[near], pairs.col[near]
    is_core = np.bincount(rows, minlength=count) + 1 >= min_images
    between = is_core[rows] & is_core[columns]
    graph = sparse.coo_array((np.ones(between.sum()), (rows[between], columns[between])), (count, count))
    component = connected_components(graph, directed=False)[1]
    found = np.full(count, -1, dtype=np.int64)
    cores = np.flatnonzero(is_core)
    # Numbered in the order of their first cores.
    _, first, number = np.unique(component[cores], return_index=True, return_inverse=True)
    found[cores] = np.argsort(np.argsort(first))[number]
    border = ~is_core[rows] & is_core[columns]
    lowest = np.full(count, count, dtype=np.int64)
    np.minimum.at(lowest, rows[border], found[columns[border]])
    reached = (lowest < count) & ~is_core
    found[reached] = lowest[reached]
    return found


def jaccard_distances(database: Descriptors, *, k1: int, k2: int, largest: float = 1.0) -> sparse.csr_array:
    """Jaccard distances (N, N) between k-reciprocal encodings of unit rows (Zhong et al. 2017), up to `largest`.

    `k1` and `k2` count an image itself. Sparse: pairs further apart than `largest`, or with nothing in common, are
    not stored.
    """
    count = len(database)
    near = nearest_rows(torch.from_numpy(database), torch.arange(count), min(k1, count) - 1)[
        1
    ].numpy()  # (N, k1 - 1) others
    first, half = _reciprocal(near), _reciprocal(near[:, : max(1, round(k1 / 2))])
    # R*: the reciprocal set joined by each member's half-size set that overlaps it by 2/3.
    overlap = (first * (first @ half.T)).tocoo()
    joined = overlap.data > 2 / 3 * half.sum(axis=1)[overlap.col]
    ends = (overlap.row[joined], overlap.col[joined])
    members = (first + sparse.csr_array((np.ones(joined.sum()), ends), first.shape) @ half).tocsr()
    for row in range(count):
        own = slice(members.indptr[row], members.indptr[row + 1])
        weights = np.exp(2 * (database[members.indices[own]] @ database[row]) - 2)  # of squared distances
        members.data[own] = weights / weights.sum()
    averaged = _as_sets(near[:, : k2 - 1])
    encoded = (averaged @ members / averaged.sum(axis=1)[:, None]).tocsr()
    by_column, found = encoded.tocsc(), []
    for row in range(count):
        own = slice(encoded.indptr[row], encoded.indptr[row + 1])
        # The overlap with every row that has a column in common: sum of the smaller entries.
        spans = [slice(by_column.indptr[c], by_column.indptr[c + 1]) for c in encoded.indices[own]]
        others = np.concatenate([by_column.indices[span] for span in spans])
        mine = np.repeat(encoded.data[own], [span.stop - span.start for span in spans])
        smaller = np.minimum(mine, np.concatenate([by_column.data[span] for span in spans]))
        shared = np.bincount(others, smaller, minlength=count)
        distance = np.maximum(0, 1 - shared / (2 - shared))  # both encodings sum to one
        rows = np.flatnonzero((shared > 0) & (distance <= largest))
        found.append((rows, distance[rows].astype(np.float32)))
    ends_of_rows = np.cumsum([0, *(len(rows) for rows, _ in found)])
    rows, distances = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return sparse.csr_array((distances, rows, ends_of_rows), shape=encoded.shape)


def _as_sets(near: Ids) -> sparse.csr_array:
    """Each image and these others (N, k), as rows of ones (N, N)."""
    count, k = near.shape
    columns = np.column_stack([np.arange(count), near]).ravel()
    ends = np.arange(0, count * (k + 1) + 1, k + 1)
    return sparse.csr_array((np.ones(len(columns)), columns, ends), shape=(count, count))


def _reciprocal(near: Ids) -> sparse.csr_array:
    """Each image and those of its nearest ones that have it among theirs."""
    sets = _as_sets(near)
    return (sets * sets.T).tocsr()
