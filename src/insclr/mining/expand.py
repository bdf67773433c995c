"""The paper's two positive sets: selected in the mini-batch, and mined from the memory bank with query sets."""

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Expansion:
    """What was mined for each tuple among its candidates."""

    positives: Tensor  # (T, P) bool
    repeat: Tensor  # (T, P) int8: the repeat that chose it, from 1; 0 where not chosen
    score: Tensor  # (T, P): S_set when chosen, for the others the last S_set; -inf where there was none


@dataclass(frozen=True)
class ExpandSettings:
    """How query sets grow; the defaults are the paper's."""

    sparsity: float | None = None  # phi drops scores below it; None keeps all
    aggregate: Literal["mean", "max"] = "mean"  # psi
    choose: Literal["topk", "threshold"] = "topk"  # the k best, or S_set > threshold
    k: int = 4
    threshold: float = 0.0
    repeats: int = 2


def expand(
    queries: Tensor,
    in_query: Tensor,
    candidates: Tensor,
    eligible: Tensor,
    settings: ExpandSettings,
) -> Expansion:
    """Grow every tuple's query set by the candidates nearest to the whole set, several times.

    `queries` (T, M, D) with `in_query` (T, M) is the in-batch query set, `candidates` (T, P, D) with
    `eligible` (T, P) the pool's rows; all plain features. A candidate with no score left cannot be chosen. Equals go
    by pool rank.
    """
    score = torch.full_like(eligible, -torch.inf, dtype=candidates.dtype)  # (T, P)
    positives = torch.zeros_like(eligible)
    repeat = torch.zeros_like(eligible, dtype=torch.int8)
    running = _RunningScore(score, settings)
    members, is_member = queries, in_query
    for number in range(1, settings.repeats + 1):
        # Products with earlier members are already in the running score: only the new ones are computed.
        running.add(torch.bmm(members, candidates.transpose(1, 2)), is_member)
        still_open = eligible & ~positives
        set_score = running.value().masked_fill(~still_open, -torch.inf)
        score = torch.where(still_open, set_score, score)
        by_rank = settings.choose == "topk"
        chosen = _best(set_score, settings.k) if by_rank else set_score > settings.threshold
        repeat[chosen] = number
        positives |= chosen
        if number == settings.repeats or not chosen.any():
            break
        members, is_member = _rows(candidates, chosen)
    return Expansion(positives, repeat, score)


def anchor_only(in_query: Tensor) -> Tensor:
    """The query set of D-anchor: the anchor (slot 0) alone, whatever the batch selected."""
    only = torch.zeros_like(in_query)
    only[:, 0] = True
    return only


def eligible_candidates(pool_ids: Tensor, tuple_ids: Tensor) -> Tensor:
    """Which candidates (T, P) may be mined: the anchor's pool minus the tuple's own images (T, M)."""
    return ~(pool_ids[:, :, None] == tuple_ids[:, None, :]).any(2)


def compact(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The marked columns of each row moved to the left: (columns, which of them are real), (T, most marked).

    As wide as the fullest row; rows with fewer are filled up with unmarked columns.
    """
    most = int(mask.sum(1).max()) if mask.numel() else 0
    columns = mask.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :most]
    return columns, mask.gather(1, columns)


class _RunningScore:
    """S_set of every candidate over all members seen so far."""

    def __init__(self, like: Tensor, settings: ExpandSettings) -> None:
        self.sparsity = settings.sparsity
        self.mean = settings.aggregate == "mean"
        self.total = torch.zeros_like(like)  # (T, P)
        self.count = torch.zeros_like(like)
        self.best = torch.full_like(like, -torch.inf)

    def add(self, similarities: Tensor, is_member: Tensor) -> None:
        """Take in the similarities (T, K, P) to K further members, of which `is_member` (T, K) are real."""
        kept = is_member[:, :, None]
        if self.sparsity is not None:
            kept = kept & (similarities >= self.sparsity)
        if self.mean:
            self.total += (similarities * kept).sum(1)
            self.count += kept.sum(1)
        else:
            best = similarities.masked_fill(~kept, -torch.inf).amax(1)
            self.best = torch.maximum(self.best, best)

    def value(self) -> Tensor:
        """S_set (T, P); -inf where no score is left."""
        if self.mean:
            return torch.where(self.count > 0, self.total / self.count, -torch.inf)
        return self.best


def _rows(candidates: Tensor, marked: Tensor) -> tuple[Tensor, Tensor]:
    """The marked candidates of each tuple (T, most marked, D), and which of those rows are real."""
    places, real = compact(marked)
    return candidates.gather(1, places[..., None].expand(-1, -1, candidates.shape[2])), real


def _best(score: Tensor, k: int) -> Tensor:
    possible = score > -torch.inf
    columns = score.sort(dim=1, descending=True, stable=True).indices
    chosen = torch.zeros_like(possible).scatter_(1, columns[:, :k], True)
    return chosen & possible
