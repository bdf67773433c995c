"""Regions: several descriptors an image, pooled from the one map that is computed anyway, and their search."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from insclr.arrays import Boxes, Descriptors, Ids, Scores
from insclr.errors import UserError
from insclr.model.backbones import FeatureMap
from insclr.model.network import DescriptorNetwork
from insclr.model.pooling import ClassToken, GeM
from insclr.retrieval.store.rows import MAX_REGIONS, Regions, Store
from insclr.retrieval.store.where import Condition

# Side of a square region, of the map's shorter side: for things at 15 to 40 % of a photo's side.
_SIDES = (0.2, 0.28, 0.36)
_LEAST_CELLS = 2

Square = tuple[int, int, int]  # top, left, side, in cells of the map


def map_regions(network: DescriptorNetwork, maps: Tensor, count: int = MAX_REGIONS) -> list[Regions]:
    """The `count` regions of every map (batch, channels, height, width) that differ most from each other.

    Squares of some sides are pooled and described like the whole; of those that say the same one is kept.
    """
    height, width = maps.shape[-2:]
    squares = region_squares(height, width)
    described = network.head(pool_squares(network, maps, squares)).float()  # (batch, squares, dim)
    whole = network.head(network.pool(FeatureMap(maps, None))).float()  # (batch, dim)
    chosen = most_different(whole, described, min(count, len(squares)))
    batch = torch.arange(len(maps), device=maps.device)[:, None]
    descriptors = described[batch, chosen].cpu().numpy()  # (batch, count, dim)
    cells = np.array(squares, dtype=np.float32).reshape(-1, 3)  # (squares, 3)
    corners = np.stack([cells[:, 1], cells[:, 0], cells[:, 1] + cells[:, 2], cells[:, 0] + cells[:, 2]], 1)
    boxes = corners / np.array([width, height, width, height], np.float32)
    return [
        Regions(boxes[places], np.asarray(vectors, np.float32))
        for places, vectors in zip(chosen.cpu().numpy(), descriptors, strict=True)
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


def pool_squares(network: DescriptorNetwork, maps: Tensor, squares: list[Square]) -> Tensor:
    """Pooled features (batch, squares, channels), each square as the network pools a whole map."""
    if isinstance(network.pooling, ClassToken):
        raise UserError(
            "A network that pools by its class token has no regions: choose a model with another pooling."
        )
    if not squares:
        return maps.new_zeros(len(maps), 0, maps.shape[1])
    if isinstance(network.pooling, GeM):
        pooled = _gem_squares(network.pooling, maps, squares)
    else:
        parts = [
            network.pooling(FeatureMap(maps[..., top : top + side, left : left + side], None))
            for top, left, side in squares
        ]
        pooled = torch.stack(parts, 1)
    return functional.normalize(pooled, dim=2) if network.normalise_pooled else pooled


def most_different(whole: Tensor, regions: Tensor, count: int) -> Tensor:
    """Places (batch, count) of regions, each the one farthest from the whole and from those before it.

    `whole` (batch, dim) and `regions` (batch, squares, dim) are unit rows.
    """
    near = torch.einsum("bd,bsd->bs", whole, regions)
    batch = torch.arange(len(regions), device=regions.device)
    chosen = []
    for _ in range(count):
        farthest = near.argmin(1)
        chosen.append(farthest)
        near = torch.maximum(near, torch.einsum("bd,bsd->bs", regions[batch, farthest], regions))
    return torch.stack(chosen, 1) if chosen else torch.zeros(len(regions), 0, dtype=torch.int64)


def _gem_squares(pooling: GeM, maps: Tensor, squares: list[Square]) -> Tensor:
    """GeM of squares: the power once, then the means of all squares of a side at once."""
    powered = maps.float().clamp(min=pooling.smallest).pow(pooling.p)
    means = {
        side: functional.avg_pool2d(powered, side, stride=1) for side in {side for _, _, side in squares}
    }
    return torch.stack([means[side][..., top, left] for top, left, side in squares], 1).pow(1.0 / pooling.p)


def search_best_region(
    store: Store, queries: Descriptors, top: int, where: Condition | None = None
) -> tuple[Ids, Scores, Boxes]:
    """The `top` nearest rows of every query by their best region or their whole image, best first, and its box.

    A row is there once. Ids (queries, top), -1 where there are fewer; similarities; boxes (queries, top, 4).
    """
    require_regions(store)
    whole = store.search(queries, top, where)
    # The first `top` rows by their best region are among the first MAX_REGIONS x top regions.
    parts = store.search_regions(queries, MAX_REGIONS * top, where)
    frame = np.broadcast_to(np.array([0, 0, 1, 1], np.float32), (*whole.ids.shape, 4))
    ids = np.concatenate([whole.ids, parts.ids], 1)
    similarities = np.concatenate([whole.similarities, parts.similarities], 1)
    boxes = np.concatenate([frame, parts.boxes], 1)
    best = np.full((len(queries), top), -1, dtype=np.int64)
    best_similarities = np.full((len(queries), top), -1.0, dtype=np.float32)
    best_boxes = np.zeros((len(queries), top, 4), dtype=np.float32)
    for i in range(len(queries)):
        order = np.argsort(-similarities[i], kind="stable")
        order = order[ids[i, order] >= 0]
        first = order[np.sort(np.unique(ids[i, order], return_index=True)[1])][:top]
        best[i, : len(first)] = ids[i, first]
        best_similarities[i, : len(first)] = similarities[i, first]
        best_boxes[i, : len(first)] = boxes[i, first]
    return best, best_similarities, best_boxes


def require_regions(store: Store) -> None:
    """UserError when the store was made without regions."""
    if not store.has_regions():
        raise UserError(
            f"the store {store.uri} has no regions: make them with `insclr index MODEL IMAGES --store {store.uri} "
            "--regions`, or search without --regions"
        )
