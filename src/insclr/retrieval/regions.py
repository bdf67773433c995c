"""Regions: several descriptors an image, pooled from the one map that is computed anyway, and their search."""

import numpy as np

from insclr.arrays import Boxes, Descriptors, Ids, Scores
from insclr.describe.map_pooling import MapPooling, Maps, Square
from insclr.errors import UserError
from insclr.store.regions import no_regions
from insclr.store.rows import MAX_REGIONS, Regions, Store
from insclr.store.where import Condition

# Side of a square region, of the map's shorter side: for things at 15 to 40 % of a photo's side.
_SIDES = (0.2, 0.28, 0.36)
_LEAST_CELLS = 2


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
