"""The shipped method: decide once a round which candidates are positives, by measured thresholds.

The paper's query sets by ranks instead of cosines (`mining.overlap`), on the mean of all views of an image, with
thresholds that the images' own views measure. No memory bank: mined images enter the batch as members of the
tuples, with gradient, and whatever may show the same instance is no negative.
"""

from dataclasses import asdict, replace
from typing import Literal

import torch
from pydantic import model_validator
from torch import Tensor

from insclr.data.tuples import FeedbackGroups, KnownGroupsSampler, Sampler, TupleSampler
from insclr.memory.round_pool import map_large_pool, round_pool
from insclr.methods.method import (
    Batch,
    Explanation,
    Method,
    Needs,
    Pairs,
    Prepared,
    RoundStart,
    contains,
    label_batch,
    precision_of,
)
from insclr.methods.pair_history import PairHistory
from insclr.mining.candidates import (
    CandidateLabels,
    Consistency,
    PairTrust,
    Thresholds,
    label_candidates,
    measure_consistency,
    measure_thresholds,
)
from insclr.mining.expand import eligible_candidates, query_set
from insclr.mining.overlap import InstanceSize, estimate_size, neighbour_overlap
from insclr.mining.own_views import MOST_MEASURED, Evidence, combine_views, measure_own_views, random_pairs
from insclr.model.network import DescriptorNetwork
from insclr.neighbours.pool import Pool
from insclr.recipe import Auto, MethodSettings, setting

_SMALLEST_POOL = 100
BLOCK_ROWS = 8192


class CalibratedSettings(MethodSettings):
    """The shipped method: decides once a round, by thresholds that the collection's own views measure."""

    name: Literal["calibrated"] = setting(
        "calibrated", "decide once a round, by thresholds measured on the collection's own views"
    )
    variant: Literal["A", "C", "D-anchor", "D"] = setting(
        "D",
        "A nearest; C nearest above a threshold; D-anchor and mutual neighbours; D and shared neighbourhoods",
    )
    neighbours: int = setting(3, "N_b: neighbours of the anchor in a tuple", ge=1)
    pool: int | Auto = setting("auto", "P: size of the candidate pool")
    confirmed: float = setting(
        0.0, "share of the earlier rounds that must have mined a pair too, else it is ignored", ge=0, le=1
    )

    @model_validator(mode="after")
    def _check_pool(self) -> "CalibratedSettings":
        if self.pool != "auto" and self.pool <= self.neighbours:
            raise ValueError(f"pool must be larger than neighbours ({self.neighbours})")
        return self

    @property
    def votes(self) -> bool:
        """Whether decisions are made on the mean of all views of an image; A takes its plain view."""
        return self.variant != "A"


