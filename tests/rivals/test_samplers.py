"""Batches of single images and of groups, from the number of the step alone."""

import pytest
import torch

from insclr.errors import UserError
from insclr_rivals.samplers import EvenSampler, GroupSampler, ImageSampler


def test_single_images_need_no_pool() -> None:
    sampler = ImageSampler(10, 4, seed=0)
    drawn = torch.cat([sampler.step(n) for n in range(5)])
    assert drawn.shape == (20, 1)
    assert sorted(drawn[:10, 0].tolist()) == list(range(10))  # an epoch shows every image once
    assert sorted(drawn[10:, 0].tolist()) == list(range(10))
    with pytest.raises(UserError, match="11 tuples cannot be drawn from 10 images"):
        ImageSampler(10, 11, seed=0)


def test_a_tuple_of_a_group_repeats_an_image_only_where_the_group_is_too_small() -> None:
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 2, -1])
    sampler = GroupSampler(groups, 9, 3, seed=0)  # more tuples than images of a group
    for n in range(5):
        for anchor, *members in sampler.step(n).tolist():
            assert len({int(groups[image]) for image in (anchor, *members)}) == 1
            size = int((groups == groups[anchor]).sum())
            assert len({anchor, *members}) == min(3, size)
            assert groups[anchor] >= 0
    assert torch.equal(sampler.step(3), GroupSampler(groups, 9, 3, seed=0).step(3))


def test_groups_are_drawn_evenly_however_large_they_are() -> None:
    groups = torch.tensor([0] * 90 + [1] * 9 + [3])  # 2 is empty
    drawn = torch.cat([groups[EvenSampler(groups, 50, seed=0).step(n)[:, 0]] for n in range(40)])
    counts = torch.bincount(drawn, minlength=4)
    assert counts[2] == 0
    assert (counts[[0, 1, 3]] - 2000 / 3).abs().max() < 120
