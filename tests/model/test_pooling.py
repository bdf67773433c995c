"""Poolings by hand."""

import pytest
import torch

from insclr.errors import UserError
from insclr.model.backbones import FeatureMap
from insclr.model.network import GeM, create_pooling

_MAP = FeatureMap(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), cls=torch.tensor([[9.0]]))  # one channel, 2 x 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gem", ((1 + 8 + 27 + 64) / 4) ** (1 / 3)),
        ("mac", 4.0),
        ("spoc", 2.5),
        ("cls", 9.0),
    ],
)
def test_poolings_by_hand(name: str, expected: float) -> None:
    assert create_pooling(name)(_MAP).item() == pytest.approx(expected, rel=1e-6)


def test_gem_moves_from_mean_to_maximum() -> None:
    assert GeM(p=1.0)(_MAP).item() == pytest.approx(2.5)
    assert GeM(p=50.0)(_MAP).item() == pytest.approx(4.0, rel=0.05)


def test_a_missing_class_token_is_refused() -> None:
    with pytest.raises(UserError, match="no class token"):
        create_pooling("cls")(FeatureMap(torch.ones(1, 1, 2, 2), None))
