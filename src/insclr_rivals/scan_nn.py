"""The neighbours of SCAN (Van Gansbeke et al. 2020, arXiv 2005.12320): found once, before training.

Variant A of our own method finds nearest neighbours again in every round, by the current network. These come from the
pretrained features and never change.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from insclr.data.tuples import TupleSampler
from insclr.memory.round_pool import round_pool
from insclr.methods.method import Batch, Method, Needs, Pairs, Prepared, RoundStart, contains, label_batch
from insclr.mining.expand import query_set
from insclr.recipe import MethodSettings, setting
from insclr_rivals.compute_once import compute_once


class ScanNnSettings(MethodSettings):
    """The published number of neighbours is the default."""

    name: Literal["scan-nn"] = setting(
        "scan-nn", "neighbours by the pretrained features are positives in all rounds"
    )
    nearest: int = setting(20, "this many nearest images count as the same instance", ge=1)
    neighbours: int = setting(3, "N_b: of these in a tuple, drawn at random", ge=1)


class ScanNn(Method):
    """All nearest neighbours by the pretrained features attract, the rest of the batch repels."""

    settings_class = ScanNnSettings
    needs = Needs()

    def __init__(self, settings: ScanNnSettings) -> None:
        self.settings = settings

    def prepare(self, start: RoundStart) -> Prepared:
        """Find the neighbours in the first round of a run."""
        nearest = min(self.settings.nearest, len(start) - 2)
        neighbours = min(self.settings.neighbours, nearest)

        def find() -> dict[str, Tensor]:
            features = normalize(start.plain.float(), dim=1)
            # One more than is used: a tuple must leave a candidate in the pool.
            return {"ids": round_pool(features, nearest + 1, start.folder, start.ranks, start.device).ids}

        ids = compute_once(f"neighbours-{nearest}", start, find)["ids"]  # (N, nearest + 1)
        positive = torch.ones_like(ids, dtype=torch.bool)
        positive[:, nearest:] = False
        self._near = ids[:, :nearest].long()
        self.sampler = TupleSampler(ids, start.tuples, neighbours, start.seed, positive)
        return Prepared({"nearest": nearest, "neighbours": neighbours}, (), ids, positive)

    def label(self, batch: Batch, step: int, generator: torch.Generator) -> Pairs:  # noqa: ARG002
        """Members of the tuple attract; other neighbours of the anchor are no negatives."""
        near = self._near[batch.ids[:, 0].cpu()].to(batch.ids)  # (T, nearest)
        global_ids = batch.global_batch.ids
        chosen = torch.ones_like(batch.ids[:, 1:], dtype=torch.bool)
        if batch.unreliable is not None:
            chosen &= ~batch.unreliable
        return label_batch(
            batch.ids,
            query_set(chosen),
            ignored=contains(near, torch.ones_like(near, dtype=torch.bool), global_ids.reshape(-1)),
            batch_tuple_ids=global_ids,
            first_tuple=batch.first_tuple,
        )
