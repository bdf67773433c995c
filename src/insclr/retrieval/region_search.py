"""Search by the best part of every image."""

import numpy as np

from insclr.arrays import MAX_REGIONS, Boxes, Descriptors, Ids, Scores
from insclr.errors import UserError
from insclr.store import Condition, Store


def search_best_region(
    store: Store, queries: Descriptors, top: int, where: Condition | None = None
) -> tuple[Ids, Scores, Boxes]:
    """The `top` nearest rows of every query by their best region or their whole image, best first, and its box.

    A row is there once. Ids (queries, top), -1 where there are fewer; similarities; boxes (queries, top, 4).
    """
    if not store.has_regions():
        raise UserError(
            f"the store {store.uri} has no regions: make them with `insclr index MODEL IMAGES --store {store.uri} "
            "--regions`, or search without --regions"
        )
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
