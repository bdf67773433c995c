"""Every number this project reports about a ranking, each metric once.

Ranks are 0-based positions of the positives in a ranking, in ascending order. Values are fractions;
results turn them into percent.
"""

from collections.abc import Hashable, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Ids, Scores

Ranks = NDArray[np.int64]


def ranks_of(wanted: Ids, ranking: Ids) -> Ranks:
    """The ranks at which the wanted ids stand in `ranking`; ids that are not in it are left out."""
    return np.flatnonzero(np.isin(ranking, wanted))


def without_junk(positives: Ranks, junk: Ranks) -> Ranks:
    """The positives' ranks after every junk image has been taken out of the ranking."""
    positives = np.sort(positives)
    return positives - np.searchsorted(np.sort(junk), positives)


def trapezoid_ap(ranks: Ranks, positives: int) -> float:
    """AP of Oxford, Paris (revisited or not) and INSTRE: trapezoids under the precision-recall curve."""
    found = np.arange(len(ranks))
    before = np.where(ranks == 0, 1.0, found / np.maximum(ranks, 1))
    after = (found + 1) / (ranks + 1)
    return float((before + after).sum() / (2 * positives))


def precision_at(ranks: Ranks, k: int) -> float:
    """P@k with k lowered to the 1-based rank of the last positive, as the revisited benchmarks do."""
    if len(ranks) == 0:
        return 0.0
    k = min(int(ranks.max()) + 1, k)
    return float((ranks < k).sum() / k)


def mean_precision(ranks: Ranks, positives: int) -> float:
    """Leave-one-out average precision: the mean of the precision at each positive."""
    return float(((np.arange(len(ranks)) + 1) / (ranks + 1)).sum() / positives)


def ap_at(predictions: Sequence[Hashable], positives: Set[Hashable], k: int = 100) -> float:
    """Rectangular AP@k of GLDv2: sum of P@i at each hit / min(positives, k).

    A duplicate keeps its rank but counts once.
    """
    total, seen = 0.0, set[Hashable]()
    for i, prediction in enumerate(predictions[:k], start=1):
        if prediction in positives and prediction not in seen:
            seen.add(prediction)
            total += len(seen) / i
    return total / min(len(positives), k)


def iou(one: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of two boxes."""
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    area = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - width * height
    return width * height / area if area > 0 else 0.0


def ranks_in_scores(positives: Scores, negatives: Scores) -> Ranks:
    """Ranks of positives with these scores among negatives, the latter sorted in ascending order.

    Ties count against the positives, so that a network which gives every image the same
    descriptor scores like the worst ranking, whatever the order of the files.
    """
    best_first = np.sort(positives)[::-1]
    ahead = len(negatives) - np.searchsorted(negatives, best_first, side="left")
    return ahead + np.arange(len(best_first))
