"""Groups of near-identical images: copies, other sizes, other compression, slight crops."""

import functools
import logging
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from insclr.data.decode import BadImage, decode
from insclr.progress import progress_bar
from insclr.retrieval.search import one_of_each, photo_of_part
from insclr.store import IndexedImage, Row, Store

_log = logging.getLogger(__name__)

SIMILARITY = 0.95  # cosine from which on two images are compared pixel by pixel
_AGREEMENT = 0.96  # correlation of the two images, both shrunk to a small square
_SIDE = 24
_NEAREST = 20


def duplicates(store: Store, similarity: float = SIMILARITY) -> list[list[Row]]:
    """Groups of two or more near-identical images, largest group first, each in the order of its paths.

    Descriptors only propose pairs; a pair counts when the files are equal or their small images agree.
    """
    rows = sorted(store.rows_by_path().values(), key=lambda row: row.id)
    place = {row.id: i for i, row in enumerate(rows)}
    small = functools.cache(lambda path: _shrink(store.info.root / path))  # each image is read once

    def agree(one: IndexedImage, other: IndexedImage) -> bool:
        if one.hash == other.hash:
            return True
        a, b = small(one.path), small(other.path)
        return a is not None and b is not None and float((a * b).sum()) >= _AGREEMENT

    by_hash: dict[str, int] = {}
    pairs = [(i, by_hash.setdefault(row.image.hash, i)) for i, row in enumerate(rows)]
    ids = store.ids()
    with progress_bar("looking for duplicates", len(ids)) as bar:
        for start in range(0, len(ids), 256):
            part = ids[start : start + 256]
            found = store.search(store.descriptors(part), _NEAREST)
            for i, near in zip(*np.nonzero(found.similarities >= similarity), strict=True):
                a, b = place.get(int(part[i])), place.get(int(found.ids[i, near]))
                if a is not None and b is not None and a < b and agree(rows[a].image, rows[b].image):
                    pairs.append((a, b))
            bar.advance(len(part))
    one, other = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(one)), (one, other)), shape=(len(rows), len(rows)))
    groups: dict[int, list[Row]] = defaultdict(list)
    for number, row in zip(connected_components(graph, directed=False)[1].tolist(), rows, strict=True):
        groups[number].append(row)
    ordered = [sorted(group, key=lambda row: row.image.path) for group in groups.values()]
    sets = []
    for group in ordered:  # parts of one photo are no copies of each other
        kept = one_of_each(range(len(group)), [photo_of_part(row.image.path) for row in group])
        if len(kept) > 1:
            sets.append([group[place] for place in kept])
    return sorted(sets, key=lambda group: (-len(group), group[0].image.path))


def _shrink(file: Path) -> NDArray[np.float32] | None:
    try:
        image = decode(file, longest=8 * _SIDE).resize((_SIDE, _SIDE))
    except BadImage as bad:
        _log.warning("%s cannot be compared: %s", file, bad.reason)
        return None
    values = np.asarray(image, dtype=np.float32)  # (side, side, 3)
    values = values - values.mean()
    return np.asarray(values / max(float(np.linalg.norm(values)), 1e-6), dtype=np.float32)
