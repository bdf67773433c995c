"""Find photos by single points: an inverted file of visual words with a 64-bit code for every point.

A word is the pair of nearest centroids of the two halves of a descriptor (inverted multi-index, Babenko and Lempitsky
2012). The code has the signs of the rotated residual: points of one word match where few bits differ (Hamming
embedding, Jegou et al. 2008). A query point counts by how few images it matches in: a table top matches everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Ids, Scores
from insclr.retrieval.local_features import LocalFeatures

_BITS = 64
_CENTROIDS, _LARGE_CENTROIDS = 64, 256  # of each half: 4,096 words, and 65,536
_LARGE = 2000  # images
SAMPLED_IMAGES = 400  # whose points the vocabulary is learned from,
_SAMPLE = 20_000  # so many of them at most
_NEAREST = 3  # centroids of each half that a query point is compared with: nine words
_POSTINGS = 2**20  # compared at once
# Postings of a word that is not compared: a share of the images, and at least so many.
_COMMON, _LEAST_COMMON = 0.5, 1000
_MOST_BITS = 20  # differing bits of two points that match
_RARITY = 3  # power of the inverse document frequency
_WIDTH = 12.0  # bits: how fast the weight of a match falls


@dataclass(frozen=True)
class Words:
    """The quantised points of one image."""

    words: NDArray[np.uint16]  # (n,)
    codes: NDArray[np.uint64]  # (n,)

    def to_bytes(self) -> bytes:
        """Write ten bytes per point."""
        return self.words.astype("<u2").tobytes() + self.codes.tobytes()

    @classmethod
    def from_bytes(cls, kept: bytes) -> "Words":
        """Read the result of `to_bytes`."""
        count = len(kept) // 10
        return cls(np.frombuffer(kept, "<u2", count), np.frombuffer(kept, np.uint64, count, 2 * count))


@cache
def _rotation() -> NDArray[np.float32]:
    """A fixed orthogonal projection (128, bits)."""
    normal = np.random.default_rng(0).normal(size=(128, 128))
    return np.linalg.qr(normal)[0][:, :_BITS].astype(np.float32)


class Vocabulary:
    """The centroids of both halves of a unit descriptor, (2, centroids, 64), learned for so many images."""

    def __init__(self, centroids: NDArray[np.float32], images: int) -> None:
        self.centroids = centroids
        self.images = images
        self._squares = (centroids**2).sum(2)  # (2, centroids)

    @classmethod
    def learn(cls, sample: Sequence[LocalFeatures], images: int) -> "Vocabulary":
        """k-means of both halves of the points of some images; `images` there are in all."""
        import faiss

        points = np.concatenate([np.zeros((0, 128), np.float32), *(one.unit_descriptors() for one in sample)])
        generator = np.random.default_rng(0)
        chosen = generator.choice(len(points), min(_SAMPLE, len(points)), replace=False)
        wanted = _CENTROIDS if images <= _LARGE else _LARGE_CENTROIDS
        count = min(wanted, max(1, len(points) // 40))
        halves = []
        for half in np.split(points[chosen], 2, axis=1):
            if not len(half):
                halves.append(np.zeros((1, 64), np.float32))
                continue
            kmeans = faiss.Kmeans(64, count, niter=12, seed=0, max_points_per_centroid=_SAMPLE)
            kmeans.train(np.ascontiguousarray(half))
            halves.append(np.asarray(kmeans.centroids).reshape(count, 64))
        return cls(np.stack(halves).astype(np.float32), images)

    def to_bytes(self) -> bytes:
        """Write the number of images and the centroids."""
        return self.images.to_bytes(8, "little") + self.centroids.astype("<f4").tobytes()

    @classmethod
    def from_bytes(cls, kept: bytes) -> "Vocabulary":
        """Read the result of `to_bytes`."""
        centroids = np.frombuffer(kept, "<f4", offset=8).reshape(2, -1, 64)
        return cls(centroids, int.from_bytes(kept[:8], "little"))

    def _distances(self, points: NDArray[np.float32]) -> NDArray[np.float32]:
        """Squared distances to the centroids of each half, without the point's own length: (2, n, centroids)."""
        halves = np.stack(np.split(points, 2, axis=1))  # (2, n, 64)
        return np.asarray(self._squares[:, None] - 2 * halves @ self.centroids.transpose(0, 2, 1))

    def quantise(self, features: LocalFeatures) -> Words:
        """The word and the code of every point."""
        points = features.unit_descriptors()
        near = self._distances(points).argmin(2)  # (2, n)
        return Words(self._word(near[0], near[1]), self._codes(points, near[0], near[1]))

    def candidates(self, features: LocalFeatures) -> tuple[NDArray[np.int64], Words]:
        """Several words of every point, and its code for each: (point of each, words)."""
        points = features.unit_descriptors()
        count = min(_NEAREST, self.centroids.shape[1])
        near = np.argpartition(self._distances(points), count - 1, axis=2)[:, :, :count]  # (2, n, count)
        first, second = np.repeat(near[0], count, 1).ravel(), np.tile(near[1], (1, count)).ravel()
        places = np.repeat(np.arange(len(points)), count * count)
        return places, Words(self._word(first, second), self._codes(points[places], first, second))

    def _word(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.uint16]:
        return np.asarray(first * self.centroids.shape[1] + second, np.uint16)

    def _codes(
        self, points: NDArray[np.float32], first: NDArray[np.int64], second: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        rotation = _rotation()
        centres = [self.centroids[i] @ rotation[64 * i : 64 * i + 64] for i in (0, 1)]  # (centroids, bits)
        residual = points @ rotation - centres[0][first] - centres[1][second]
        return np.packbits(residual > 0, axis=1).view(np.uint64).ravel()


class LocalIndex:
    """The inverted file of the images of a collection."""

    def __init__(self, vocabulary: Vocabulary, images: Sequence[Words]) -> None:
        self.vocabulary = vocabulary
        self.sizes = np.array([len(one.words) for one in images], np.int64)
        words = np.concatenate([np.zeros(0, np.uint16), *(one.words for one in images)])
        order = np.argsort(words, kind="stable")
        self._starts = np.searchsorted(words[order], np.arange(vocabulary.centroids.shape[1] ** 2 + 1))
        self._images = np.repeat(np.arange(len(images), dtype=np.int32), self.sizes)[order]
        self._codes = np.concatenate([np.zeros(0, np.uint64), *(one.codes for one in images)])[order]

    @classmethod
    def build(cls, features: Sequence[LocalFeatures]) -> "LocalIndex":
        """An index with a vocabulary of its own."""
        sample = np.random.default_rng(0).permutation(len(features))[:SAMPLED_IMAGES]
        vocabulary = Vocabulary.learn([features[i] for i in sample], len(features))
        return cls(vocabulary, [vocabulary.quantise(one) for one in features])

    def vote(self, query: LocalFeatures) -> tuple[Scores, NDArray[np.float32]]:
        """The votes of a query's points for every image, and how rare each point is.

        The rarity is 1 where a point matches in one image, and 0 where it matches in all.
        """
        count = len(self.sizes)
        point, wanted = self.vocabulary.candidates(query)
        starts, ends = self._starts[wanted.words], self._starts[wanted.words.astype(np.int64) + 1]
        own = self.vocabulary.quantise(query).words.astype(np.int64)
        most = max(_COMMON * count, _LEAST_COMMON)
        common = self._starts[own + 1] - self._starts[own] > most  # points that most images have
        ends = np.where(common[point] | (ends - starts > most), starts, ends)
        scores, rarity = np.zeros(count), np.ones(len(query), np.float32)
        rarity[common] = 0
        postings = np.cumsum(ends - starts)[
            np.searchsorted(point, point, "right") - 1
        ]  # up to a point's last word
        for part in np.split(np.arange(len(point)), np.flatnonzero(np.diff(postings // _POSTINGS)) + 1):
            near, place, bits = self._near(starts[part], ends[part], wanted.codes[part])
            pairs = point[part][near] * count + self._images[place]
            order = np.lexsort((bits, pairs))
            pairs, first = np.unique(pairs[order], return_index=True)  # the best match of a point in an image
            weights = np.exp(-((bits[order][first] / _WIDTH) ** 2))
            points, images = pairs // count, pairs % count
            own, found_in = np.unique(points, return_counts=True)
            rarity[own] = (1 - np.log(found_in) / np.log(count + 1)) ** _RARITY
            scores += np.bincount(images, weights * rarity[points], minlength=count)
        return (scores / np.sqrt(self.sizes + 50)).astype(np.float32), rarity

    def _near(self, starts: Ids, ends: Ids, codes: NDArray[np.uint64]) -> tuple[Ids, Ids, NDArray[np.uint8]]:
        """The postings of these words whose codes differ in few bits: word, place, and the number of bits."""
        lists = [self._codes[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        lengths = ends - starts
        bits = np.bitwise_count(np.concatenate(lists or [codes]) ^ np.repeat(codes, lengths))
        near = np.flatnonzero(bits <= _MOST_BITS)
        past = np.cumsum(lengths)
        word = np.searchsorted(past, near, side="right")
        return word, near - past[word] + ends[word], bits[near]
