"""Clusters of descriptors: k-means, DBSCAN on sparse distances, and how dense and how reliable clusters are."""

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

from insclr.arrays import Descriptors, Ids, Scores
from insclr_rivals.reciprocal import ReciprocalEncoder

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


def agreement(clusters: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.float64]:
    """For every image, the overlap (intersection over union) of its cluster with its cluster among `others`.

    An image in no cluster is a cluster of its own. SpCL: with looser clusters it tells independence, with tighter
    ones compactness.
    """
    a, b = _singled_out(clusters), _singled_out(others)
    _, pair, both = np.unique(a * (b.max() + 1) + b, return_inverse=True, return_counts=True)
    shared = both[pair]
    result: NDArray[np.float64] = shared / (np.bincount(a)[a] + np.bincount(b)[b] - shared)
    return result


def _singled_out(clusters: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same clusters, with a number of its own for every image that is in none."""
    alone = clusters < 0
    numbers = clusters.copy()
    numbers[alone] = clusters.max(initial=-1) + 1 + np.arange(alone.sum())
    return numbers


def jaccard_distances(database: Descriptors, *, k1: int, k2: int, largest: float = 1.0) -> sparse.csr_array:
    """Jaccard distances (N, N) between the reciprocal neighbour sets of unit rows, of pairs up to `largest`.

    Sparse: pairs further apart than `largest`, or with nothing in common, are not stored.
    """
    encoder = ReciprocalEncoder(len(database), k1, k2)
    every_row = np.arange(len(database))
    encoder.fill(database, every_row)
    lengths, columns, values = encoder.rows(every_row)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    encoded = sparse.csr_array((values, columns, starts), shape=(len(database), len(database)))
    by_column = encoded.tocsc()
    found: list[tuple[Ids, Scores]] = []
    for row in every_row:
        own = slice(starts[row], starts[row + 1])
        # The overlap with every row that has a column in common: sum of the smaller entries.
        spans = [slice(by_column.indptr[c], by_column.indptr[c + 1]) for c in columns[own]]
        others = np.concatenate([by_column.indices[span] for span in spans])
        mine = np.repeat(values[own], [span.stop - span.start for span in spans])
        smaller = np.minimum(mine, np.concatenate([by_column.data[span] for span in spans]))
        rows, place = np.unique(others, return_inverse=True)
        overlap = np.bincount(place, smaller, minlength=len(rows))
        distance = np.maximum(0, 1 - overlap / (2 - overlap))  # both encodings sum to one
        near = distance <= largest
        found.append((rows[near].astype(np.int64), distance[near].astype(np.float32)))
    ends = np.concatenate([[0], np.cumsum([len(rows) for rows, _ in found])])
    data = np.concatenate([distance for _, distance in found])
    return sparse.csr_array((data, np.concatenate([rows for rows, _ in found]), ends), shape=encoded.shape)
