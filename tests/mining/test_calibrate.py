"""Thresholds from random pairs."""

import pytest
import torch
from torch.nn.functional import normalize

from insclr.mining.own_views import exceeded_by, random_pairs


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_a_threshold_is_exceeded_by_its_share_of_random_pairs(share: float) -> None:
    plain = normalize(torch.randn(400, 32, generator=torch.Generator().manual_seed(0)), dim=1)
    threshold = exceeded_by(random_pairs(plain), share)
    pairs = (plain @ plain.T)[~torch.eye(400, dtype=torch.bool)]
    assert (pairs > threshold).float().mean().item() == pytest.approx(share, abs=0.005)


def test_an_image_is_never_paired_with_itself() -> None:
    # Two orthogonal images: every pair of different ones has similarity 0.
    assert random_pairs(torch.eye(2)).abs().max() == 0
