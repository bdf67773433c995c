"""InsCLR as the paper has it: select in the mini-batch, mine the memory, decide anew in every step.

Owns the two memory banks. Step 1 of an iteration writes the batch into both; step 2 selects positives among a tuple's
members; step 3 grows the query set into the anchor's candidate pool; the loss then reads the augmented bank.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from insclr.data.tuples import TupleSampler
from insclr.memory.banks import MemoryBanks, fill_banks, open_banks
from insclr.memory.round_pool import map_large_pool, round_pool
from insclr.methods.method import (
    BankPairs,
    Batch,
    Explanation,
    Method,
    Needs,
    Pairs,
    Prepared,
    RoundStart,
    contains,
    label_batch,
)
from insclr.mining.expand import (
    ExpandSettings,
    Expansion,
    Strategy,
    anchor_only,
    compact,
    decision_similarities,
    eligible_candidates,
    expand,
    query_set,
    select_in_batch,
)
from insclr.mining.own_views import FALSE_MATCHES, exceeded_by, random_pairs
from insclr.neighbours.pool import Pool
from insclr.ranks import Ranks
from insclr.recipe import Auto, MethodSettings, Off, setting

_PAPER_SCALES = (2**0.5, 1.0, 2**-0.5)


class InsclrSettings(MethodSettings):
    """The paper's method: decides in every step, from two memory banks."""

    name: Literal["insclr"] = setting(
        "insclr", "the paper: select in the batch, mine the memory, in every step"
    )
    variant: Literal["A", "B", "C", "D-anchor", "D"] = setting(
        "D", "A nn; B nn + bank negatives; C selection + bank negatives; D-anchor, D memory mining"
    )
    neighbours: int = setting(3, "N_b: neighbours of the anchor in a tuple", ge=1)
    pool: int = setting(500, "P: size of the candidate pool", ge=2)
    strategy: Strategy = setting(
        "plain", "positives in the mini-batch: all neighbours (nn), or by which similarity"
    )
    batch_threshold: float | Auto = setting(0.65, "T_b: cosine above which a tuple member is positive")
    scales: tuple[Annotated[float, Field(gt=0)], ...] = setting(
        _PAPER_SCALES,
        "strategy multiscale: sizes of the plain views, as multiples of plain_size",
        min_length=1,
    )
    sparsity: float | Auto | Off = setting("off", "phi: cosines to query-set members below it are dropped")
    aggregate: Literal["mean", "max"] = setting("mean", "psi: over the query set")
    choose: Literal["topk", "threshold"] = setting(
        "topk", "how candidates are chosen by their set similarity"
    )
    k: int = setting(5, "choose topk: candidates added per repeat", ge=1)
    memory_threshold: float | Auto = setting(0.6, "choose threshold: T_m")
    repeats: int = setting(4, "R: how often the query set grows", ge=1)
    ignore_nearest: int = setting(0, "an anchor's so many nearest images are never its negatives", ge=0)
    pool_negatives: bool = setting(True, "candidates that are not positive are negatives, from the bank")
    random_negatives: int = setting(100_000, "random bank rows used as negatives", ge=0)
    bank_dtype: Literal["fp32", "fp16"] = setting("fp32", "precision of the memory banks")

    @model_validator(mode="after")
    def _check_pool(self) -> "InsclrSettings":
        if self.pool <= self.neighbours:
            raise ValueError(f"pool must be larger than neighbours ({self.neighbours})")
        return self

    @property
    def mines_memory(self) -> bool:
        """Whether positives come from the memory bank too."""
        return self.variant in ("D-anchor", "D")

    @property
    def selection(self) -> Strategy:
        """How members of a tuple are selected: variants A and B take all of them."""
        return "nn" if self.variant in ("A", "B") else self.strategy

    def unread(self) -> dict[str, str]:
        """Keys that nothing reads beside the others."""
        variant = f'variant = "{self.variant}"'
        why = {}
        if self.variant in ("A", "B"):
            why["strategy"] = variant
        if self.selection == "nn":
            why["batch_threshold"] = f'strategy = "nn" (or {variant})'
        if self.selection != "multiscale":
            why["scales"] = f'strategy = "{self.selection}"'
        if not self.mines_memory:
            memory = ("sparsity", "aggregate", "choose", "k", "memory_threshold", "repeats")
            why |= dict.fromkeys((*memory, "pool_negatives"), variant)
        elif self.choose == "topk":
            why["memory_threshold"] = 'choose = "topk"'
        else:
            why["k"] = 'choose = "threshold"'
        if self.variant not in ("B", "C"):
            why["random_negatives"] = variant
        if self.variant == "A":
            why["bank_dtype"] = variant
        return why


@dataclass(frozen=True)
class _Mined:
    """What was found in the memory for each tuple."""

    pool_ids: Tensor  # (T, P) the candidates
    eligible: Tensor  # (T, P) bool: candidates that are not in the tuple, each once
    expansion: Expansion


