"""Poolings by hand."""

import pytest
import torch

from insclr.errors import UserError
from insclr.model.backbones import FeatureMap
from insclr.model.network import RMAC, GeM, create_pooling

_MAP = FeatureMap(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), cls=torch.tensor([[9.0]]))  # one channel, 2 x 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gem", ((1 + 8 + 27 + 64) / 4) ** (1 / 3)),
        ("gem-learned", ((1 + 8 + 27 + 64) / 4) ** (1 / 3)),
        ("mac", 4.0),
        ("spoc", 2.5),
        ("cls", 9.0),
    ],
)
def test_poolings_by_hand(name: str, expected: float) -> None:
    assert create_pooling(name)(_MAP).item() == pytest.approx(expected, rel=1e-6)


def test_only_the_learned_exponent_is_a_parameter() -> None:
    assert list(create_pooling("gem").parameters()) == []
    (p,) = create_pooling("gem-learned").parameters()
    create_pooling("gem-learned")(_MAP)
    assert p.item() == 3.0


def test_gem_moves_from_mean_to_maximum() -> None:
    assert GeM(p=1.0)(_MAP).item() == pytest.approx(2.5)
    assert GeM(p=50.0)(_MAP).item() == pytest.approx(4.0, rel=0.05)


def test_rmac_regions_cover_the_map_in_rising_numbers() -> None:
    squares = RMAC(levels=3).regions(12, 12)
    by_side = {side: [s for s in squares if s[2] == side] for _, _, side in squares}
    assert {side: len(of) for side, of in by_side.items()} == {
        12: 1,
        8: 4,
        6: 9,
    }  # l x l squares of 2 * 12 / (l + 1)
    assert (0, 0, 8) in squares
    assert (4, 4, 8) in squares


def test_rmac_adds_squares_along_the_longer_side() -> None:
    squares = RMAC(levels=1).regions(10, 16)
    # 40 % overlap of 10-wide squares over a width of 16: two squares, 6 apart.
    assert squares == [(0, 0, 10), (0, 6, 10)]


def test_rmac_by_hand() -> None:
    maps = torch.zeros(1, 2, 2, 2)
    maps[0, 0, 0, 0] = 3.0
    maps[0, 1, 1, 1] = 4.0
    pooled = RMAC(levels=2)(FeatureMap(maps, None))
    # whole map twice (the global one and level 1): (0.6, 0.8) each; level 2: four 1 x 1 squares, two of them lit.
    torch.testing.assert_close(pooled, torch.tensor([[1.2 + 1.0, 1.6 + 1.0]]))


def test_a_missing_class_token_is_refused() -> None:
    with pytest.raises(UserError, match="no class token"):
        create_pooling("cls")(FeatureMap(torch.ones(1, 1, 2, 2), None))
