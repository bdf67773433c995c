"""ASMK (Tolias, Avrithis, Jegou 2013, the binary form): images compared word by word of a visual vocabulary.

Local descriptors are whitened without labels and assigned to words; what differs from the word is summed and
binarised per word. Two images are as similar as the words that they share and the bits that agree in these.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Descriptors, Scores
from insclr.errors import UserError

faiss: Any = import_module("faiss")  # its type stubs lack the Python layer

BITS = 128  # of a word's residual: 16 bytes, with the word 18
_ALPHA, _TAU = 3.0, 0.0  # selectivity: u ** alpha for u > tau
QUERY_WORDS = 5  # words a query's descriptor is assigned to; one of the database to one
_MAX_WORDS = 16_384
_PER_WORD = 40  # descriptors to learn a word from
_LEAST_DESCRIPTORS = 256


@dataclass(frozen=True)
class Aggregated:
    """One image: its words and the bits of each."""

    words: NDArray[np.uint16]  # (words,) ascending
    codes: NDArray[np.uint8]  # (words, BITS / 8)

    def to_bytes(self) -> bytes:
        """18 bytes a word."""
        return self.words.astype("<u2").tobytes() + self.codes.tobytes()

    @classmethod
    def from_bytes(cls, kept: bytes) -> "Aggregated":
        """What `to_bytes` gave."""
        count, rest = divmod(len(kept), 2 + BITS // 8)
        if rest:
            raise ValueError(f"{len(kept)} bytes are no aggregated descriptors")
        words = np.frombuffer(kept, "<u2", count)
        return cls(words, np.frombuffer(kept, np.uint8, count * (BITS // 8), 2 * count).reshape(count, -1))


@dataclass(frozen=True)
class Codebook:
    """How local descriptors become words and bits, learned from the collection's own."""

    mean: NDArray[np.float32]  # (dim,)
    projection: NDArray[np.float32]  # (dim, BITS): whitened
    centres: NDArray[np.float32]  # (words, BITS)
    images: int  # in the collection when it was learned

    def aggregate(self, descriptors: Descriptors, assigned: int = 1) -> Aggregated:
        """The words of an image's descriptors (cells, dim), each with the signs of its summed residuals."""
        if not len(descriptors):
            return Aggregated(np.zeros(0, np.uint16), np.zeros((0, BITS // 8), np.uint8))
        whitened = _whiten(descriptors, self.mean, self.projection)
        assigned = min(assigned, len(self.centres))
        _, nearest = faiss.knn(whitened, self.centres, assigned)  # (cells, assigned)
        words, of_word = np.unique(nearest.ravel(), return_inverse=True)
        residuals = np.repeat(whitened, assigned, axis=0) - self.centres[nearest.ravel()]
        sums = np.zeros((len(words), BITS), np.float32)
        np.add.at(sums, of_word, residuals)
        return Aggregated(words.astype(np.uint16), np.packbits(sums > 0, axis=1))

    def to_bytes(self) -> bytes:
        """As a store keeps it."""
        written = io.BytesIO()
        np.savez(
            written, mean=self.mean, projection=self.projection, centres=self.centres, images=self.images
        )
        return written.getvalue()

    @classmethod
    def from_bytes(cls, kept: bytes) -> "Codebook":
        """What `to_bytes` gave."""
        found = np.load(io.BytesIO(kept), allow_pickle=False)
        return cls(found["mean"], found["projection"], found["centres"], int(found["images"]))


def learn_codebook(descriptors: Descriptors, images: int, seed: int = 0) -> Codebook:
    """Whitening by PCA and words by k-means from local descriptors (cells, dim) of a sample of the collection."""
    count, dim = descriptors.shape
    if count < _LEAST_DESCRIPTORS or dim < BITS:
        raise UserError(
            f"a vocabulary cannot be learned from {count} local descriptors of {dim} numbers: it takes at least "
            f"{_LEAST_DESCRIPTORS} of {BITS}; search without --ranking asmk"
        )
    mean = descriptors.mean(0)
    centred = descriptors - mean
    values, vectors = np.linalg.eigh(centred.T @ centred / count)
    values, vectors = values[::-1][:BITS], vectors[:, ::-1][:, :BITS]
    projection = (vectors / np.sqrt(np.maximum(values, 1e-6 * values[0]))).astype(np.float32)
    words = int(np.clip(count // _PER_WORD, 8, _MAX_WORDS))
    kmeans = faiss.Kmeans(BITS, words, niter=15, seed=seed, max_points_per_centroid=4 * _PER_WORD)
    kmeans.train(_whiten(descriptors, mean, projection))
    return Codebook(mean, projection, np.asarray(kmeans.centroids, np.float32), images)


def _whiten(
    descriptors: Descriptors, mean: NDArray[np.float32], projection: NDArray[np.float32]
) -> NDArray[np.float32]:
    rows = (descriptors - mean) @ projection
    return np.ascontiguousarray(
        rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6), np.float32
    )


class InvertedFile:
    """All images by their words, in memory: 26 bytes a word of an image."""

    def __init__(self, codebook: Codebook, images: Sequence[Aggregated]) -> None:
        self.codebook = codebook
        self.count = len(images)
        sizes = np.array([len(one.words) for one in images], dtype=np.int64)
        words = np.concatenate([one.words for one in images]) if images else np.zeros(0, np.uint16)
        codes = (
            np.concatenate([one.codes for one in images]) if images else np.zeros((0, BITS // 8), np.uint8)
        )
        order = np.argsort(words, kind="stable")
        self._places = np.repeat(np.arange(len(images)), sizes)[order]  # (entries,) images
        self._codes = codes[order]  # (entries, BITS / 8)
        self._starts = np.searchsorted(words[order], np.arange(len(codebook.centres) + 1))
        self._norms = np.sqrt(np.maximum(sizes, 1)).astype(np.float32)

    def scores(self, query: Aggregated) -> Scores:
        """The similarity of a query, aggregated with QUERY_WORDS a descriptor, with every image: 0 to about 1."""
        total = np.zeros(self.count, np.float32)
        for word, code in zip(query.words.tolist(), query.codes, strict=True):
            part = slice(self._starts[word], self._starts[word + 1])
            differ = np.bitwise_count(self._codes[part] ^ code).sum(1, dtype=np.int64)
            total += np.bincount(
                self._places[part], weights=selectivity(1 - 2 * differ / BITS), minlength=self.count
            ).astype(np.float32)
        return np.asarray(total / (self._norms * max(1.0, float(np.sqrt(len(query.words))))), np.float32)


def selectivity(agreement: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sigma of the paper: what agreeing bits, -1 to 1, count for."""
    return np.where(agreement > _TAU, np.maximum(agreement, 0.0) ** _ALPHA, 0.0)
