"""The paper's claim on vectors small enough to see through: query sets mine more precisely than anchors."""

from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor

from insclr.mining.expand import (
    ExpandSettings,
    anchor_only,
    eligible_candidates,
    expand,
    query_set,
    select_in_batch,
    tuple_similarities,
)
from insclr.neighbours.pool import build_pool

NEIGHBOURS = 3


@dataclass
class Toy:
    """Images of things seen from changing sides, on backgrounds that several things share."""

    features: Tensor  # (N, D)
    thing: Tensor  # (N,)


def toy_collection(seed: int, things: int = 30, views: int = 14, single: int = 150, dim: int = 48) -> Toy:
    """A thing is a curve: its view turns from one direction to another. What confuses is the background.

    `single` images show a thing of which there is no second picture, on the same backgrounds.
    """
    generator = torch.Generator().manual_seed(seed)

    def directions(count: int) -> Tensor:
        return torch.nn.functional.normalize(torch.randn(count, dim, generator=generator), dim=1)

    side = torch.linspace(0, 1, views).repeat(things)[:, None]
    thing = torch.arange(things).repeat_interleave(views)
    curve = torch.cos(side) * directions(things)[thing] + torch.sin(side) * directions(things)[thing]
    content = torch.cat([torch.nn.functional.normalize(curve, dim=1), directions(single)])
    backgrounds = directions(25)[torch.randint(25, (len(content),), generator=generator)]
    features = content + 0.8 * backgrounds + 0.2 * directions(len(content))
    labels = torch.cat([thing, things + torch.arange(single)])
    return Toy(torch.nn.functional.normalize(features, dim=1), labels)


class Mined:
    """Tuples of all images of a toy collection, with what A, D-anchor and D call positives."""

    def __init__(self, toy: Toy, choose: Literal["topk", "threshold"]) -> None:
        pool = build_pool(toy.features, 40)
        self.thing = toy.thing
        self.anchors = torch.arange(len(toy.features))
        tuple_ids = torch.cat([self.anchors[:, None], pool.ids[:, :NEIGHBOURS].long()], 1)
        tuples = toy.features[tuple_ids]  # (N, 1 + N_b, D)
        in_query = query_set(select_in_batch("plain", tuple_similarities(tuples), 0.65))

        def positives(members: Tensor) -> Tensor:
            return expand(
                tuples,
                members,
                toy.features[pool.ids.long()],
                eligible_candidates(pool.ids, tuple_ids),
                ExpandSettings(choose=choose, k=5, threshold=0.6, repeats=2),
            ).positives

        self.by_anchor, self.by_set = positives(anchor_only(in_query)), positives(in_query)
        self.anchor_precision = self.precision(self.by_anchor, pool.ids)
        self.set_precision = self.precision(self.by_set, pool.ids)
        self.nearest_precision = self.precision(torch.ones_like(tuple_ids[:, 1:]).bool(), tuple_ids[:, 1:])

    def precision(self, chosen: Tensor, ids: Tensor) -> float:
        """The share of the chosen (anchor, image) pairs that show the same thing."""
        right = self.thing[ids.long()] == self.thing[self.anchors][:, None]
        return float((right & chosen).sum() / chosen.sum())


@pytest.mark.parametrize("seed", range(5))
def test_query_sets_mine_more_precisely_than_anchors_and_nearest_neighbours(seed: int) -> None:
    mined = Mined(toy_collection(seed), "threshold")
    assert mined.set_precision > mined.anchor_precision + 0.03
    assert mined.anchor_precision > mined.nearest_precision
    assert mined.by_set.sum() > len(mined.anchors)  # and not by mining next to nothing


@pytest.mark.parametrize("seed", range(5))
def test_the_same_number_of_positives_is_more_precise_from_query_sets(seed: int) -> None:
    mined = Mined(toy_collection(seed), "topk")
    assert mined.by_set.sum() == mined.by_anchor.sum()
    assert mined.set_precision > mined.anchor_precision + 0.02
