"""How many mined pairs are right, where there are labels."""

import pytest
import torch

from insclr.mining.candidates import mean_precision

# Images 0 and 1 show one instance, 2 and 3 another; 4 and 5 are not labelled.
_TRUTH = torch.tensor([0, 0, 1, 1, -1, -1])


def test_the_mean_is_over_anchors_not_over_pairs() -> None:
    # Anchor 0 chose 1 (right); anchor 2 chose 3 (right), 0 and 1 (wrong): (1 + 1/3) / 2, not 2 of 4 pairs.
    ids = torch.tensor([[1, 2, 3], [3, 0, 1]])
    chosen = torch.tensor([[True, False, False], [True, True, True]])
    assert mean_precision(_TRUTH, torch.tensor([0, 2]), ids, chosen) == pytest.approx((1 + 1 / 3) / 2)


def test_two_unlabelled_images_are_not_a_right_pair() -> None:
    ids = torch.tensor([[5, 4], [3, 4]])
    everything = torch.ones(2, 2, dtype=torch.bool)
    # Anchor 4 has no label and does not count; of anchor 2's choices 3 is right, 4 is something else.
    assert mean_precision(_TRUTH, torch.tensor([4, 2]), ids, everything) == 0.5
    assert mean_precision(_TRUTH, torch.tensor([4]), ids[:1], everything[:1]) is None


def test_labelling_two_of_eight_instances_measures_the_same_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    instances = torch.arange(8).repeat_interleave(50)
    ids = torch.randint(400, (400, 6), generator=generator)
    chosen = torch.ones_like(ids, dtype=torch.bool)
    whole = mean_precision(instances, torch.arange(400), ids, chosen)
    partly = mean_precision(torch.where(instances < 2, instances, -1), torch.arange(400), ids, chosen)
    # A random choice is right with 1/8. Taking unlabelled = unlabelled for right would make it 0.59.
    assert whole is not None
    assert partly is not None
    assert abs(whole - 1 / 8) < 0.02
    assert abs(partly - 1 / 8) < 0.04
