"""Search a store by descriptors that a test makes up."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from insclr.options import SearchOptions
from insclr.retrieval.query import Query
from insclr.retrieval.search import Match, search
from insclr.store import Store


class _VectorDescriber:
    """Takes descriptors for images."""

    longest = 0

    def images(self, images: Sequence[Any], *_: object, **__: object) -> np.ndarray:
        return np.stack(images)


def search_vectors(
    store: Store,
    vectors: np.ndarray,
    options: SearchOptions = SearchOptions(),
    *,
    hashes: Sequence[str] = (),
) -> list[Match]:
    """The matches of a query set of these descriptors; `hashes` are those of the first queries' files."""
    names = [*hashes, *[""] * (len(vectors) - len(hashes))]
    queries = [Query(lambda _, one=one: (one, None), name) for one, name in zip(vectors, names, strict=True)]  # type: ignore[misc]
    return search(store, _VectorDescriber(), queries, options)  # type: ignore[arg-type]
