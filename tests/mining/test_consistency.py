"""Whether mined pairs bear each other out."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from insclr.mining import candidates
from insclr.mining.candidates import Consistency, label_candidates, measure_consistency, measure_thresholds
from insclr.mining.overlap import InstanceSize, neighbour_overlap
from insclr.mining.own_views import combine_views, measure_own_views, random_pairs
from insclr.neighbours.pool import Pool, build_pool

_SIZE = InstanceSize(core=6)


def _measured(plain: Tensor, views: Tensor) -> Consistency | None:
    seen = combine_views(plain, views, voted=True)
    pool = build_pool(seen.deciding, 40)
    own = measure_own_views(seen, random_pairs(seen.deciding), pool.ids, _SIZE.core)
    overlap = neighbour_overlap(pool.ids, _SIZE.core)
    labels = label_candidates(pool, overlap, measure_thresholds("D", own, _SIZE)[0], "D", 3)
    return measure_consistency(
        lambda ids: views[:, ids], pool, labels.positive, _SIZE, variant="D", neighbours=3
    )


def _views(images: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """A plain view and four augmented ones of each image, every one moved at random."""
    moved = images + noise * torch.randn(5, *images.shape) / images.shape[1] ** 0.5
    moved = functional.normalize(moved, dim=2)
    return moved[0], moved[1:]


def _instances(count: int = 40, each: int = 7, dim: int = 32, spread: float = 0.4) -> Tensor:
    centres = functional.normalize(torch.randn(count, 1, dim), dim=2)
    return functional.normalize(
        (centres + spread * torch.randn(count, each, dim) / dim**0.5).flatten(0, 1), dim=1
    )


def test_pairs_of_well_separated_instances_are_trusted() -> None:
    found = _measured(*_views(_instances(), noise=0.4))
    assert found is not None
    assert found.is_enough
    assert found.agreement > 0.5


def test_pairs_of_overlapping_poses_are_untrusted() -> None:
    """Every image has neighbours, as on a sheet of poses, and no two of them form a group."""
    place = torch.rand(320, 3)
    waves = torch.randn(3, 16) * 2.0
    sheet = functional.normalize(torch.cat([(place @ waves).sin(), (place @ waves).cos()], dim=1), dim=1)
    found = _measured(*_views(sheet, noise=0.6))
    assert found is not None
    assert not found.is_enough


def test_transitivity_by_hand() -> None:
    # 0 and 1 and 2 match each other; 3 matches 0 and 4, which do not match.
    ids = torch.tensor([[1, 2], [0, 2], [0, 1], [0, 4], [3, 0]], dtype=torch.int32)
    positive = torch.tensor([[True, True], [True, True], [True, True], [True, True], [True, False]])
    pool = Pool(ids, torch.ones(5, 2))
    # Pairs of positives: (1,2) of 0, (0,2) of 1, (0,1) of 2: closed; (0,4) of 3: open; 4 has a single positive.
    assert candidates._transitivity(pool, positive) == 3 / 4


def test_few_pairs_are_not_tested() -> None:
    torch.manual_seed(0)
    plain, views = _views(_instances(), 0.3)
    pool = build_pool(plain, 40)
    few = torch.zeros(pool.ids.shape, dtype=torch.bool)
    few[: len(plain) // 4 - 1, 0] = True
    measured = partial(
        measure_consistency, lambda ids: views[:, ids], pool, size=_SIZE, variant="D", neighbours=3
    )
    assert measured(few) is None
    few[len(plain) // 4 - 1 :, 0] = True
    assert measured(few) is not None


def test_consistency_needs_four_views_and_a_pair() -> None:
    plain, views = _views(_instances(), noise=0.4)
    pool = build_pool(plain, 10)
    every = torch.ones(len(plain), 10, dtype=torch.bool)
    assert (
        measure_consistency(lambda ids: views[:3, ids], pool, every, _SIZE, variant="D", neighbours=3) is None
    )
    assert (
        measure_consistency(lambda ids: views[:, ids], pool, ~every, _SIZE, variant="D", neighbours=3) is None
    )


def test_a_large_collection_is_judged_by_whole_neighbourhoods(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, views = _views(_instances(count=150), noise=0.4)
    whole = _measured(plain, views)
    monkeypatch.setattr(candidates, "MAX_IMAGES_MINED_AGAIN", 600)
    part = _measured(plain, views)
    assert whole is not None
    assert part is not None
    assert part.is_enough == whole.is_enough
    assert abs(part.agreement - whole.agreement) < 0.2


def test_a_small_collection_must_be_more_consistent() -> None:
    # 0.25 of 300 images is less than 0.3; of 5,000 images 0.3 x 0.1 ^ 0.35 = 0.134 is enough.
    assert not Consistency(0.5, 0.5, images=300).is_enough
    assert Consistency(0.5, 0.5, images=5000).is_enough
    assert not Consistency(0.25, 0.5, images=5000).is_enough
