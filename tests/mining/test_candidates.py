"""Which candidates are positive, negative or neither, by each variant."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from insclr.mining.candidates import Thresholds, label_candidates, measure_thresholds
from insclr.mining.overlap import InstanceSize, Overlap
from insclr.mining.own_views import combine_views, measure_own_views, random_pairs
from insclr.neighbours.pool import Pool, build_pool

# One image with six candidates, best first: what each variant makes of them can be read off.
_POOL = Pool(
    torch.tensor([[1, 2, 3, 4, 5, 6]], dtype=torch.int32), torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5, 0.4]])
)
_OVERLAP = Overlap(
    shared=torch.tensor([[0.9, 0.1, 0.9, 0.85, 0.95, 0.9]], dtype=torch.float16),
    mutual=torch.tensor([[True, True, True, False, True, True]]),
)
_THRESHOLDS = Thresholds(similarity=0.45, mined=0.8, k=1, doubtful_overlap=0.2, reach=1)


@pytest.mark.parametrize(
    ("variant", "changes", "expected"),
    [
        ("A", {"similarity": 0.85}, [1, 2]),  # the two nearest, whatever their similarity
        ("C", {"similarity": 0.85}, [1]),  # of them, what is similar enough
        ("D-anchor", {"mined": 0.6}, [1, 2, 3]),  # the most similar mutual neighbour
        ("D-anchor", {"mined": 0.75}, [1, 2]),  # which must be similar enough
        ("D", {}, [1, 2, 5]),  # the largest overlap: further away, but with the query set as witness
        ("D", {"k": 2}, [1, 2, 3, 5]),
        ("D", {"k": 9}, [1, 2, 3, 4, 5]),  # 6 has the overlap, but not the similarity
        ("D", {"mined": 0.92}, [1, 2, 5]),
        ("D", {"mined": 0.97}, [1, 2]),
    ],
)
def test_what_each_variant_takes_for_positives(
    variant: Any, changes: dict[str, Any], expected: list[int]
) -> None:
    labels = label_candidates(_POOL, _OVERLAP, replace(_THRESHOLDS, **changes), variant, neighbours=2)
    assert _POOL.ids[labels.positive].tolist() == expected


def test_doubtful_candidates_are_neither_positive_nor_negative() -> None:
    thresholds = replace(_THRESHOLDS, similarity=0.65, doubtful_overlap=0.92)
    labels = label_candidates(_POOL, _OVERLAP, thresholds, "D", neighbours=1)
    # 1 is the nearest; 3 mined; 2 ignored for its similarity, 5 for its overlap; 4 and 6 are negatives.
    assert labels.positive.tolist() == [[True, False, True, False, False, False]]
    assert labels.ignored.tolist() == [[False, True, False, False, True, False]]


def _unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_thresholds_are_measured_on_own_views_and_come_with_their_reason() -> None:
    plain = _unit(500, 16)
    seen = combine_views(plain, normalize(plain + 0.5 * _unit(2, 500, 16, seed=1), dim=2), voted=True)
    pool = build_pool(seen.deciding, 40)
    own = measure_own_views(seen, random_pairs(seen.deciding), pool.ids, 12)
    found, reasons = measure_thresholds("D", own, InstanceSize(12, reach=24))
    assert found.similarity == own.threshold
    assert found.mined == pytest.approx(0.9 * own.shared)
    assert (found.k, found.reach) == (6, 24)
    assert [reason.split(" = ")[0] for reason in reasons] == ["similarity", "reach", "mined", "k"]
    # With the anchor as the only witness, the same share of the way, in similarities.
    alone, _ = measure_thresholds("D-anchor", own, InstanceSize(12))
    assert alone.mined == pytest.approx(
        own.random_pair_similarity + 0.9 * (own.own_view_similarity - own.random_pair_similarity)
    )
