"""Positive selection in the mini-batch (paper, Positive Selection in Mini-batches)."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Strategy = Literal["nn", "augmented", "plain", "relative", "multiscale"]


def tuple_similarities(features: Tensor) -> Tensor:
    """Cosine of each tuple's anchor (slot 0) with its neighbours: unit rows (T, M, D) to (T, M - 1)."""
    return torch.einsum("td,tnd->tn", features[:, 0], features[:, 1:])


def decision_similarities(
    strategy: str,
    *,
    plain: Tensor | None = None,
    augmented: Tensor | None = None,
    scales: Sequence[Tensor] = (),
) -> Tensor:
    """The anchor-neighbour similarities (T, N_b) that a strategy decides by, from unit features (T, M, D).

    `augmented` takes the augmented views; `multiscale` the plain views at several scales, averaged into one
    descriptor; all others the plain views.
    """
    if strategy == "multiscale":
        mean = torch.stack(list(scales)).mean(0)  # (T, M, D)
        return tuple_similarities(torch.nn.functional.normalize(mean, dim=-1))
    features = augmented if strategy == "augmented" else plain
    assert features is not None
    return tuple_similarities(features)


def select_in_batch(strategy: str, similarities: Tensor, threshold: float) -> Tensor:
    """Which neighbours are positives, (T, N_b) bool: `nn` takes all, the others what exceeds T_b.

    `relative` first divides by the largest similarity of the tuple. A tuple whose largest similarity is not
    positive has no neighbour that resembles its anchor, and none is selected.
    """
    if strategy == "nn":
        return torch.ones_like(similarities, dtype=torch.bool)
    if strategy == "relative" and similarities.shape[1] > 0:
        largest = similarities.amax(1, keepdim=True)  # (T, 1)
        scaled = similarities / torch.where(largest > 0, largest, 1.0)
        return (scaled > threshold) & (largest > 0)
    return similarities > threshold


def query_set(selected: Tensor) -> Tensor:
    """The query set as slots of the tuple: the anchor and the selected, (T, N_b) to (T, 1 + N_b) bool."""
    return torch.nn.functional.pad(selected, (1, 0), value=True)