class InsclrMethod(Method):
    """The paper's method with its variants A to D."""

    settings_class = InsclrSettings
    settings: InsclrSettings  # after `prepare` with numbers in place of every "auto"
    explains = True
    pool: Pool
    banks: MemoryBanks

    def __init__(self, settings: InsclrSettings) -> None:
        self.settings = settings
        scales = settings.scales if settings.selection == "multiscale" else ()
        self.needs = Needs(plain=True, scales=scales)

    def prepare(self, start: RoundStart) -> Prepared:
        """Fill both banks, build the candidate pool, measure what the recipe leaves to the collection."""
        settings = self.settings
        self.settings, reasons = _measure_settings(settings, start)
        dtype = torch.float16 if settings.bank_dtype == "fp16" else torch.float32
        self.banks = open_banks(len(start), start.network.dim, dtype, start.folder, start.ranks)
        fill_banks(self.banks, start.network, start.plain, start.ranks)
        # The descriptors of an untrained layer mean nothing yet, so the first pool goes without it.
        descriptors = start.descriptors if start.untrained_fc else self.banks.plain.features
        pool = round_pool(descriptors, self.settings.pool, start.folder, start.ranks, start.device)
        self.sampler = TupleSampler(pool.ids, start.tuples, settings.neighbours, start.seed)
        self.pool = map_large_pool(pool, start.folder, start.ranks)
        unread = self.settings.unread()
        criteria = {key: value for key, value in self.settings if key not in unread and key != "name"}
        return Prepared(criteria, reasons)

    def label(self, batch: Batch, step: int, generator: torch.Generator) -> Pairs:  # noqa: ARG002
        """One iteration: write the banks, select, mine, and label every pair."""
        settings, whole = self.settings, batch.global_batch
        assert whole.plain is not None
        self.banks.write(whole.ids, whole.plain, whole.augmented)
        with torch.no_grad():
            selected = self._select(batch)
            mined = self._mine(batch, selected) if settings.mines_memory else None
            pairs = self._label_batch(batch, selected, mined)
            if mined is not None:
                pairs = replace(
                    pairs,
                    bank=(self._pool_pairs(mined, batch.ids[:, 0]),),
                    mined_ids=mined.pool_ids,
                    mined=mined.expansion.positives,
                )
            if settings.variant in ("B", "C") and settings.random_negatives:
                pairs = replace(pairs, bank=(self._random_pairs(batch, generator),))
        self.pool.give_back()
        return pairs

    def _select(self, batch: Batch) -> Tensor:
        """The query set in the tuple, (T, M) bool: the anchor and the selected neighbours."""
        settings = self.settings
        similarities = decision_similarities(
            settings.selection, plain=batch.plain, augmented=batch.augmented, scales=batch.scales
        )
        assert settings.batch_threshold != "auto"
        chosen = select_in_batch(settings.selection, similarities, settings.batch_threshold)  # (T, N_b)
        if batch.unreliable is not None:
            chosen &= ~batch.unreliable
        return query_set(chosen)

    def _mine(self, batch: Batch, selected: Tensor) -> _Mined:
        """Grow each query set by candidates of the memory bank."""
        settings, plain = self.settings, batch.plain
        assert plain is not None
        assert settings.sparsity != "auto"
        assert settings.memory_threshold != "auto"
        pool_ids = self._pool_rows(batch.ids[:, 0])
        eligible = eligible_candidates(pool_ids, batch.ids)
        expansion = expand(
            plain,
            anchor_only(selected) if settings.variant == "D-anchor" else selected,
            self.banks.plain.read(pool_ids).to(plain.device),
            eligible,
            ExpandSettings(
                sparsity=None if settings.sparsity == "off" else settings.sparsity,
                aggregate=settings.aggregate,
                choose=settings.choose,
                k=settings.k,
                threshold=settings.memory_threshold,
                repeats=settings.repeats,
            ),
        )
        return _Mined(pool_ids, eligible, expansion)

    def _pool_rows(self, ids: Tensor) -> Tensor:
        """The pool (..., P) of these images, where their ids are."""
        return self.pool.ids[ids.cpu()].to(ids)

    def _label_batch(self, batch: Batch, selected: Tensor, mined: _Mined | None) -> Pairs:
        batch_ids = batch.global_batch.ids.reshape(-1)
        ignored = None
        if mined is not None:
            # An image of another tuple that was mined for this one is no negative.
            ignored = contains(mined.pool_ids, mined.expansion.positives, batch_ids)
        if self.settings.ignore_nearest:
            near = self._is_near(batch.ids[:, 0], batch_ids)
            ignored = near if ignored is None else ignored | near
        return label_batch(
            batch.ids,
            selected,
            ignored=ignored,
            batch_tuple_ids=batch.global_batch.ids,
            first_tuple=batch.first_tuple,
        )

    def _is_near(self, anchors: Tensor, ids: Tensor) -> Tensor:
        """Which of `ids` (J,) are among the anchors' so many nearest that are never negatives: (T, J) bool."""
        nearest = self._nearest(anchors)
        return contains(nearest, torch.ones_like(nearest, dtype=torch.bool), ids)

    def _nearest(self, anchors: Tensor) -> Tensor:
        """The images (T, n) that are never negatives of these anchors."""
        return self.pool.ids[anchors.cpu(), : self.settings.ignore_nearest].to(anchors)

    def _pool_pairs(self, mined: _Mined, anchors: Tensor) -> BankPairs:
        """The pool in the loss: mined candidates attract, the rest repels unless it is ignored or left out."""
        positive, ids = mined.expansion.positives, mined.pool_ids
        negative = mined.eligible & ~positive
        if self.settings.ignore_nearest:
            negative &= eligible_candidates(ids, self._nearest(anchors))
        if not self.settings.pool_negatives:
            # The rest of the pool plays no part: only the mined rows need to be read.
            columns, positive = compact(positive)
            ids, negative = ids.gather(1, columns), torch.zeros_like(positive)
        rows = self.banks.augmented.read(ids).to(positive.device)  # (T, P, D)
        return BankPairs(rows, negative, positive)

    def _random_pairs(self, batch: Batch, generator: torch.Generator) -> BankPairs:
        """Random bank rows as negatives, the same for all tuples (variants B and C)."""
        wanted, rows = self.settings.random_negatives, len(self.banks.augmented)
        ids = torch.arange(rows)
        if wanted < rows:
            # With replacement: at a million rows a draw without would cost a pass over all of them.
            ids = torch.randint(rows, (wanted,), generator=generator)
        ids = ids.to(batch.ids.device)
        negative = ~contains(batch.ids, torch.ones_like(batch.ids, dtype=torch.bool), ids)  # (T, R)
        if self.settings.ignore_nearest:
            negative &= ~self._is_near(batch.ids[:, 0], ids)
        return BankPairs(self.banks.augmented.read(ids).to(batch.ids.device), negative)

    def explain(self, anchors: Tensor) -> Explanation:
        """What is decided for these anchors with the banks as they are now."""
        neighbours = self.pool.ids[anchors, : self.settings.neighbours].long()
        ids = torch.cat([anchors[:, None], neighbours], dim=1)  # (T, M)
        plain = self.banks.plain.read(ids)  # (T, M, D)
        batch = Batch(ids, self.banks.augmented.read(ids)[None], plain, (plain,))
        selected = self._select(batch)
        mined = self._mine(batch, selected) if self.settings.mines_memory else None
        candidates = self._pool_rows(anchors) if mined is None else mined.pool_ids
        near = torch.einsum("td,tpd->tp", plain[:, 0], self.banks.plain.read(candidates))
        return Explanation(
            ids=ids,
            selected=selected,
            similarities=torch.einsum("td,tnd->tn", plain[:, 0], plain[:, 1:]),
            candidates=candidates,
            candidate_similarities=near,
            mined=mined.expansion.positives if mined else None,
            repeat=mined.expansion.repeat if mined else None,
            score=mined.expansion.score if mined else None,
        )

    def descriptors(self, ids: Tensor) -> Tensor:
        """Rows of the plain bank."""
        return self.banks.plain.read(ids)

    def state_dict(self) -> dict[str, Any]:
        """Both banks."""
        return self.banks.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], copies: Mapping[str, Path], ranks: Ranks) -> None:
        """Take over the banks of a checkpoint."""
        self.banks.restore(state, copies, ranks)

    def files(self) -> Mapping[str, Path]:
        """The files of mapped banks."""
        return self.banks.files


def _measure_settings(settings: InsclrSettings, start: RoundStart) -> tuple[InsclrSettings, tuple[str, ...]]:
    """The settings with every "auto" measured on random pairs, cut to the size of the collection."""
    used = [
        name for name in ("batch_threshold", "sparsity", "memory_threshold") if name not in settings.unread()
    ]
    auto = [name for name in used if getattr(settings, name) == "auto"]
    changes: dict[str, Any] = {"batch_threshold": 0.0} if settings.selection == "nn" else {}
    reasons = []
    if auto:
        value = exceeded_by(random_pairs(start.descriptors), FALSE_MATCHES)
        changes |= dict.fromkeys(auto, value)
        reasons = [
            f"{name} = {value:.3g}: {FALSE_MATCHES:.0%} of random pairs are more similar" for name in auto
        ]
    unused = [name for name in ("sparsity", "memory_threshold") if getattr(settings, name) == "auto"]
    changes |= {name: 0.0 for name in unused if name not in auto}
    most = len(start) - 1
    changes |= {"pool": min(settings.pool, most), "k": min(settings.k, most)}
    return settings.with_(**changes), tuple(reasons)
