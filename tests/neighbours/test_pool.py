"""The pool of nearest others of every image."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.unit_rows import unit_rows
from insclr.errors import UserError
from insclr.neighbours.exact import nearest
from insclr.neighbours.pool import Pool, build_pool


def pool_in_blocks(features: Tensor, size: int, block_bytes: int) -> Pool:
    own = torch.arange(len(features))
    similarities, ids = nearest(features, features, size, own=own, block_bytes=block_bytes)
    return Pool(ids.int(), similarities)


def slow_pool(features: Tensor, size: int, anchors: int | None = None) -> list[list[tuple[float, int]]]:
    """Every image against every other one, sorted by similarity, then by id."""
    pool = []
    for i, anchor in enumerate(features.double()[:anchors]):
        others = [(float((anchor * other).sum()), j) for j, other in enumerate(features.double()) if j != i]
        pool.append(sorted(others, key=lambda pair: (-pair[0], pair[1]))[:size])
    return pool


@given(seed=st.integers(0, 10**6), images=st.integers(2, 24), dim=st.integers(2, 6), data=st.data())
def test_pool_holds_the_nearest_others_best_first(
    seed: int, images: int, dim: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, images - 1))
    columns = data.draw(st.integers(1, 30))
    features = unit_rows(seed, images, dim)
    pool = pool_in_blocks(features, size, 4 * columns * (images + dim))
    expected = slow_pool(features, size)
    for i in range(images):
        assert torch.allclose(pool.similarities[i], torch.tensor([s for s, _ in expected[i]]), atol=1e-5)
        true_similarity = features[i] @ features[pool.ids[i].long()].T
        assert torch.allclose(true_similarity, pool.similarities[i], atol=1e-5)
        assert i not in pool.ids[i]
        assert len(set(pool.ids[i].tolist())) == size
    assert pool.ids.dtype == torch.int32
    assert pool.size == size
    assert pool.recall == 1.0


def test_blocks_of_any_size_give_the_same_pool_over_several_query_blocks() -> None:
    features = unit_rows(3, 2500, 8)
    whole = build_pool(features, 20)
    blocked = pool_in_blocks(features, 20, 4 * 300 * 1032)
    assert torch.equal(whole.ids, blocked.ids)
    assert torch.allclose(whole.similarities, blocked.similarities, atol=1e-6)


def test_identical_images_are_neighbours_but_nobody_is_its_own() -> None:
    twin = torch.tensor([1.0, 0.0])
    features = torch.stack([twin, twin, twin, torch.tensor([0.0, 1.0])])
    pool = build_pool(features, 2)
    assert pool.ids.tolist() == [[1, 2], [0, 2], [0, 1], [0, 1]]


@pytest.mark.parametrize("columns", [3, 4, 100])
def test_equal_similarities_go_by_id_whatever_the_blocks(columns: int) -> None:
    features = torch.eye(12)  # all pairs at similarity 0
    pool = pool_in_blocks(features, 3, 4 * columns * 24)
    for i in range(12):
        assert pool.ids[i].tolist() == [j for j in range(12) if j != i][:3]


def test_half_precision_features() -> None:
    features = unit_rows(0, 40, 16)
    pool, exact = build_pool(features.half(), 5), build_pool(features, 5)
    assert torch.allclose(pool.similarities, exact.similarities, atol=2e-3)


def test_a_pool_as_large_as_the_collection_is_refused_with_the_largest_possible() -> None:
    with pytest.raises(UserError, match=r"there are 5.*Set the pool to 4"):
        build_pool(unit_rows(0, 5, 3), 5)
    with pytest.raises(UserError, match="at least 1"):
        build_pool(unit_rows(0, 5, 3), 0)
    assert isinstance(build_pool(unit_rows(0, 5, 3), 4), Pool)


@pytest.mark.parametrize("columns", [8, 150, 400])
@pytest.mark.parametrize("kinds", [5, 1000])
def test_large_collections_with_many_equal_images(columns: int, kinds: int) -> None:
    # Rows of the identity: similarities are 0 or 1, and with few kinds most candidates are equals.
    features = torch.eye(kinds)[torch.arange(400) * 7919 % kinds]
    pool = pool_in_blocks(features, 7, 4 * columns * 400)
    for i, expected in enumerate(slow_pool(features, 7, anchors=10)):
        assert pool.ids[i].tolist() == [j for _, j in expected]
