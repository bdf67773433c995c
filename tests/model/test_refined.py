"""A last layer refined by another and folded into one."""

import pytest
import torch
from torch import nn

from insclr.model.network import RefinedLinear, compose


def test_a_refined_layer_starts_as_it_was_and_folds_into_one() -> None:
    fixed = nn.Linear(12, 5)
    refined = RefinedLinear(fixed)
    x = torch.randn(7, 12)
    torch.testing.assert_close(refined(x), fixed(x))
    assert sum(p.numel() for p in refined.trained_parameters()) == 5 * 5 + 5  # the fixed part is not trained
    with torch.no_grad():
        refined.top.weight += 0.3 * torch.randn(5, 5)
        refined.top.bias += 1  # type: ignore[misc]
    torch.testing.assert_close(refined.fold()(x), refined(x))


@pytest.mark.parametrize("first_bias", [True, False])
@pytest.mark.parametrize("second_bias", [True, False])
def test_composition_is_one_after_the_other(first_bias: bool, second_bias: bool) -> None:
    first, second = nn.Linear(6, 4, bias=first_bias), nn.Linear(4, 3, bias=second_bias)
    x = torch.randn(2, 6)
    torch.testing.assert_close(compose(first, second)(x), second(first(x)))
