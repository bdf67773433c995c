from dataclasses import replace

import pytest
import torch

from insclr.mining.criteria import Criteria
from insclr.mining.overlap import Overlap
from insclr.mining.verdicts import judge
from insclr.neighbours.pool import Pool

# One image with six candidates, best first: what each method makes of them can be read off.
_POOL = Pool(
    torch.tensor([[1, 2, 3, 4, 5, 6]], dtype=torch.int32), torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5, 0.4]])
)
_OVERLAP = Overlap(
    shared=torch.tensor([[0.9, 0.1, 0.9, 0.85, 0.95, 0.9]], dtype=torch.float16),
    mutual=torch.tensor([[True, True, True, False, True, True]]),
    k=5,
)
_CRITERIA = Criteria(
    method="D", strategy="plain", similarity="overlap", batch_threshold=0.45, sparsity=None, aggregate="mean",
    choose="topk", k=1, memory_threshold=0.6, floor=0.8, repeats=1, random_negatives=10, pool_negatives=False,
    ignore_above=0.2, ignore_nearest=1, margin=0.4, normalise="mean",
)  # fmt: skip


def _positives(method: str, **changes: object) -> list[int]:
    criteria = replace(_CRITERIA, method=method, **changes)  # type: ignore[arg-type]
    verdicts = judge(_POOL, _OVERLAP, criteria, neighbours=2)
    return _POOL.ids[verdicts.positive].tolist()


@pytest.mark.parametrize(
    ("method", "changes", "expected"),
    [
        ("A", {"batch_threshold": 0.85}, [1, 2]),  # the two nearest, whatever their similarity
        ("C", {"batch_threshold": 0.85}, [1]),  # of them, what is above T_b
        ("D-anchor", {"floor": 0.6}, [1, 2, 3]),  # the most similar mutual neighbour
        ("D-anchor", {"floor": 0.75}, [1, 2]),  # which must be as similar as the floor
        ("D", {}, [1, 2, 5]),  # the largest overlap: further away, but with the query set as witness
        ("D", {"k": 2}, [1, 2, 3, 5]),
        ("D", {"k": 9}, [1, 2, 3, 4, 5]),  # 6 has the overlap, but is not as similar as an own view
        ("D", {"floor": 0.92}, [1, 2, 5]),
        ("D", {"floor": 0.97}, [1, 2]),
    ],
)
def test_who_vouches_for_whom(method: str, changes: dict[str, object], expected: list[int]) -> None:
    assert _positives(method, **changes) == expected


def test_doubtful_candidates_are_neither_positive_nor_negative() -> None:
    verdicts = judge(
        _POOL, _OVERLAP, replace(_CRITERIA, batch_threshold=0.65, ignore_above=0.92), neighbours=1
    )
    # 1 positive; 3 mined; 2 similar enough; 5 by its overlap; 4 and 6 are negatives.
    assert verdicts.positive.tolist() == [[True, False, True, False, False, False]]
    assert verdicts.ignored.tolist() == [[False, True, False, False, True, False]]
    assert verdicts.per_image() == 2
