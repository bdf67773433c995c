"""Shared neighbours counted one by one, and the size of an instance estimated from them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from insclr.mining.overlap import estimate_size, neighbour_overlap
from insclr.neighbours.pool import build_pool


def _pool(features: torch.Tensor, size: int) -> torch.Tensor:
    return build_pool(torch.nn.functional.normalize(features, dim=1), size).ids


@settings(max_examples=25)
@given(st.integers(5, 30), st.integers(1, 6), st.integers(0, 10_000))
def test_overlap_is_the_share_of_common_members_counted_one_by_one(images: int, k: int, seed: int) -> None:
    ids = _pool(torch.randn(images, 6, generator=torch.Generator().manual_seed(seed)), min(8, images - 1))
    found = neighbour_overlap(ids, k)
    k = min(k, ids.shape[1])
    query_sets = [{i, *ids[i, :k].tolist()} for i in range(images)]
    for i in range(images):
        for place, j in enumerate(ids[i].tolist()):
            expected = len(query_sets[i] & query_sets[j]) / (k + 1)
            assert found.shared[i, place].item() == pytest.approx(expected, abs=1e-3)
            assert bool(found.mutual[i, place]) == (place < k and i in ids[j, :k].tolist())


def _things(sizes: list[int], spread: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(len(sizes), 64, generator=generator)
    return torch.cat(
        [c + spread * torch.randn(n, 64, generator=generator) for c, n in zip(centres, sizes, strict=True)]
    )


@pytest.mark.parametrize("pictures", [3, 10, 30])
def test_a_query_set_is_smaller_than_a_thing_and_no_picture_of_it_is_a_negative(pictures: int) -> None:
    size = estimate_size(_pool(_things([pictures] * (600 // pictures), spread=0.7), 100))
    assert 2 <= size.core <= pictures
    assert size.reach >= pictures


def test_families_of_mostly_single_images_do_not_make_the_query_set_large() -> None:
    # Twelve families of fifty things; ten things of each have four pictures, forty have one.
    families = torch.randn(12, 1, 64, generator=torch.Generator().manual_seed(0))
    things = families + 0.5 * torch.randn(12, 50, 64, generator=torch.Generator().manual_seed(1))
    pictures = torch.cat([things[:, :10].repeat_interleave(4, 1), things[:, 10:]], 1).flatten(0, 1)
    pictures += 0.6 * torch.randn(pictures.shape, generator=torch.Generator().manual_seed(2))
    assert estimate_size(_pool(pictures, 200)).core <= 10


def test_few_large_things_are_seen_whole_and_none_of_their_pictures_is_a_negative() -> None:
    size = estimate_size(_pool(_things([120] * 8, spread=0.9), 300))
    assert 80 <= size.whole <= 150
    assert size.core <= 960 // 40
    assert size.reach >= 119


def test_a_family_of_look_alikes_is_not_taken_for_one_thing() -> None:
    # Eight families of six things, eight pictures each: cohesion peaks at the thing and again at the family.
    generator = torch.Generator().manual_seed(0)
    families = torch.randn(8, 1, 64, generator=generator)
    centres = (families + 0.7 * torch.randn(8, 6, 64, generator=generator)).flatten(0, 1)
    pictures = centres[:, None] + 0.45 * torch.randn(48, 8, 64, generator=generator)
    assert 3 <= estimate_size(_pool(pictures.flatten(0, 1), 100)).core <= 8


def test_a_small_collection_is_not_taken_for_a_few_large_things() -> None:
    assert estimate_size(_pool(torch.randn(120, 4), 60)).core <= 3


def test_the_estimate_of_a_tiny_collection_is_possible() -> None:
    assert estimate_size(_pool(torch.randn(5, 4), 4)).core in (2, 3, 4)


def test_other_images_near_an_instance_share_less_of_its_neighbourhood_than_members() -> None:
    # One thing of ten pictures and a crowd around it, at cosines that overlap with the thing's own.
    features = torch.cat([_things([10], spread=0.6), _things([1] * 90, spread=0.0, seed=1)])
    ids = _pool(features, 30)
    shared = neighbour_overlap(ids, 9).shared[:10].float()
    member = ids[:10] < 10
    assert shared[member].mean() > 0.8
    assert shared[~member].mean() < 0.3


def test_the_overlap_of_some_rows_is_that_of_the_whole() -> None:
    ids = _pool(torch.randn(50, 6, generator=torch.Generator().manual_seed(3)), 12)
    whole = neighbour_overlap(ids, 5)
    rows = torch.tensor([4, 49, 0, 17])
    some = neighbour_overlap(ids, 5, rows)
    assert torch.equal(some.shared, whole.shared[rows])
    assert torch.equal(some.mutual, whole.mutual[rows])
