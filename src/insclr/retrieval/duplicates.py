"""Groups of near-identical images: copies, other sizes, other compression, slight crops."""

import logging
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from insclr.data.decode import BadImage, decode
from insclr.progress import progress_bar
from insclr.store import Row, Store

_log = logging.getLogger(__name__)

SIMILARITY = 0.95  # cosine from which on two images are compared pixel by pixel
_AGREEMENT = 0.96  # correlation of the two images, both shrunk to a small square
_SIDE = 24
_NEAREST = 20


def duplicates(store: Store, similarity: float = SIMILARITY) -> list[list[Row]]:
    """Groups of two or more near-identical images, largest group first, each in the order of its paths.

    Descriptors only propose pairs; a pair counts when the files are equal or their small images agree.
    """
    rows = {row.id: row for row in store.rows_by_path().values()}
    groups = Groups(rows)
    small = _SmallImages(store.info.root)
    by_hash: dict[str, int] = {}
    for row in rows.values():
        groups.join(row.id, by_hash.setdefault(row.image.hash, row.id))
    ids = store.ids()
    with progress_bar("looking for duplicates", len(ids)) as bar:
        for start in range(0, len(ids), 256):
            part = ids[start : start + 256]
            found = store.search(store.descriptors(part), _NEAREST)
            close = (found.similarities >= similarity) & (found.ids >= 0)
            for i, place in zip(*np.nonzero(close), strict=True):
                a, b = int(part[i]), int(found.ids[i, place])
                if (
                    a < b
                    and {a, b} <= rows.keys()
                    and not groups.joined(a, b)
                    and small.agree(rows[a], rows[b])
                ):
                    groups.join(a, b)
            bar.advance(len(part))
    sets = [sorted((rows[one] for one in group), key=lambda row: row.image.path) for group in groups.sets()]
    return sorted((group for group in sets if len(group) > 1), key=lambda g: (-len(g), g[0].image.path))


class Groups:
    """Disjoint sets of ids that can be joined (union-find)."""

    def __init__(self, ids: Iterable[int]) -> None:
        self._parent = {one: one for one in ids}

    def root(self, one: int) -> int:
        """The id that stands for the set of `one`."""
        while self._parent[one] != one:
            self._parent[one] = self._parent[self._parent[one]]
            one = self._parent[one]
        return one

    def joined(self, one: int, other: int) -> bool:
        """Whether both are in one set."""
        return self.root(one) == self.root(other)

    def join(self, one: int, other: int) -> int:
        """Make one set of two; gives the id that stands for it."""
        self._parent[self.root(other)] = self.root(one)
        return self.root(one)

    def sets(self) -> list[list[int]]:
        """All sets, members ascending."""
        members: dict[int, list[int]] = defaultdict(list)
        for one in sorted(self._parent):
            members[self.root(one)].append(one)
        return list(members.values())


class _SmallImages:
    """Images shrunk to a few pixels, read once each."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[int, NDArray[np.float32] | None] = {}

    def agree(self, one: Row, other: Row) -> bool:
        a, b = self._small(one), self._small(other)
        if a is None or b is None:
            return False
        return float((a * b).sum()) >= _AGREEMENT

    def _small(self, row: Row) -> NDArray[np.float32] | None:
        if row.id not in self._read:
            self._read[row.id] = self._shrink(self._root / row.image.path)
        return self._read[row.id]

    @staticmethod
    def _shrink(file: Path) -> NDArray[np.float32] | None:
        try:
            image = decode(file, longest=8 * _SIDE).resize((_SIDE, _SIDE))
        except BadImage as bad:
            _log.warning("%s cannot be compared: %s", file, bad.reason)
            return None
        values = np.asarray(image, dtype=np.float32)  # (side, side, 3)
        values = values - values.mean()
        return np.asarray(values / max(float(np.linalg.norm(values)), 1e-6), dtype=np.float32)
