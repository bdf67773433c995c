"""Which images a step sees, from the number of the step alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from insclr.data.tuples import TupleSampler
from insclr.errors import UserError


def ring_pool(images: int, size: int) -> Tensor:
    """The pool of image i is i + 1, i + 2, ... around a ring."""
    return ((torch.arange(images)[:, None] + torch.arange(1, size + 1)) % images).to(torch.int32)


@given(
    images=st.integers(3, 30), tuples=st.integers(1, 3), seed=st.integers(0, 2**32), epochs=st.integers(1, 3)
)
def test_every_image_is_an_anchor_once_an_epoch(images: int, tuples: int, seed: int, epochs: int) -> None:
    sampler = TupleSampler(ring_pool(images, 2), tuples, 1, seed)
    batches = -(-epochs * images // tuples)
    anchors = torch.cat([sampler.step(n)[:, 0] for n in range(batches)]).tolist()
    for epoch in range(epochs):
        assert sorted(anchors[epoch * images : (epoch + 1) * images]) == list(range(images))


def test_a_tuple_is_the_anchor_and_its_first_neighbours() -> None:
    batch = TupleSampler(ring_pool(20, 6), tuples=4, neighbours=3, seed=0).step(2)
    assert batch.shape == (4, 4)
    assert batch.dtype == torch.int64
    for anchor, *neighbours in batch.tolist():
        assert neighbours == [(anchor + n) % 20 for n in (1, 2, 3)]


def test_batch_n_needs_no_replay() -> None:
    pool = ring_pool(11, 4)
    sampler = TupleSampler(pool, 3, 2, seed=5)
    in_order = [sampler.step(n) for n in range(12)]
    for n in (11, 0, 7, 3, 4):
        assert torch.equal(TupleSampler(pool, 3, 2, seed=5).step(n), in_order[n])
    fresh = TupleSampler(pool, 3, 2, seed=5)
    assert all(torch.equal(fresh.step(n), in_order[n]) for n in reversed(range(12)))


def test_seeds_and_epochs_differ() -> None:
    pool = ring_pool(50, 3)
    first = TupleSampler(pool, 50, 1, seed=1)
    assert not torch.equal(first.step(0), first.step(1))
    assert not torch.equal(first.step(0), TupleSampler(pool, 50, 1, seed=2).step(0))


def test_more_tuples_than_images_is_refused() -> None:
    with pytest.raises(UserError, match="9 tuples cannot be drawn from 8 images"):
        TupleSampler(ring_pool(8, 3), 9, 2, seed=0)


def test_a_tuple_that_leaves_no_candidates_is_refused() -> None:
    with pytest.raises(UserError, match="3 neighbours does not fit a candidate pool of 3"):
        TupleSampler(ring_pool(8, 3), 2, 3, seed=0)


def test_members_are_drawn_from_the_mined_ones_before_the_others() -> None:
    pool_ids = torch.arange(1, 7).repeat(8, 1).to(torch.int32)  # candidates 1 ... 6 of every image
    mined = torch.zeros(8, 6, dtype=torch.bool)
    mined[:, 3:] = True  # 4, 5, 6
    mined[0] = False
    mined[0, 5] = True  # image 0 has one alone: the top-ranked fill up
    seen: set[tuple[int, ...]] = set()
    for n in range(40):
        for anchor, *members in TupleSampler(pool_ids, 4, 2, seed=3, mined=mined).step(n).tolist():
            if anchor == 0:
                assert members == [6, 1]
            else:
                assert set(members) <= {4, 5, 6}
                seen.add(tuple(members))
    assert len(seen) == 6  # every ordered pair of the three comes up
    again = TupleSampler(pool_ids, 4, 2, seed=3, mined=mined)
    assert torch.equal(again.step(5), TupleSampler(pool_ids, 4, 2, seed=3, mined=mined).step(5))
