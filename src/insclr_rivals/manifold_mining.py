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
from insclr.neighbours.exact import score_blocks
from insclr.recipe import MethodSettings, setting
from insclr.retrieval.rerank import diffusion_graph, solve_diffusion
from insclr_rivals.compute_once import compute_once

# Of the diffusion, as published.
_GRAPH_NEIGHBOURS = 50  # at most a tenth of the collection
_GAMMA = 3.0
_ALPHA = 0.99
_BLOCK_BYTES = 2**24  # of the scores of some anchors


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
    """The nearest images (N, nearest) of every image in space and on the manifold, by unit rows (N, C).

    On the manifold: by a diffusion that starts at the image. What it does not reach is as near as in space.
    """
    neighbours = max(2, min(_GRAPH_NEIGHBOURS, len(features) // 10))
    graph = diffusion_graph(np.ascontiguousarray(features.numpy()), neighbours, _GAMMA)
    every_row = np.arange(len(features))
    space, manifold = [], []
    for block, cosines in score_blocks(features, features, block_bytes=_BLOCK_BYTES):
        anchors = every_row[block]
        outside, ones = np.full(len(anchors), -1), np.ones((len(anchors), 1), np.float32)
        reached = torch.from_numpy(solve_diffusion(graph, anchors[:, None], ones, outside, _ALPHA))
        cosines[range(len(anchors)), anchors] = -torch.inf
        reached = torch.where(reached > 0, reached, cosines - 2)
        reached[range(len(anchors)), anchors] = -torch.inf
        space.append(_first(cosines, nearest))
        manifold.append(_first(reached, nearest))
    return {"space": torch.cat(space), "manifold": torch.cat(manifold)}


def _first(scores: Tensor, count: int) -> Tensor:
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]


def _is_in(ids: Tensor, others: Tensor) -> Tensor:
    """Which of `ids` (N, P) stand in the same row of `others` (N, P): bool."""
    blocks = zip(ids.split(4096), others.split(4096), strict=True)
    return torch.cat([(a[:, :, None] == b[:, None]).any(2) for a, b in blocks])
