"""Positive selection in the mini-batch (paper, Positive Selection in Mini-batches)."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from insclr.errors import UserError

Strategy = Literal["nn", "augmented", "plain", "relative", "multiscale"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)


def tuple_similarities(features: Tensor) -> Tensor:
    """Cosine of each tuple's anchor (slot 0) with its neighbours: unit rows (T, M, D) to (T, M - 1)."""
    return torch.einsum("td,tnd->tn", features[:, 0], features[:, 1:])


def decision_similarities(
    strategy: str,
    *,
    plain: Tensor | None = None,
    augmented: Tensor | None = None,
    scales: Sequence[Tensor] | None = None,
) -> Tensor:
    """The anchor-neighbour similarities (T, N_b) that a strategy decides by, from unit features (T, M, D).

    `augmented` takes the augmented views; `multiscale` the plain views at several scales, averaged into one
    descriptor; all others the plain views.
    """
    _check(strategy)
    if strategy == "multiscale":
        if not scales:
            raise ValueError("multiscale selection needs the plain features of at least one scale")
        mean = torch.stack(list(scales)).mean(0)  # (T, M, D)
        return tuple_similarities(torch.nn.functional.normalize(mean, dim=-1))
    features = augmented if strategy == "augmented" else plain
    if features is None:
        raise ValueError(
            f"{strategy} selection needs the {'augmented' if strategy == 'augmented' else 'plain'} features"
        )
    return tuple_similarities(features)


def select_in_batch(strategy: str, similarities: Tensor, threshold: float) -> Tensor:
    """Which neighbours are positives, (T, N_b) bool: `nn` takes all, the others what exceeds T_b.

    `relative` first divides by the largest similarity of the tuple. A tuple whose largest similarity is not
    positive has no neighbour that resembles its anchor, and none is selected.
    """
    _check(strategy)
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


def _check(strategy: str) -> None:
    if strategy not in STRATEGIES:
        raise UserError(f"Unknown selection {strategy!r}: choose one of {', '.join(STRATEGIES)}.")
