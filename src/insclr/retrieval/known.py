"""What people know counts in a search: images of the same instance, images of another, and outlined ones."""

from collections.abc import Sequence, Set
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Descriptors
from insclr.retrieval.verification import Results
from insclr.store import Store

# How much of what is not the instance is taken from a query. Chosen using labels of products60 and monuments24,
# confirmed on smvs_dvd100 (docs/research/results-search.md).
_UNLIKE = 0.3


class Known(Protocol):
    """What people know about images, by the hashes of their content."""

    def relation(self, queries: Set[str], image: str) -> int:
        """1: the image shows the instance of a query; -1: another one; 0: not known."""


def shift_away(queries: Descriptors, others: Sequence[Descriptors]) -> Descriptors:
    """The queries (Q, dim) less a share of the mean of `others`, each (1, dim): what is like these is found later."""
    if not others:
        return queries
    shifted = queries - _UNLIKE * np.concatenate(others).mean(0)
    lengths = np.linalg.norm(shifted, axis=1, keepdims=True)
    return np.asarray(shifted / np.maximum(lengths, 1e-6), dtype=np.float32)


def find_unlike(
    store: Store, found: Results, others: Sequence[Descriptors], least: float
) -> NDArray[np.bool_]:
    """Which results are images that the instance is not, or their copies: at least so similar."""
    if not others or not len(found.ids):
        return np.zeros(len(found.ids), dtype=bool)
    return np.asarray((store.descriptors(found.ids) @ np.concatenate(others).T).max(1) >= least)


def put_first(
    store: Store, queries: Descriptors, found: Results, own: Sequence[int], *, only_found: bool
) -> Results:
    """The results with the images that queries are parts of in front, which may look unlike their part."""
    own = [one for one in dict.fromkeys(own) if not only_found or one in found.ids]
    if not own:
        return found
    similarities = (store.descriptors(own) @ queries.mean(0)).astype(np.float32)
    rest = ~np.isin(found.ids, own)
    return Results(
        np.concatenate([np.array(own, dtype=np.int64), found.ids[rest]]),
        np.concatenate([similarities, found.similarities[rest]]),
    )
