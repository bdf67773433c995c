"""The losses over the mini-batch and the memory bank: the paper's contrastive one, and a softmax.

The contrastive loss pushes every negative above a margin with the same force; the softmax pushes the most similar
hardest, and a positive that is closer than all negatives pulls no more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from insclr.methods.method import Pairs


@dataclass(frozen=True)
class LossValue:
    """The loss, with gradient, and what it was made of, without; means over the tuples."""

    loss: Tensor
    batch_positives: Tensor  # positives an anchor has in its tuple
    active_negatives: Tensor  # negatives above the margin (softmax: all), per query image
    positive_similarity: Tensor  # mean S over all positive pairs
    negative_similarity: Tensor  # mean S over all negative pairs, active or not


def contrastive_loss(
    features: Tensor,
    pairs: Pairs,
    *,
    batch: Tensor | None = None,
    margin: float = 0.4,
    normalise: Literal["sum", "mean", "mined"] = "sum",
) -> LossValue:
    """L = 1/N_p sum_i [ sum of S_ij over negatives with S_ij > margin - sum of S_ij over positives ].

    `features` (T, M, D) are augmented and carry the gradient, bank rows are constants; `batch` (B, D) holds the
    features of all ranks where there are several. The mean over tuples is returned. "mean" averages the
    positives and the active negatives of each i before the difference; "mined" counts the query set N_p after memory
    mining, as the paper's main text does; its supplement counts it before.
    """
    sums = _Sums(features.new_zeros(pairs.query.shape), margin)
    for similar, positive, negative in _sources(features, pairs, batch):
        sums.add(similar, positive, negative)
    mined = sum(bank.positive.sum(1) for bank in pairs.bank if bank.positive is not None)
    return sums.value(pairs.query, normalise, mined if normalise == "mined" else 0)


def softmax_loss(
    features: Tensor, pairs: Pairs, *, batch: Tensor | None = None, temperature: float = 0.2
) -> LossValue:
    """L = mean over tuples, query images i and positives j of -log(e^S_ij / (e^S_ij + sum of e^S_in, n negative)).

    S are cosines divided by `temperature`; arguments as in `contrastive_loss`. A query image without positives
    adds nothing.
    """
    sources = list(_sources(features, pairs, batch))
    similar = torch.cat([s for s, _, _ in sources], dim=2)  # (T, M, J) over all sources
    weight = torch.cat([torch.zeros_like(s) if p is None else p.to(s.dtype) for s, p, _ in sources], dim=2)
    negative = torch.cat([n for _, _, n in sources], dim=2)
    logits = similar / temperature
    # A number instead of -inf: a query image without negatives has a gradient of zero, not NaN.
    against = logits.masked_fill(~negative, -1e4).logsumexp(2, keepdim=True)  # (T, M, 1)
    losses = torch.logaddexp(logits, against) - logits
    counted = weight.sum(2)
    per_image = (losses * weight).sum(2) / counted.clamp(min=1e-12)  # (T, M)
    members = pairs.query.sum(1)  # (T,)
    fixed = similar.detach()
    negatives = negative.sum(2)
    return LossValue(
        loss=(per_image.sum(1) / members).mean(),
        batch_positives=members.to(per_image.dtype).mean() - 1,
        active_negatives=negatives.sum() / members.sum(),
        positive_similarity=(fixed * weight).sum() / weight.sum().clamp(min=1e-12),
        negative_similarity=(fixed * negative).sum() / negatives.sum().clamp(min=1),
    )


def _sources(
    features: Tensor, pairs: Pairs, batch: Tensor | None
) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
    """Similarities (T, M, J) to the images of the batch and to the rows of each bank; positives; negatives."""
    tuples, slots, dim = features.shape
    rows = features.reshape(-1, dim)
    similar = (rows @ (rows if batch is None else batch).T).view(tuples, slots, -1)  # (T, M, B)
    yield similar, pairs.positive, pairs.negative
    query = pairs.query[..., None]  # (T, M, 1)
    for bank in pairs.bank:
        constants = bank.rows.detach()  # (T, P, D), or (P, D) where all tuples share them
        similar = features @ (constants.T if constants.dim() == 2 else constants.transpose(1, 2))
        positive = None if bank.positive is None else query & bank.positive[:, None]
        yield similar, positive, query & bank.negative[:, None]


class _Sums:
    """What attracts and repels each query image (T, M), added up source by source."""

    def __init__(self, zero: Tensor, margin: float) -> None:
        self.margin = margin
        self.attract, self.repel, self.negative_sum = zero, zero, zero.clone()
        self.positives, self.active, self.negatives = zero.clone(), zero.clone(), zero.clone()

    def add(self, s: Tensor, positive: Tensor | None, negative: Tensor) -> None:
        """Take in the similarities (T, M, J) to one source of images, with their labels."""
        above = negative & (s.detach() > self.margin)
        self.repel = self.repel + (s * above).sum(2)
        self.active += above.sum(2)
        self.negatives += negative.sum(2)
        self.negative_sum += (s.detach() * negative).sum(2)
        if positive is not None:
            self.attract = self.attract + (s * positive).sum(2)
            self.positives += positive.sum(2)

    def value(self, query: Tensor, normalise: str, mined: Tensor | int) -> LossValue:
        """The loss of the whole; `mined` images (T,) count in the query sets."""
        if normalise == "mean":
            per_image = self.repel / self.active.clamp(min=1) - self.attract / self.positives.clamp(min=1e-12)
        else:
            per_image = self.repel - self.attract  # (T, M); zero outside the query set
        members = query.sum(1)  # (T,) N_p
        return LossValue(
            loss=(per_image.sum(1) / (members + mined)).mean(),
            batch_positives=members.to(per_image.dtype).mean() - 1,
            active_negatives=self.active.sum() / members.sum(),
            positive_similarity=self.attract.detach().sum() / self.positives.sum().clamp(min=1e-12),
            negative_similarity=self.negative_sum.sum() / self.negatives.sum().clamp(min=1),
        )
