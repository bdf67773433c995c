import pytest
import torch
from torch.nn.functional import normalize

from insclr.errors import UserError
from insclr.mining.calibrate import calibrate, random_pairs
from insclr.mining.overlap import ThingSize
from insclr.mining.own_views import evidence, measure_own_views
from insclr.neighbours.pool import build_pool
from insclr.recipe import LossRecipe, MiningRecipe, RoundRecipe

_AUTO = MiningRecipe(
    similarity="overlap",
    batch_threshold="auto",
    k="auto",
    memory_floor="auto",
    ignore_above="auto",
    ignore_nearest="auto",
)


def _unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_numbers_are_measured_by_own_views_and_come_with_their_reason() -> None:
    plain = _unit(500, 16)
    seen = evidence(plain, normalize(plain + 0.5 * _unit(2, 500, 16, seed=1), dim=2), voted=True)
    pool = build_pool(seen.deciding, 40)
    found = calibrate(RoundRecipe(mining=_AUTO), plain, seen, pool.ids, size=ThingSize(12))
    own = measure_own_views(seen, random_pairs(seen.deciding), pool.ids, 12)
    assert found.criteria.batch_threshold == own.threshold
    assert found.criteria.floor == pytest.approx(0.9 * own.shared)
    assert found.criteria.k == 6
    assert found.criteria.ignore_nearest == 24
    names = [reason.split(" = ")[0] for reason in found.reasons]
    assert names == ["batch_threshold", "k", "memory_floor", "ignore_above", "ignore_nearest"]
    # With the anchor as the only witness, the same share of the way, in similarities.
    alone = calibrate(RoundRecipe(method="D-anchor", mining=_AUTO), plain, seen, pool.ids, size=ThingSize(12))
    assert alone.criteria.floor == pytest.approx(own.strangers + 0.9 * (own.own - own.strangers))


def test_automatic_overlaps_without_views_are_refused() -> None:
    with pytest.raises(UserError, match="cached_views must be 1 or more"):
        calibrate(RoundRecipe(mining=_AUTO), _unit(50, 8))


def test_the_margin_leaves_the_most_similar_tenth_of_random_pairs_active() -> None:
    plain = _unit(400, 32)
    margin = calibrate(RoundRecipe(loss=LossRecipe(margin="auto")), plain).criteria.margin
    pairs = (plain @ plain.T)[~torch.eye(400, dtype=torch.bool)]
    assert (pairs > margin).float().mean().item() == pytest.approx(0.10, abs=0.005)
