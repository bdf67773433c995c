"""Which results of a search show one and the same photo: copies, other sizes, other compression."""

from collections.abc import Sequence

from insclr.arrays import Descriptors

# Cosine from which on two results count as one photo. A copy made smaller or compressed anew stays above it; `insclr
# duplicates`, which has the time to compare pixels, proposes pairs from 0.95 on.
SAME_PHOTO = 0.99


def group_copies(hashes: Sequence[str], descriptors: Descriptors) -> list[list[int]]:
    """Places of results grouped by photo: each group's first place stands for it, in the order of the results.

    A result joins the first group whose first member has the same content hash or nearly the same descriptor.
    """
    alike = descriptors @ descriptors.T >= SAME_PHOTO  # (results, results)
    groups: dict[int, list[int]] = {}
    for place, content in enumerate(hashes):
        home = next((one for one in groups if alike[one, place] or hashes[one] == content), place)
        groups.setdefault(home, []).append(place)
    return list(groups.values())
