"""Mining on Manifolds (Iscen et al. 2018, arXiv 1803.11095): pairs on which diffusion and distance disagree.

Near on the manifold but not in space: a hard positive. Near in space but not on the manifold: a hard negative. Found
once, before training, by the pretrained features.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from insclr.data.tuples import TupleSampler
from insclr.methods.method import Batch, Method, Needs, Pairs, Prepared, RoundStart, contains, label_batch
from insclr.mining.expand import query_set
from insclr.recipe import MethodSettings, setting
from insclr.retrieval.rerank import diffusion, rank
from insclr_rivals.compute_once import compute_once

_BLOCK_QUERIES = 1024
_DEPTH = 10  # times as many results as are asked for are ranked by diffusion


class ManifoldMiningSettings(MethodSettings):
    """Mining on Manifolds (Iscen et al. 2018): pairs on which diffusion and Euclidean distance disagree."""

    name: Literal["manifold-mining"] = setting(
        "manifold-mining", "near on the manifold but not in space: positives; the other way round: negatives"
    )
    nearest: int = setting(
        50, "how many count as near, in both ways; at most a tenth of the collection", ge=1
    )
    positives: int = setting(1, "hard positives in a tuple", ge=1)
    negatives: int = setting(2, "hard negatives in a tuple", ge=1)


class _TwoSamplers:
    """Tuples of an anchor, hard positives and hard negatives: (T, 1 + positives + negatives)."""

    def __init__(self, positives: TupleSampler, negatives: TupleSampler) -> None:
        self._positives = positives
        self._negatives = negatives

    def step(self, n: int) -> Tensor:
        """Batch number n; equal seeds give both samplers the same anchors."""
        return torch.cat([self._positives.step(n), self._negatives.step(n)[:, 1:]], dim=1)


class ManifoldMining(Method):
    """Hard positives attract, hard negatives and the rest of the batch repel, other near images do neither."""

    settings_class = ManifoldMiningSettings
    needs = Needs()

    def __init__(self, settings: ManifoldMiningSettings) -> None:
        self.settings = settings

    def prepare(self, start: RoundStart) -> Prepared:
        """Find the pairs in the first round of a run."""
        settings, largest = self.settings, len(start) - 1
        members = max(settings.positives, settings.negatives)
        nearest = min(max(members + 1, min(settings.nearest, len(start) // 10)), largest)

        def find() -> dict[str, Tensor]:
            return nearest_both_ways(normalize(start.plain.float(), dim=1), nearest)

        near = compute_once(f"manifold-{nearest}", start, find)
        self._space, self._manifold = near["space"], near["manifold"]  # (N, nearest) each
        hard_positive = ~_is_in(self._manifold, self._space)
        self._hard_negative = ~_is_in(self._space, self._manifold)
        tuples, seed = start.tuples, start.seed
        self.sampler = _TwoSamplers(
            TupleSampler(self._manifold, tuples, settings.positives, seed, hard_positive),
            TupleSampler(self._space, tuples, settings.negatives, seed, self._hard_negative),
        )
        return Prepared({"nearest": nearest}, (), self._manifold, hard_positive)

    def label(self, batch: Batch, step: int, generator: torch.Generator) -> Pairs:  # noqa: ARG002
        """An anchor without hard positives takes its nearest on the manifold instead."""
        anchors, global_ids = batch.ids[:, 0].cpu(), batch.global_batch.ids
        chosen = torch.zeros_like(batch.ids[:, 1:], dtype=torch.bool)
        chosen[:, : self.settings.positives] = True
        if batch.unreliable is not None:
            chosen &= ~batch.unreliable
        near = torch.cat([self._manifold[anchors], self._space[anchors]], dim=1)  # (T, 2 nearest)
        spared = torch.ones_like(near, dtype=torch.bool)
        spared[:, self._manifold.shape[1] :] = ~self._hard_negative[anchors]
        return label_batch(
            batch.ids,
            query_set(chosen),
            ignored=contains(near.to(batch.ids), spared.to(batch.ids.device), global_ids.reshape(-1)),
            batch_tuple_ids=global_ids,
            first_tuple=batch.first_tuple,
        )


def nearest_both_ways(features: Tensor, nearest: int) -> dict[str, Tensor]:
    """The nearest images (N, nearest) of every image in space and on the manifold, by unit rows (N, C)."""
    rows = np.ascontiguousarray(features.numpy())
    depth = min(len(rows) - 1, _DEPTH * nearest)
    space, manifold = [], []
    for start in range(0, len(rows), _BLOCK_QUERIES):
        own = np.arange(start, min(start + _BLOCK_QUERIES, len(rows)))
        found = rank(rows[own], rows, own, depth)
        space.append(found.ids[:, :nearest])
        manifold.append(diffusion(rows[own], rows, found).ids[:, :nearest])
    return {
        "space": torch.from_numpy(np.concatenate(space)),
        "manifold": torch.from_numpy(np.concatenate(manifold)),
    }


def _is_in(ids: Tensor, others: Tensor) -> Tensor:
    """Which of `ids` (N, P) stand in the same row of `others` (N, P): bool."""
    blocks = zip(ids.split(4096), others.split(4096), strict=True)
    return torch.cat([(a[:, :, None] == b[:, None]).any(2) for a, b in blocks])
