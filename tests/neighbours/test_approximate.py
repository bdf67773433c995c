"""The approximate pool: most neighbours found, the share told, all that is found true."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from insclr.memory.round_pool import round_pool
from insclr.neighbours.pool import ApproximateSearch, Pool, build_pool, make_plan
from insclr.ranks import Ranks


def things(seed: int, images: int, dim: int = 32, count: int = 150) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(count, dim, generator=generator)[
        torch.randint(count, (images,), generator=generator)
    ]
    return torch.nn.functional.normalize(centres + 0.6 * torch.randn(images, dim, generator=generator), dim=1)


def approximate_pool(features: Tensor, size: int, folder: Path) -> Pool:
    return round_pool(features, size, folder, Ranks(), torch.device("cpu"), approximate_from=0)


def true_recall(pool: Pool, exact: Pool) -> float:
    pairs = zip(pool.ids.numpy(), exact.ids.numpy(), strict=True)
    return float(np.mean([len(np.intersect1d(found, true)) / len(true) for found, true in pairs]))


@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_most_neighbours_are_found_and_the_share_is_reported(stored: torch.dtype, tmp_path: Path) -> None:
    features = things(0, 5000).to(stored)
    pool = approximate_pool(features, 30, tmp_path)
    recall = true_recall(pool, build_pool(features, 30))
    assert 0.93 < recall < 1  # a recall of 1 would mean that everything was searched
    assert pool.recall == pytest.approx(recall, abs=0.02)


def test_what_is_found_is_true(tmp_path: Path) -> None:
    features = things(1, 4000)
    pool = approximate_pool(features, 40, tmp_path)
    similarities = torch.einsum("nd,npd->np", features, features[pool.ids.long()])
    assert torch.allclose(pool.similarities, similarities, atol=5e-4)  # half precision
    assert (pool.similarities.diff(dim=1) <= 0).all()
    assert (pool.ids != torch.arange(4000)[:, None]).all()
    assert (pool.ids.sort(dim=1).values.diff(dim=1) > 0).all()  # nobody twice


def test_the_same_seed_gives_the_same_pool(tmp_path: Path) -> None:
    features = things(2, 3000)
    first, second = (approximate_pool(features, 30, tmp_path / name) for name in "ab")
    assert torch.equal(first.ids, second.ids)


def test_vectors_without_neighbourhoods_are_searched_exactly(tmp_path: Path) -> None:
    features = torch.nn.functional.normalize(
        torch.randn(3000, 64, generator=torch.Generator().manual_seed(0)), dim=1
    )
    pool = approximate_pool(features, 30, tmp_path)
    assert pool.recall == 1.0
    assert torch.equal(pool.ids, build_pool(features, 30).ids)


def test_rows_whose_lists_are_too_short_are_searched_exactly() -> None:
    features = things(3, 2000)
    plan = make_plan(features, 30)
    assert plan is not None
    few = replace(plan, probes=torch.tensor(2))  # lists of about eleven rows
    found = {
        int(row): ids
        for rows, _, all_ids in ApproximateSearch(features, few).search(0, 2000)
        for row, ids in zip(rows, all_ids, strict=True)
    }
    lengths = torch.bincount(plan.list_of)
    short = [row for row in found if lengths[plan.list_of[row]] + lengths.max() <= 30]
    assert short
    exact = build_pool(features, 30).ids
    assert all(torch.equal(found[row], exact[row].long()) for row in short)


def test_identical_images_are_neighbours_of_each_other(tmp_path: Path) -> None:
    features = torch.cat([things(5, 1900), things(6, 1).expand(100, -1)])
    pool = approximate_pool(features, 30, tmp_path)
    copies = pool.ids[1900:]
    assert (copies >= 1900).all()
    assert (copies != torch.arange(1900, 2000)[:, None]).all()
