"""Thresholds from the similarities of random pairs: what "unrelated" looks like in a collection."""

import torch
from torch import Tensor

# What a positive must exceed is exceeded by so few random pairs.
FALSE_MATCHES = 0.01
# A negative counts while it is among the most similar tenth of random pairs.
ACTIVE_NEGATIVES = 0.10
_PAIRS = 200_000


def random_pairs(descriptors: Tensor, seed: int = 0) -> Tensor:
    """Similarities of random pairs of different images, sorted ascending, from unit rows (N, D)."""
    generator = torch.Generator().manual_seed(seed)
    images = len(descriptors)
    first = torch.randint(images, (_PAIRS,), generator=generator)
    second = (first + 1 + torch.randint(images - 1, (_PAIRS,), generator=generator)) % images
    blocks = [
        (descriptors[a].float() * descriptors[b].float()).sum(1)
        for a, b in zip(first.split(10_000), second.split(10_000), strict=True)
    ]
    return torch.cat(blocks).sort().values


def exceeded_by(pairs: Tensor, share: float) -> float:
    """The similarity that this share of the sorted `pairs` exceeds."""
    return float(pairs[min(len(pairs) - 1, int(len(pairs) * (1 - share)))])
