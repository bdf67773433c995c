"""Which results of a search show one and the same photo: copies, other sizes, other compression."""

from collections.abc import Sequence

import numpy as np

from insclr.arrays import Descriptors

# Cosine from which on two results count as one photo. A copy made smaller or compressed anew stays above it; `insclr
# duplicates`, which has the time to compare pixels, proposes pairs from 0.95 on.
SAME_PHOTO = 0.99


def group_copies(hashes: Sequence[str], descriptors: Descriptors) -> list[list[int]]:
    """Places of results grouped by photo: each group's first place stands for it, in the order of the results.

    A result joins the first group whose first member has the same content hash or nearly the same descriptor.
    """
    contents = np.unique(np.array(hashes), return_inverse=True)[1]  # (results,) equal where the hash is
    alike = (descriptors @ descriptors.T >= SAME_PHOTO) | (
        contents[:, None] == contents
    )  # (results, results)
    left = np.ones(len(hashes), dtype=bool)
    groups = []
    for place in range(len(hashes)):
        if left[place]:
            left[place] = False
            copies = np.flatnonzero(alike[place] & left)
            left[copies] = False
            groups.append([place, *copies.tolist()])
    return groups
