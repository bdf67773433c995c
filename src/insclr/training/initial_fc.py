"""The initial weights of the fully connected layer (FC): a PCA, or a whitening learned from the images' views.

Directions in which an image moves when it is augmented, or in which mined pairs differ, carry no information about
the instance: they are scaled down. In closed form, in seconds. With no mined pairs at all the views alone decide.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from insclr.data.tuples import FeedbackGroups
from insclr.methods.calibrated import CalibratedSettings
from insclr.methods.method import Needs
from insclr.mining.candidates import PairTrust, mine_pairs
from insclr.mining.overlap import UNKNOWN, InstanceSize, estimate_size
from insclr.mining.own_views import Evidence, combine_views
from insclr.model.whitening import Whitening, fold_into_fc, pca_whitening
from insclr.neighbours.pool import build_pool
from insclr.training.state import Run

_MAX_LEARNED_FROM = 50_000  # images: enough for a covariance of a few thousand axes
_MAX_PAIRS = 60_000
_PASSES = 2  # mine, whiten, mine again with what that showed
_RIDGE = 0.5  # of the mean variance, added to all where views alone decide
_MAX_POOL = 301
# Weight of the images' own scatter beside that of their views where pairs are untrusted. Chosen on scans of text
# and antelopes, checked on three more kinds: above the better PCA on all five.
_IMAGES_WITHOUT_PAIRS = 0.1


@dataclass(frozen=True)
class InitialFc:
    """Initial weights of the FC, the size of an instance, and how both were found."""

    whitening: Whitening
    size: InstanceSize = UNKNOWN
    reasons: tuple[str, ...] = ()


def initialise_fc(run: Run, plain: Tensor, views: Tensor, size: InstanceSize | None = None) -> None:
    """Give the FC its initial weights, from pooled features (N, C) and those of views (V, N, C).

    The first rank computes them for all. A random FC stays as it is. `size` is kept where it was estimated before.
    """
    recipe, fc, trust = run.recipe.network, run.network.fc, run.pair_trust()
    if run.ranks.first and isinstance(fc, nn.Linear) and recipe.initial_fc != "random":
        if recipe.initial_fc == "pca":
            initial = pca_fc(plain, run.network.dim, recipe.initial_fc_power)
        else:
            settings = run.recipe.rounds[0].method
            settings = settings if isinstance(settings, CalibratedSettings) else CalibratedSettings()
            initial = views_fc(plain, views, run.network.dim, settings, run.recipe.seed, run.feedback, trust)
        set_fc(fc, initial)
        run.folder.save_initial_fc(size or initial.size, initial.reasons, fc)
    run.ranks.copy_from_first(run.network)


def renew_initial_fc(run: Run, rounds: int) -> bool:
    """Initialise the FC again if the last of so many rounds has changed the features; whether it has."""
    kept = run.ranks.from_first(run.folder.kept_rounds())
    if not run.recipe.network.renew_initial_fc or rounds not in kept:
        return False
    before = run.recipe.rounds[rounds - 1]
    if before.train == "fc":
        return False
    features = run.features.pool_features(run.network, before, Needs(views=True))
    initialise_fc(run, features.plain, features.views)
    return True


def pca_fc(plain: Tensor, dim: int, power: float) -> InitialFc:
    """Centred PCA of the pooled features (N, C), its axes divided by their variance ** power."""
    features = plain[:: 1 + len(plain) // _MAX_LEARNED_FROM].float()
    return InitialFc(pca_whitening(features, min(dim, len(features) - 1), power))


def views_fc(
    plain: Tensor,
    views: Tensor,
    dim: int,
    settings: CalibratedSettings,
    seed: int,
    feedback: FeedbackGroups | None = None,
    trust: PairTrust = PairTrust.UNTESTED,
) -> InitialFc:
    """Whiten what augmentation and mined pairs change: from pooled features (N, C) and (V, N, C).

    Pairs are mined by measured thresholds, with the variant and the N_b of `settings`, since no layer is trained
    yet. Where they are untrusted, the views alone decide, and the `feedback`.
    """
    mined = trust is not PairTrust.UNTRUSTED
    some = slice(None, None, 1 + len(plain) // _MAX_LEARNED_FROM)
    features, augmented = plain[some].float(), views[:, some].float()
    axes = pca_whitening(features, min(dim, len(features) - 1), power=0.0)
    x = (features - axes.mean) @ axes.projection.T  # (N, D)
    a = (augmented - axes.mean) @ axes.projection.T  # (V, N, D)
    of_views = _scatter((a - x).flatten(0, 1))
    if not mined:
        # The axes along which images differ most separate poses and places rather than instances.
        of_views = (of_views + _IMAGES_WITHOUT_PAIRS * _scatter(x)) / (1 + _IMAGES_WITHOUT_PAIRS)
    root = _inverse_root(of_views, _RIDGE)
    evidence = _whiten(x, a, root, settings)
    pool = build_pool(evidence.deciding, min(_MAX_POOL, len(x) - 1))
    size = estimate_size(pool.ids, seed)
    reasons = [f"query set = {size.core}: by how neighbourhoods overlap, a hundredth of the images at most"]
    if size.whole:
        reasons.append(f"images of an instance = {size.whole}: where neighbourhoods overlap most")
    generator = torch.Generator().manual_seed(seed)
    feedback = None if feedback is None else feedback.subset(some)
    for _ in range(_PASSES):
        positive = torch.zeros_like(pool.ids, dtype=torch.bool)
        if mined:
            positive = mine_pairs(
                evidence, pool, size, settings.variant, settings.neighbours, with_mutual=True
            )
        if feedback is not None:
            positive = positive | feedback.proven_same(torch.arange(len(x)), pool.ids.long())
        first, place = positive.nonzero(as_tuple=True)
        drawn = torch.randperm(len(first), generator=generator)[:_MAX_PAIRS]
        first, second = first[drawn], pool.ids[first[drawn], place[drawn]].long()
        count = float(positive.sum())
        if feedback is not None:
            first, second = feedback.correct_pairs(first, second, generator)
            count = max(count, float(len(first)))
        share = count / (count + len(x))  # how much the pairs count beside the views
        scatter = (1 - share) * of_views
        if len(first):
            scatter = scatter + share * _scatter(x[first] - x[second])
        # The more pairs, the more weight their scatter has; views that decide alone count in full.
        weight = min(1.0, count / (2 * len(x))) if mined else 1.0
        root = _inverse_root(scatter, _RIDGE * 0.1**weight)
        evidence = _whiten(x, a, root, settings)
        pool = build_pool(evidence.deciding, pool.size)
        reasons.append(f"whitening = {count / len(x):.1f} mined pairs an image beside its own views")
    root = root / (x @ root).norm(dim=1).mean()
    return InitialFc(Whitening(axes.mean, (root @ axes.projection).contiguous()), size, tuple(reasons))


def set_fc(fc: nn.Linear, initial: InitialFc) -> None:
    """Put the weights into the layer; axes that a small collection cannot fill stay zero."""
    whitening = initial.whitening
    missing = fc.out_features - len(whitening.projection)
    if missing:
        empty = torch.zeros(missing, fc.in_features)
        whitening = Whitening(whitening.mean, torch.cat([whitening.projection, empty]))
    fold_into_fc(fc, whitening)


@torch.no_grad()
def average_with_initial(fc: nn.Linear, initial: Mapping[str, Tensor], weight: float) -> None:
    """Average the trained layer with its initial weight (D, C) and bias (D,), which count with `weight`.

    The rounds fit this layer to the instances of the collection, at the cost of unseen instances. Between the two
    lie weights that are good for both (Wortsman et al. 2022 found this for whole networks).
    """
    for name, value in fc.named_parameters():
        value.lerp_(initial[name].to(value.device), weight)


def _whiten(x: Tensor, a: Tensor, root: Tensor, settings: CalibratedSettings) -> Evidence:
    """Unit descriptors of images (N, D) and views (V, N, D), whitened by `root`."""
    plain, views = functional.normalize(x @ root, dim=1), functional.normalize(a @ root, dim=2)
    return combine_views(plain, views, voted=settings.votes)


def _scatter(differences: Tensor) -> Tensor:
    """Their second moment (D, D), scaled to a mean variance of 1."""
    scatter = differences.T @ differences
    return scatter * (len(scatter) / scatter.trace().clamp(min=1e-12))


def _inverse_root(scatter: Tensor, ridge: float) -> Tensor:
    """(scatter + ridge)^(-1/2), symmetric."""
    values, vectors = torch.linalg.eigh((scatter + ridge * torch.eye(len(scatter))).double())
    root: Tensor = (vectors * values.clamp(min=1e-12).rsqrt()) @ vectors.T
    return root.float()
