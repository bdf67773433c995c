"""An image's own views as the yardstick of what is the same."""

import pytest
import torch
from torch.nn.functional import normalize

from insclr.mining.own_views import Evidence, OwnViews, combine_views, measure_own_views, random_pairs
from insclr.neighbours.pool import build_pool


def _unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_all_views_of_an_image_decide_together_and_one_of_them_is_the_reference() -> None:
    plain, views = _unit(6, 4), _unit(3, 6, 4, seed=1)
    seen = combine_views(plain, views, voted=True)
    torch.testing.assert_close(seen.deciding, normalize(plain + views[0] + views[1] + views[2], dim=1))
    torch.testing.assert_close(seen.others, normalize(plain + views[1] + views[2], dim=1))
    assert torch.equal(seen.view, views[0])
    alone = combine_views(plain, views, voted=False)
    assert torch.equal(alone.deciding, plain)
    assert torch.equal(alone.others, plain)


def test_a_few_looks_find_more_of_a_thing_than_one() -> None:
    things = _unit(30, 32)
    truth = torch.arange(30).repeat_interleave(6)
    plain = normalize(things[truth] + 1.3 * _unit(180, 32, seed=1), dim=1)
    views = normalize(plain + 1.0 * _unit(4, 180, 32, seed=2), dim=2)

    def right(descriptors: torch.Tensor) -> float:
        nearest = (descriptors @ descriptors.T).fill_diagonal_(-2).topk(5).indices
        return float((truth[nearest] == truth[:, None]).float().mean())

    # Each look is a noisy one: the plain image is a view like the others.
    looks = normalize(plain + 1.0 * _unit(180, 32, seed=3), dim=1)
    assert right(combine_views(looks, views, voted=True).deciding) > right(looks) + 0.05


def test_a_pair_must_come_halfway_to_an_own_view_and_as_near_as_the_worst_of_them() -> None:
    assert OwnViews(
        random_pair_similarity=0.0, own_view_similarity=0.8, least_similarity=0.3, shared=0.5
    ).threshold == pytest.approx(0.4)
    assert OwnViews(
        random_pair_similarity=0.0, own_view_similarity=0.8, least_similarity=0.6, shared=0.5
    ).threshold == pytest.approx(0.6)
    assert OwnViews(
        random_pair_similarity=0.2, own_view_similarity=0.8, least_similarity=0.3, shared=0.5
    ).between(0.9) == pytest.approx(0.74)


def test_own_views_share_what_a_literal_count_finds() -> None:
    plain = _unit(80, 8)
    view = normalize(plain + 0.4 * _unit(80, 8, seed=1), dim=1)
    seen = combine_views(plain, view[None], voted=True)
    pool = build_pool(plain, 20)
    own = measure_own_views(seen, random_pairs(plain), pool.ids, k=5)
    shares = []
    for i in range(80):

        def nearest(descriptor: torch.Tensor, self: int = i) -> set[int]:
            order = (plain @ descriptor).argsort(descending=True).tolist()
            return set([j for j in order if j != self][:5]) | {self}

        shares.append(len(nearest(plain[i]) & nearest(view[i])) / 6)
    assert own.shared == pytest.approx(sum(shares) / 80, abs=1e-6)
    assert own.own_view_similarity == pytest.approx(float((plain * view).sum(1).mean()), abs=1e-6)
    assert own.least_similarity == pytest.approx(float((plain * view).sum(1).min()), abs=1e-6)


def test_views_of_some_images_measure_those_images_alone() -> None:
    plain = _unit(60, 8)
    views = normalize(plain + 0.5 * _unit(60, 8, seed=1), dim=1)
    some = torch.arange(0, 60, 3)
    pool, pairs = build_pool(plain, 10), random_pairs(plain)
    found = measure_own_views(Evidence(plain, views[some], plain[some], some), pairs, pool.ids, 5)
    own = (plain[some] * views[some]).sum(1)
    assert found.own_view_similarity == pytest.approx(float(own.mean()), abs=1e-6)
    assert found.least_similarity == pytest.approx(float(own.min()), abs=1e-6)
    shared = []
    for image in some.tolist():
        near = [i for i in (views[image] @ plain.T).argsort(descending=True).tolist() if i != image][:5]
        shared.append((1 + len({*near} & {*pool.ids[image, :5].tolist()})) / 6)
    assert found.shared == pytest.approx(sum(shared) / len(shared), abs=1e-6)
