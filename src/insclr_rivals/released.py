"""The step of the code that the authors released; docs/paper-data.md lists where it differs.

Every image of the batch has a label, that of its anchor; members that are not selected share one of their own. Every
image contrasts with all others, and the anchors and selected ones with bank rows, each of which has one label too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from insclr.data.tuples import TupleSampler
from insclr.memory.banks import fill_banks, open_banks
from insclr.memory.round_pool import round_pool
from insclr.methods.method import Batch, Method, Needs, OwnLoss, Prepared, RoundStart
from insclr.mining.expand import ExpandSettings, expand, tuple_similarities
from insclr.ranks import Ranks
from insclr.recipe import MethodSettings, Off, setting

_EQUAL = 1 - 1e-6  # a positive as similar as this is the image itself
_FILL_ROWS = 8192


class ReleasedSettings(MethodSettings):
    """The released configuration for GLDv2 is the default."""

    own_loss: ClassVar[bool] = True
    name: Literal["insclr-released"] = setting("insclr-released", "the step of the released code")
    memory: Literal["none", "negatives", "mined"] = setting(
        "mined", "bank rows in the loss: none; random negatives (xbm v1); mined, with negatives (v2)"
    )
    neighbours: int = setting(3, "N_b: neighbours of the anchor in a tuple", ge=1)
    pool: int = setting(500, "P: size of the candidate pool", ge=2)
    batch_threshold: float | Off = setting(0.6, "T_b: members at least so similar are positive; off = all")
    margin: float = setting(0.4, "a negative counts only while its cosine is above this")
    accept_above: float = setting(0.75, "pool cosine from which a row is positive at once")
    ignore_above: float = setting(0.5, "pool cosine from which a row is mined; below it is a negative")
    sparsity: float = setting(0.6, "phi: cosines to query-set members below it are dropped")
    k: int = setting(5, "candidates added per repeat", ge=1)
    repeats: int = setting(4, "R: how often the query set grows", ge=1)
    negatives: bool = setting(True, "memory mined: rows that are not positive are negatives")
    rows: int = setting(100_000, "most bank rows in a step", ge=0)
    spared: int = setting(50, "memory negatives: so many nearest of every image of the batch are none", ge=0)
    write_from: int = setting(0, "step from which the banks are written", ge=0)
    read_from: int = setting(0, "step from which the banks are read", ge=0)
    bank_dtype: Literal["fp32", "fp16"] = setting("fp32", "precision of the memory banks")

    def unread(self) -> dict[str, str]:
        """Keys that nothing reads beside the others."""
        why = f'memory = "{self.memory}"'
        of_mining = ("accept_above", "ignore_above", "sparsity", "k", "repeats", "negatives")
        of_memory = ("rows", "write_from", "read_from", "bank_dtype")
        if self.memory == "mined":
            return {"spared": why}
        keys = of_mining if self.memory == "negatives" else (*of_mining, *of_memory, "spared")
        return dict.fromkeys(keys, why)


class Released(Method):
    """Contrasts labels in the batch and in the memory; owns both banks and which of their rows were written."""

    settings_class = ReleasedSettings
    settings: ReleasedSettings

    def __init__(self, settings: ReleasedSettings) -> None:
        self.settings = settings
        # The augmented bank starts from augmented views, where it is filled at all.
        self.needs = Needs(plain=settings.batch_threshold != "off", views=settings.memory == "mined")

    def prepare(self, start: RoundStart) -> Prepared:
        """Build the pool; fill the banks where rows are mined, else they are empty until their rows are seen."""
        settings, count = self.settings, len(start)
        dtype = torch.float16 if settings.bank_dtype == "fp16" else torch.float32
        self.banks = open_banks(count, start.network.dim, dtype, start.folder, start.ranks)
        descriptors = start.descriptors
        if settings.memory == "mined":
            fill_banks(self.banks, start.network, start.plain, start.ranks)
            if start.ranks.first_of_node or not self.banks.files:
                for first in range(0, count, _FILL_ROWS):
                    view = start.network.describe_pooled(start.views[0, first : first + _FILL_ROWS])
                    self.banks.augmented.fill(view, first)
            start.ranks.barrier()
        self._written = torch.full((count,), settings.memory == "mined")
        size = min(settings.pool, count - 1)
        self.pool = round_pool(descriptors, size, start.folder, start.ranks, start.device)
        self.sampler = TupleSampler(self.pool.ids, start.tuples, settings.neighbours, start.seed)
        return Prepared({key: value for key, value in settings if key != "name"})

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> OwnLoss:
        """The mean over the images of the batch, and that over those with a positive label against the memory."""
        settings, whole = self.settings, batch.global_batch
        ids, features = whole.ids, whole.augmented  # (T, M), (T, M, D)
        selected = self._select(whole)
        own = (ids[:, :1] + 1).expand_as(ids)
        labels = torch.where(selected, own, -own).flatten()
        rows = features.flatten(0, 1)
        of_batch = contrast(rows, labels, rows, labels, settings.margin)
        numbers = {"batch_loss": of_batch, "batch_positives": selected.float().sum(1).mean() - 1}
        if settings.memory == "none":
            return OwnLoss(of_batch, numbers)
        if step >= settings.write_from:
            self.banks.augmented.write(ids, features)
            if whole.plain is not None:
                self.banks.plain.write(ids, whole.plain)
            self._written[ids.flatten().cpu()] = True
        if step < settings.read_from:
            return OwnLoss(of_batch, numbers)
        bank, bank_labels = self._fetch(ids.cpu(), selected.cpu(), generator)
        kept = selected.flatten()
        memory = self.banks.augmented.read(bank).to(rows.device)
        of_memory = contrast(rows[kept], labels[kept], memory, bank_labels.to(rows.device), settings.margin)
        mined = (bank_labels <= len(self._written)).float().sum() / len(ids)
        return OwnLoss(of_batch + of_memory, {**numbers, "memory_loss": of_memory, "bank_positives": mined})

    def _select(self, batch: Batch) -> Tensor:
        """The anchor and its positives, (T, M) bool."""
        selected = torch.ones_like(batch.ids, dtype=torch.bool)
        if self.settings.batch_threshold != "off":
            assert batch.plain is not None
            selected[:, 1:] = tuple_similarities(batch.plain) >= self.settings.batch_threshold
        if batch.unreliable is not None:
            selected[:, 1:] &= ~batch.unreliable
        return selected

    def _fetch(self, ids: Tensor, selected: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Bank rows (P,) of the step and their labels: those of anchors, or one more than there are images."""
        settings, count = self.settings, len(self._written)
        if settings.memory == "negatives":
            possible = self._written.clone()
            possible[self.pool.ids[ids.flatten(), : settings.spared].long().flatten()] = False
            drawn = self._draw(possible, settings.rows, generator)
            return drawn, torch.full_like(drawn, count + 1)
        owner = self._mine(ids, selected)
        positive = (owner >= 0).nonzero()[:, 0]
        labels = ids[owner[positive], 0] + 1
        if not settings.negatives:
            return positive, labels
        members = ids[selected]
        far = self.pool.similarities[members].float() < settings.ignore_above
        negative = torch.zeros(count, dtype=torch.bool)
        negative[self.pool.ids[members].long()[far]] = True
        negative &= self._written & (owner < 0)
        others = self._written & (owner < 0) & ~negative
        hard = negative.nonzero()[:, 0]
        drawn = self._draw(others, max(0, settings.rows - len(positive) - len(hard)), generator)
        rows = torch.cat([positive, hard, drawn])
        return rows, torch.cat([labels, labels.new_full((len(rows) - len(labels),), count + 1)])

    def _mine(self, ids: Tensor, selected: Tensor) -> Tensor:
        """The tuple that each image is a memory positive of, (N,), -1 for none; the larger anchor wins."""
        settings = self.settings
        owner = torch.full((len(self._written),), -1)
        tuples = ids[:, 0].argsort().tolist()
        pools = {t: self._pool_of(ids[t, selected[t]]) for t in tuples}
        for t in tuples:
            found, similarities = pools[t]
            accepted = found[similarities >= settings.accept_above]
            owner[accepted[~torch.isin(accepted, ids[t, selected[t]])]] = t
        accepted_for = owner.clone()
        for t in tuples:
            found, similarities = pools[t]
            between = (similarities < settings.accept_above) & (similarities >= settings.ignore_above)
            candidates = found[between].unique()
            candidates = candidates[accepted_for[candidates] < 0]
            queries = torch.cat([ids[t, selected[t]], (accepted_for == t).nonzero()[:, 0]])
            if len(candidates):
                owner[candidates[self._grow(queries, candidates)]] = t
        return owner

    def _pool_of(self, members: Tensor) -> tuple[Tensor, Tensor]:
        return self.pool.ids[members].long().flatten(), self.pool.similarities[members].float().flatten()

    def _grow(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Which candidates (C,) join the query set."""
        settings = self.settings
        rows, found = self.banks.plain.read(queries)[None], self.banks.plain.read(candidates)[None]
        how = ExpandSettings(settings.sparsity, "mean", "topk", settings.k, repeats=settings.repeats)
        in_query = torch.ones(1, len(queries), dtype=torch.bool)
        eligible = torch.ones(1, len(candidates), dtype=torch.bool)
        return expand(rows, in_query, found, eligible, how).positives[0]

    @staticmethod
    def _draw(possible: Tensor, wanted: int, generator: torch.Generator) -> Tensor:
        """So many of the possible images, at random; all where there are no more."""
        ids = possible.nonzero()[:, 0]
        return ids if len(ids) <= wanted else ids[torch.randperm(len(ids), generator=generator)[:wanted]]

    def state_dict(self) -> dict[str, Any]:
        """Both banks, and which rows were written."""
        return {"banks": self.banks.state_dict(), "written": self._written}

    def load_state_dict(self, state: Mapping[str, Any], copies: Mapping[str, Path], ranks: Ranks) -> None:
        """Take over the banks of a checkpoint."""
        self.banks.restore(state["banks"], copies, ranks)
        self._written = state["written"]

    def files(self) -> Mapping[str, Path]:
        """The files of mapped banks."""
        return self.banks.files


def contrast(features: Tensor, labels: Tensor, rows: Tensor, row_labels: Tensor, margin: float) -> Tensor:
    """The mean over the features (n, D) of 1 - S over rows of its label, and of S over others above the margin."""
    similar = features @ rows.T  # (n, R)
    same, fixed = labels[:, None] == row_labels, similar.detach()
    attract = (1 - similar) * (same & (fixed < _EQUAL))
    repel = similar * (~same & (fixed > margin))
    return (attract.sum() + repel.sum()) / max(1, len(features))
