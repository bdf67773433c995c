"""Where a run's fully connected layer starts: at random, at a PCA, or at a whitening learned from the images' views.

Directions in which an image moves when it is augmented, or in which mined pairs differ, say nothing about which
thing it shows: they are scaled down. In closed form, in seconds, and safe: with no mined pairs at all the views
alone decide.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from insclr.mining.calibrate import calibrate
from insclr.mining.overlap import UNKNOWN, ThingSize, estimate_size, neighbour_overlap
from insclr.mining.own_views import Evidence, evidence
from insclr.mining.verdicts import Verdicts, judge, votes
from insclr.model.whitening import Whitening, fold_into_fc, pca_whitening
from insclr.neighbours.pool import Pool, build_pool
from insclr.recipe import MiningRecipe, RoundRecipe

_LEARNED_FROM = 50_000  # images: enough for a covariance of a few thousand axes
_PAIRS = 60_000
_PASSES = 2  # mine, whiten, mine again with what that showed
_RIDGE = 0.5  # of the mean variance, added to all: as much as views alone deserve
# Pairs for the start are always mined by calibrated overlaps: the features are nobody's yet.
_MINING = MiningRecipe(similarity="overlap", batch_threshold="auto", k="auto", memory_floor="auto")


@dataclass(frozen=True)
class Start:
    """A start of the fully connected layer, the size of a thing, and what was seen on the way."""

    whitening: Whitening
    size: ThingSize = UNKNOWN
    reasons: tuple[str, ...] = ()


def pca_start(plain: Tensor, dim: int, power: float) -> Start:
    """Centred PCA of the pooled features (N, C), its axes divided by their variance ** power."""
    features = plain[:: 1 + len(plain) // _LEARNED_FROM].float()
    return Start(pca_whitening(features, min(dim, len(features) - 1), power))


def views_start(plain: Tensor, views: Tensor, dim: int, recipe: RoundRecipe, seed: int) -> Start:
    """Whiten what augmentation and mined pairs change: from pooled features (N, C) and (V, N, C).

    Pairs are mined by the method and the N_b of `recipe`.
    """
    recipe = replace(recipe, mining=_MINING)
    some = slice(None, None, 1 + len(plain) // _LEARNED_FROM)
    features, augmented = plain[some].float(), views[:, some].float()
    axes = pca_whitening(features, min(dim, len(features) - 1), power=0.0)
    x = (features - axes.mean) @ axes.projection.T  # (N, D)
    a = (augmented - axes.mean) @ axes.projection.T  # (V, N, D)
    of_views = _scatter((a - x).flatten(0, 1))
    root = _inverse_root(of_views, _RIDGE)
    seen = _seen(x, a, root, recipe)
    pool = build_pool(seen.deciding, _pool_size(len(x)))
    size = estimate_size(pool.ids, seed)
    reasons = [f"pictures of a thing that hold together = {size.core}: by how neighbourhoods overlap"]
    if size.whole:
        reasons.append(f"pictures of a thing = {size.whole}: where neighbourhoods overlap most")
    generator = torch.Generator().manual_seed(seed)
    for _ in range(_PASSES):
        verdicts = _judge(seen, pool, size, recipe)
        first, second = _pairs(verdicts, pool, generator)
        count = verdicts.per_image() * len(x)
        share = count / (count + len(x))  # how much the pairs count beside the views
        scatter = (1 - share) * of_views
        if len(first):
            scatter = scatter + share * _scatter(x[first] - x[second])
        root = _inverse_root(scatter, _RIDGE * 0.1 ** min(1.0, count / (2 * len(x))))
        seen = _seen(x, a, root, recipe)
        pool = build_pool(seen.deciding, pool.size)
        reasons.append(f"whitening = {verdicts.per_image():.1f} mined pairs an image beside its own views")
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

    The rounds teach this layer the very things that are there, and it forgets what the start knew of others. Between
    the two lie weights that have most of both (Wortsman et al. 2022 found this for whole networks).
    """
    for name, value in fc.named_parameters():
        value.lerp_(start[name].to(value.device), share)


def _seen(x: Tensor, a: Tensor, root: Tensor, recipe: RoundRecipe) -> Evidence:
    """What the whitening by `root` shows of images (N, D) and views (V, N, D)."""
    plain, views = functional.normalize(x @ root, dim=1), functional.normalize(a @ root, dim=2)
    return evidence(plain, views, voted=votes(recipe.method))


def _judge(seen: Evidence, pool: Pool, size: ThingSize, recipe: RoundRecipe) -> Verdicts:
    criteria = calibrate(recipe, seen.deciding, seen, pool.ids, size).criteria
    return judge(pool, neighbour_overlap(pool.ids, size.core), criteria, recipe.neighbours)


def _pairs(verdicts: Verdicts, pool: Pool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    first, place = verdicts.positive.nonzero(as_tuple=True)
    chosen = torch.randperm(len(first), generator=generator)[:_PAIRS]
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


def _pool_size(images: int) -> int:
    return min(301, images - 1)
