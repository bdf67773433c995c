"""Where a run's fully connected layer starts: at a PCA, or at a whitening learned from the images' views.

Directions in which an image moves when it is augmented, or in which mined pairs differ, say nothing about the
instance it shows: they are scaled down. In closed form, in seconds, and safe: with no mined pairs at all the views
alone decide.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from insclr.data.feedback_groups import FeedbackGroups
from insclr.mining.calibrate import random_pairs
from insclr.mining.candidates import CandidateLabels, label_candidates, measure_thresholds
from insclr.mining.overlap import UNKNOWN, InstanceSize, estimate_size, neighbour_overlap
from insclr.mining.own_views import Evidence, evidence, measure_own_views
from insclr.model.whitening import Whitening, fold_into_fc, pca_whitening
from insclr.neighbours.pool import Pool, build_pool
from insclr.recipe import CalibratedSettings, MethodSettings

_MAX_LEARNED_FROM = 50_000  # images: enough for a covariance of a few thousand axes
_MAX_PAIRS = 60_000
_PASSES = 2  # mine, whiten, mine again with what that showed
_RIDGE = 0.5  # of the mean variance, added to all: as much as views alone deserve
_MAX_POOL = 301
# How much the photos' own scatter counts beside that of their views where no pair is believed. Chosen on scans of
# text and antelopes, looked at on three more kinds: above the better PCA on all five.
_PHOTOS_WITHOUT_PAIRS = 0.1


@dataclass(frozen=True)
class Start:
    """A start of the fully connected layer, the size of an instance, and how both were found."""

    whitening: Whitening
    size: InstanceSize = UNKNOWN
    reasons: tuple[str, ...] = ()


def pca_start(plain: Tensor, dim: int, power: float) -> Start:
    """Centred PCA of the pooled features (N, C), its axes divided by their variance ** power."""
    features = plain[:: 1 + len(plain) // _MAX_LEARNED_FROM].float()
    return Start(pca_whitening(features, min(dim, len(features) - 1), power))


def views_start(
    plain: Tensor,
    views: Tensor,
    dim: int,
    settings: MethodSettings,
    seed: int,
    feedback: FeedbackGroups | None = None,
    *,
    mined: bool = True,
) -> Start:
    """Whiten what augmentation and mined pairs change: from pooled features (N, C) and (V, N, C).

    Pairs are always mined by measured thresholds, since no layer is trained yet: by the variant and the N_b of
    `settings` where they are of the calibrated method. Without `mined` the views alone decide, and the `feedback`.
    """
    settings = settings if isinstance(settings, CalibratedSettings) else CalibratedSettings()
    some = slice(None, None, 1 + len(plain) // _MAX_LEARNED_FROM)
    features, augmented = plain[some].float(), views[:, some].float()
    axes = pca_whitening(features, min(dim, len(features) - 1), power=0.0)
    x = (features - axes.mean) @ axes.projection.T  # (N, D)
    a = (augmented - axes.mean) @ axes.projection.T  # (V, N, D)
    of_views = _scatter((a - x).flatten(0, 1))
    if not mined:
        # The axes along which photos differ most tell poses and places rather than instances.
        of_views = (of_views + _PHOTOS_WITHOUT_PAIRS * _scatter(x)) / (1 + _PHOTOS_WITHOUT_PAIRS)
    root = _inverse_root(of_views, _RIDGE)
    seen = _seen(x, a, root, settings)
    pool = build_pool(seen.deciding, min(_MAX_POOL, len(x) - 1))
    size = estimate_size(pool.ids, seed)
    reasons = [f"images of an instance that hold together = {size.core}: by how neighbourhoods overlap"]
    if size.whole:
        reasons.append(f"images of an instance = {size.whole}: where neighbourhoods overlap most")
    generator = torch.Generator().manual_seed(seed)
    told = None if feedback is None else feedback.some(some)
    for _ in range(_PASSES):
        positive = _label(seen, pool, size, settings).positive
        if not mined:
            positive = torch.zeros_like(positive)
        first, second = _pairs(positive, pool, generator)
        count = float(positive.sum())
        if told is not None:
            first, second = told.corrected(first, second, generator)
            count = max(count, float(len(first)))
        share = count / (count + len(x))  # how much the pairs count beside the views
        scatter = (1 - share) * of_views
        if len(first):
            scatter = scatter + share * _scatter(x[first] - x[second])
        # The more pairs, the more of their scatter is to be believed; views that must do alone count in full.
        trust = min(1.0, count / (2 * len(x))) if mined else 1.0
        root = _inverse_root(scatter, _RIDGE * 0.1**trust)
        seen = _seen(x, a, root, settings)
        pool = build_pool(seen.deciding, pool.size)
        reasons.append(f"whitening = {count / len(x):.1f} mined pairs an image beside its own views")
    root = root / (x @ root).norm(dim=1).mean()
    return Start(Whitening(axes.mean, (root @ axes.projection).contiguous()), size, tuple(reasons))


def apply_start(fc: nn.Linear, start: Start) -> None:
    """Put the start into the layer; axes that a small collection cannot fill stay zero."""
    whitening = start.whitening
    missing = fc.out_features - len(whitening.projection)
    if missing:
        empty = torch.zeros(missing, fc.in_features)
        whitening = Whitening(whitening.mean, torch.cat([whitening.projection, empty]))
    fold_into_fc(fc, whitening)


@torch.no_grad()
def mix_with_start(fc: nn.Linear, start: Mapping[str, Tensor], share: float) -> None:
    """Take the trained layer back towards its start (weight (D, C) and bias (D,)) by `share` of the way.

    The rounds teach this layer the very instances that are there, and it forgets what the start knew of others.
    Between the two lie weights that have most of both (Wortsman et al. 2022 found this for whole networks).
    """
    for name, value in fc.named_parameters():
        value.lerp_(start[name].to(value.device), share)


def _seen(x: Tensor, a: Tensor, root: Tensor, settings: CalibratedSettings) -> Evidence:
    """What the whitening by `root` shows of images (N, D) and views (V, N, D)."""
    plain, views = functional.normalize(x @ root, dim=1), functional.normalize(a @ root, dim=2)
    return evidence(plain, views, voted=settings.votes)


def _label(seen: Evidence, pool: Pool, size: InstanceSize, settings: CalibratedSettings) -> CandidateLabels:
    own = measure_own_views(seen, random_pairs(seen.deciding), pool.ids, size.core)
    thresholds, _ = measure_thresholds(settings.variant, own, size)
    overlap = neighbour_overlap(pool.ids, size.core)
    return label_candidates(pool, overlap, thresholds, settings.variant, settings.neighbours)


def _pairs(positive: Tensor, pool: Pool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    first, place = positive.nonzero(as_tuple=True)
    chosen = torch.randperm(len(first), generator=generator)[:_MAX_PAIRS]
    return first[chosen], pool.ids[first[chosen], place[chosen]].long()


def _scatter(differences: Tensor) -> Tensor:
    """Their second moment (D, D), scaled to a mean variance of 1."""
    scatter = differences.T @ differences
    return scatter * (len(scatter) / scatter.trace().clamp(min=1e-12))


def _inverse_root(scatter: Tensor, ridge: float) -> Tensor:
    """(scatter + ridge)^(-1/2), symmetric."""
    values, vectors = torch.linalg.eigh((scatter + ridge * torch.eye(len(scatter))).double())
    root: Tensor = (vectors * values.clamp(min=1e-12).rsqrt()) @ vectors.T
    return root.float()
