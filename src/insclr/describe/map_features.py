"""Descriptors of parts of an image, from the map of any engine: pooled as the network pools, then its last layer.

With numpy: a search from the shell does not load torch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import MAX_REGIONS, Descriptors, Ids, Regions, no_regions
from insclr.engine.opened import OpenedModel
from insclr.errors import UserError

Maps = NDArray[np.float32]  # (batch, channels, height, width)
Square = tuple[int, int, int]  # top, left, side, in cells of the map

_SMALLEST = 1e-6
# Side of a square region, of the map's shorter side: for things at 15 to 40 % of a photo's side.
_SIDES = (0.2, 0.28, 0.36)
_LEAST_CELLS = 2


@dataclass(frozen=True)
class MapPooling:
    """How a network makes a descriptor of a part of its map."""

    p: float  # of the generalised mean: 1 is the average, infinity the maximum
    unit: bool  # pooled features are brought to unit length before the head
    head: Callable[[NDArray[np.float32]], Descriptors]  # (rows, channels) to unit rows (rows, dim)

    def squares(self, maps: Maps, squares: list[Square]) -> Descriptors:
        """Unit descriptors (batch, squares, dim) of squares of the maps."""
        if math.isinf(self.p):
            parts = [
                maps[:, :, top : top + side, left : left + side].max((2, 3)) for top, left, side in squares
            ]
            pooled = np.stack(parts, 1)
        else:
            sums = _sum_areas(self._power(maps))  # (batch, channels, height + 1, width + 1)
            top, left, side = np.array(squares).T
            whole = (
                sums[:, :, top + side, left + side]
                - sums[:, :, top, left + side]
                - sums[:, :, top + side, left]
                + sums[:, :, top, left]
            )  # (batch, channels, squares)
            pooled = self._root(whole / side**2).transpose(0, 2, 1)
        return self.describe(pooled)

    def whole(self, maps: Maps) -> Descriptors:
        """Unit descriptors (batch, dim) of whole maps."""
        if math.isinf(self.p):
            return self.describe(maps.max((2, 3)))
        return self.describe(self._root(self._power(maps).mean((2, 3))))

    def _power(self, maps: NDArray[np.floating]) -> NDArray[np.floating]:
        """What is averaged. An average alone (p = 1) keeps the negative features of transformers and ConvNeXt."""
        return maps if self.p == 1 else np.maximum(maps, _SMALLEST) ** self.p

    def _root(self, means: NDArray[np.floating]) -> NDArray[np.floating]:
        return means if self.p == 1 else np.maximum(means, _SMALLEST**self.p) ** (1 / self.p)

    def describe(self, pooled: NDArray[np.floating]) -> Descriptors:
        """Unit descriptors (..., dim) of pooled features (..., channels)."""
        rows = np.ascontiguousarray(pooled.reshape(-1, pooled.shape[-1]), dtype=np.float32)
        if self.unit:
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        found = np.asarray(self.head(rows), np.float32)
        return found.reshape(*pooled.shape[:-1], found.shape[-1])


def _sum_areas(maps: NDArray[np.floating]) -> NDArray[np.float64]:
    """Sums over all cells above and left of each: any square's sum is four look-ups."""
    sums = np.zeros((*maps.shape[:2], maps.shape[2] + 1, maps.shape[3] + 1))
    sums[:, :, 1:, 1:] = maps.astype(np.float64).cumsum(2).cumsum(3)
    return sums


def map_pooling(model: OpenedModel) -> MapPooling:
    """How the network of this model does it; UserError for one that does not pool its map."""
    network = model.recipe.network
    if network.pooling == "cls":
        raise UserError(
            "A network that pools by its class token has no regions: train it with --set network.pooling=spoc."
        )
    power = {"spoc": 1.0, "mac": math.inf}.get(network.pooling, network.gem_p)
    return MapPooling(power, network.normalise_pooled or not network.dim, model.head)


def map_regions(maps: Maps, pooling: MapPooling) -> list[Regions]:
    """The MAX_REGIONS regions of every map (batch, channels, height, width) that differ most from each other.

    Squares of some sides are pooled and described like the whole; of those that say the same one is kept.
    """
    height, width = maps.shape[-2:]
    squares = region_squares(height, width)
    if not squares:
        dim = pooling.describe(maps[:1, :, 0, 0]).shape[-1]
        return [no_regions(dim)] * len(maps)
    described = pooling.squares(maps, squares)  # (batch, squares, dim)
    whole = pooling.whole(maps)  # (batch, dim)
    chosen = most_different(whole, described, min(MAX_REGIONS, len(squares)))
    corners = np.array([(left, top, left + side, top + side) for top, left, side in squares], np.float32)
    boxes = corners / np.array([width, height, width, height], np.float32)
    return [
        Regions(boxes[places], vectors[places]) for places, vectors in zip(chosen, described, strict=True)
    ]


def region_squares(height: int, width: int) -> list[Square]:
    """Squares of some sides, half a side apart, within the map; the whole map is no region."""
    shorter = min(height, width)
    sides = sorted({max(_LEAST_CELLS, round(share * shorter)) for share in _SIDES})
    return [
        (top, left, side)
        for side in sides
        if side <= shorter and side * side < height * width
        for top in _starts(height, side)
        for left in _starts(width, side)
    ]


def _starts(length: int, side: int) -> list[int]:
    """Where squares begin along a side of the map: the last one ends with it."""
    return sorted({*range(0, length - side + 1, side // 2), length - side})


def most_different(whole: Descriptors, regions: Descriptors, count: int) -> Ids:
    """Places (batch, count) of regions, each the one farthest from the whole and from those before it.

    `whole` (batch, dim) and `regions` (batch, squares, dim) are unit rows.
    """
    near = np.einsum("bd,bsd->bs", whole, regions)
    batch, chosen = np.arange(len(regions)), []
    for _ in range(count):
        farthest = near.argmin(1)
        chosen.append(farthest)
        near = np.maximum(near, np.einsum("bd,bsd->bs", regions[batch, farthest], regions))
    return np.stack(chosen, 1)