class CalibratedMethod(Method):
    """Labels looked up in every step, decided when the round began."""

    settings_class = CalibratedSettings
    needs = Needs(views=True)
    explains = True
    learns_from_feedback = True
    pool: Pool
    labels: CandidateLabels
    sampler: Sampler

    def __init__(self, settings: CalibratedSettings) -> None:
        self.settings = settings

    def prepare(self, start: RoundStart) -> Prepared:
        """Find candidates, measure the thresholds, and label every candidate of every image."""
        settings = self.settings
        self._descriptors = start.descriptors
        seen = _describe_views(start.network, start.plain, start.views, voted=settings.votes)
        # Three query sets, and all images that may show the same instance, must fit into the pool.
        wanted = max(_SMALLEST_POOL, 3 * start.size.core, start.size.reach)
        wanted = wanted if settings.pool == "auto" else settings.pool
        pool = round_pool(seen.deciding, min(wanted, len(start) - 1), start.folder, start.ranks, start.device)
        instance = start.size if start.size.core else estimate_size(pool.ids)
        own = measure_own_views(seen, random_pairs(seen.deciding), pool.ids, instance.core)
        del seen
        self.pool = pool = map_large_pool(pool, start.folder, start.ranks)
        # Sums may differ in the last bit between machines: all ranks decide by the first one's numbers.
        thresholds, reasons = start.ranks.from_first(measure_thresholds(settings.variant, own, instance))
        self.labels = _label_in_blocks(pool, instance.core, thresholds, settings)
        self.feedback = start.feedback
        consistency = start.ranks.from_first(self._consistency(start, pool, instance))
        if start.trust is PairTrust.UNTRUSTED and start.feedback is not None:
            # Feedback alone is learned; mined pairs still are no negatives.
            nothing = torch.zeros_like(self.labels.positive)
            self.labels = CandidateLabels(nothing, self.labels.ignored | self.labels.positive)
            reasons = (
                *reasons,
                "mined pairs were left out, because they are inconsistent: only feedback is learned",
            )
        else:
            reasons = (*reasons, *self._confirm_pairs(start))
        if start.feedback is not None and start.feedback.proven.any():
            self.labels = _add_proven(self.labels, pool, start.feedback)
        self.sampler = TupleSampler(
            pool.ids, start.tuples, settings.neighbours, start.seed, self.labels.positive
        )
        if start.feedback is not None:
            self.sampler = KnownGroupsSampler(
                self.sampler, start.feedback.groups, start.feedback.decided, start.seed
            )
        criteria = {"variant": settings.variant, "pool": pool.size, **asdict(thresholds)}
        if start.feedback is not None and start.feedback.decided.any():
            criteria["with_feedback"] = int(start.feedback.decided.sum())
        if consistency is not None:
            reasons = (*reasons, f"consistency = {consistency.value:.2f}: {consistency}")
        feedback = 0
        if self.feedback is not None:
            feedback = self.feedback.positives() - int(self.labels.positive[self.feedback.decided].sum())
        return Prepared(criteria, reasons, pool.ids, self.labels.positive, consistency, feedback)

    def _confirm_pairs(self, start: RoundStart) -> tuple[str, ...]:
        """Record the mined pairs, and ignore those that too few of the earlier rounds mined; the reasons."""
        least, mined = self.settings.confirmed, self.labels.positive
        if start.kept is None:
            return ()
        history = PairHistory(start.kept, start.number)
        positive = history.confirm(self.pool.ids, mined, least) if least else mined
        if start.ranks.first:
            history.add(self.pool.ids, mined)
        if not least:
            return ()
        self.labels = CandidateLabels(positive, self.labels.ignored | (mined & ~positive))
        share = float(positive.sum()) / max(1.0, float(mined.sum()))
        return (f"confirmed = {share:.0%} of the pairs: {least:.0%} of the earlier rounds mined them too",)

    def _consistency(self, start: RoundStart, pool: Pool, size: InstanceSize) -> Consistency | None:
        if start.trust is not PairTrust.UNTESTED or not start.ranks.first:
            return None
        return measure_consistency(
            lambda ids: torch.stack([start.network.describe_pooled(view[ids]) for view in start.views[:4]]),
            pool,
            self.labels.positive,
            size,
            variant=self.settings.variant,
            neighbours=self.settings.neighbours,
        )

    def label(self, batch: Batch, step: int, generator: torch.Generator) -> Pairs:  # noqa: ARG002
        """Look up the decisions of the round; images that may show the same instance are no negatives."""
        anchors, batch_ids = batch.ids[:, 0], batch.global_batch.ids.reshape(-1)
        candidates, positive = self._candidates(anchors)
        selected = _select_members(batch.ids, candidates, positive, batch.unreliable)
        spared = positive | self.labels.ignored[anchors.cpu()].to(positive.device)  # (T, P)
        ignored = contains(candidates, spared, batch_ids)  # (T, B)
        if self.feedback is not None:
            selected, ignored = _apply_feedback(self.feedback, batch.ids, batch_ids, selected, ignored)
        pairs = label_batch(
            batch.ids,
            selected,
            ignored=ignored,
            batch_tuple_ids=batch.global_batch.ids,
            first_tuple=batch.first_tuple,
        )
        self.pool.give_back()
        return replace(
            pairs, mined_ids=candidates, mined=positive & eligible_candidates(candidates, batch.ids)
        )

    def _candidates(self, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """The anchors' candidates (T, P) and which of them are positives, where the anchors are."""
        rows = anchors.cpu()
        return self.pool.ids[rows].to(anchors), self.labels.positive[rows].to(anchors.device)

    def explain(self, anchors: Tensor) -> Explanation:
        """What was decided for these anchors when the round began."""
        candidates, positive = self._candidates(anchors)
        neighbours = candidates[:, : self.settings.neighbours]
        ids = torch.cat([anchors[:, None], neighbours], dim=1)  # (T, M)
        anchor = self._descriptors[anchors].float()
        near = torch.einsum("td,tpd->tp", anchor, self._descriptors[candidates].float())
        mined = positive & eligible_candidates(candidates, ids)
        return Explanation(
            ids=ids,
            selected=_select_members(ids, candidates, positive, None),
            similarities=near[:, : self.settings.neighbours],
            candidates=candidates,
            candidate_similarities=near,
            mined=mined,
            repeat=mined.to(torch.int8),
            score=self.pool.similarities[anchors].float(),
        )

    def descriptors(self, ids: Tensor) -> Tensor:
        """As they were when the round began."""
        return self._descriptors[ids].float()


def _select_members(ids: Tensor, candidates: Tensor, positive: Tensor, unreliable: Tensor | None) -> Tensor:
    """The query set of each tuple (T, M): the anchor and the members among its positives."""
    member = candidates[:, :, None] == ids[:, None, 1:]  # (T, P, N_b)
    chosen = (member & positive[:, :, None]).any(1)
    if unreliable is not None:
        chosen &= ~unreliable
    return query_set(chosen)


def _apply_feedback(
    feedback: FeedbackGroups, ids: Tensor, batch_ids: Tensor, selected: Tensor, ignored: Tensor
) -> tuple[Tensor, Tensor]:
    """The query sets (T, M) and what is ignored (T, B), corrected by feedback.

    A group with feedback is one instance; groups that people marked as different repel, however similar they are.
    """
    anchors, batch = ids[:, 0], batch_ids.expand(len(ids), -1)
    known = feedback.decided.to(ids.device)[anchors][:, None]  # (T, 1)
    chosen = torch.where(known, feedback.same(anchors, ids), selected & ~feedback.different(anchors, ids))
    spared = (ignored | feedback.same(anchors, batch)) & ~feedback.different(anchors, batch)
    return query_set(chosen[:, 1:]), spared


def _add_proven(labels: CandidateLabels, pool: Pool, groups: FeedbackGroups) -> CandidateLabels:
    """The labels, with candidates that matched points prove as positives."""
    positive, ignored = labels.positive.clone(), labels.ignored.clone()
    for rows in torch.arange(len(pool.ids)).split(BLOCK_ROWS):
        same = groups.proven_same(rows, pool.ids[rows].long())
        positive[rows] |= same
        ignored[rows] &= ~same
    pool.give_back()
    return CandidateLabels(positive, ignored)


def _describe_views(network: DescriptorNetwork, plain: Tensor, views: Tensor, *, voted: bool) -> Evidence:
    """What the network sees in pooled features (N, C) and those of the views (V, N, C), block by block.

    Of a large collection the deciding descriptors are in half precision, and own views are measured on a sample.
    """
    views = views if voted else views[:1]  # the others would decide nothing
    images = len(plain)
    order = torch.randperm(images, generator=torch.Generator().manual_seed(0))
    measured = torch.zeros(images, dtype=torch.bool).index_fill_(0, order[:MOST_MEASURED], True)
    deciding = torch.empty(images, network.dim, dtype=precision_of(images))
    own, others = [], []
    for rows in torch.arange(images).split(BLOCK_ROWS):
        described = torch.stack([network.describe_pooled(view[rows]) for view in views])
        seen = combine_views(network.describe_pooled(plain[rows]), described, voted=voted)
        deciding[rows] = seen.deciding.to(deciding.dtype)
        own.append(seen.view[measured[rows]])
        others.append(seen.others[measured[rows]])
    some = None if measured.all() else measured.nonzero()[:, 0]
    return Evidence(deciding, torch.cat(own), torch.cat(others), some)


def _label_in_blocks(
    pool: Pool, k: int, thresholds: Thresholds, settings: CalibratedSettings
) -> CandidateLabels:
    """The labels of all candidates; what they are decided by is held for a block of images at a time."""
    positive = torch.empty(pool.ids.shape, dtype=torch.bool)
    ignored = torch.empty_like(positive)
    for rows in torch.arange(len(pool.ids)).split(BLOCK_ROWS):
        block = Pool(pool.ids[rows], pool.similarities[rows])
        found = label_candidates(
            block, neighbour_overlap(pool.ids, k, rows), thresholds, settings.variant, settings.neighbours
        )
        positive[rows], ignored[rows] = found.positive, found.ignored
    pool.give_back()
    return CandidateLabels(positive, ignored)
