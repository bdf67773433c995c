"""A pool built block by block, by several ranks, and resumed."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.memory import pool_file
from insclr.memory.pool_file import build_pool_blocks, collect_pool, load_plan, save_plan
from insclr.neighbours.approximate import Plan, make_plan
from insclr.neighbours.pool import build_pool


def unit_rows(seed: int, images: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(images, 6, generator=generator), dim=-1)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_build_the_pool_together(tmp_path: Path, ranks: int) -> None:
    features = unit_rows(1, 50)
    for rank in range(ranks):
        build_pool_blocks(features, 5, tmp_path, rank=rank, ranks=ranks, block_rows=8, dtype=torch.float32)
    together = collect_pool(features, 5, tmp_path, block_rows=8)
    whole = build_pool(features, 5)
    assert torch.equal(together.ids, whole.ids)
    assert torch.allclose(together.similarities, whole.similarities, atol=1e-6)


def test_a_stopped_build_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = unit_rows(2, 50)
    computed: list[int] = []

    def stop_after(blocks: int) -> None:
        def nearest(features: Tensor, rows: Tensor, *args: int, **options: int) -> tuple[Tensor, Tensor]:
            if len(computed) == blocks:
                raise KeyboardInterrupt
            computed.append(int(rows[0]))
            return real(features, rows, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(pool_file, "nearest_rows", nearest)

    real = pool_file.nearest_rows  # type: ignore[attr-defined]
    stop_after(3)
    with pytest.raises(KeyboardInterrupt):
        build_pool_blocks(features, 5, tmp_path, block_rows=10)
    with pytest.raises(UserError, match="Start the same command again"):
        collect_pool(features, 5, tmp_path, block_rows=10)
    stop_after(99)
    build_pool_blocks(features, 5, tmp_path, block_rows=10)
    assert computed == [0, 10, 20, 30, 40]
    assert torch.equal(collect_pool(features, 5, tmp_path, block_rows=10).ids, build_pool(features, 5).ids)


def test_blocks_of_other_features_are_not_taken_over(tmp_path: Path) -> None:
    build_pool_blocks(unit_rows(3, 20), 5, tmp_path)
    features = unit_rows(4, 20)
    build_pool_blocks(features, 5, tmp_path)
    assert torch.equal(collect_pool(features, 5, tmp_path).ids, build_pool(features, 5).ids)


def clustered() -> tuple[Tensor, Plan]:
    """Sixty things of fifty pictures, and how to search them: a collection that is worth a plan."""
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(60, 1, 16, generator=generator)
    pictures = (centres + 0.5 * torch.randn(60, 50, 16, generator=generator)).flatten(0, 1)
    features = torch.nn.functional.normalize(pictures, dim=1)
    plan = make_plan(features, 20)
    assert plan is not None
    return features, plan


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_build_an_approximate_pool_together(tmp_path: Path, ranks: int) -> None:
    features, plan = clustered()
    for rank in range(ranks):
        build_pool_blocks(features, 20, tmp_path, plan=plan, rank=rank, ranks=ranks, block_rows=300)
    together = collect_pool(features, 20, tmp_path, plan=plan, block_rows=300)
    alone = build_pool(features, 20, approximate=True)
    assert torch.equal(together.ids, alone.ids)
    torch.testing.assert_close(together.similarities.float(), alone.similarities, atol=1e-3, rtol=0)
    assert together.recall == alone.recall
    assert 0.9 < together.recall < 1


def test_a_stopped_approximate_build_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, plan = clustered()
    real = pool_file.search  # type: ignore[attr-defined]
    searched: list[int] = []

    def search(features: Tensor, plan: Plan, first: int, last: int, **options: int):
        if len(searched) == 2:
            searched.append(-1)
            raise KeyboardInterrupt
        searched.append(first)
        return real(features, plan, first, last, **options)

    monkeypatch.setattr(pool_file, "search", search)
    with pytest.raises(KeyboardInterrupt):
        build_pool_blocks(features, 20, tmp_path, plan=plan, block_rows=750)
    build_pool_blocks(features, 20, tmp_path, plan=plan, block_rows=750)
    assert searched == [0, 750, -1, 1500, 2250]
    found = collect_pool(features, 20, tmp_path, plan=plan, block_rows=750)
    assert torch.equal(found.ids, build_pool(features, 20, approximate=True).ids)


def test_a_plan_comes_back_for_its_own_features_alone(tmp_path: Path) -> None:
    features, plan = clustered()
    save_plan(tmp_path / "plan.npz", plan, features, 20)
    made, found = load_plan(tmp_path / "plan.npz", features, 20)
    assert made
    assert found is not None
    assert (found.width, found.size) == (plan.width, 20)
    assert torch.equal(found.lists.rows, plan.lists.rows)
    assert load_plan(tmp_path / "plan.npz", features.flip(0), 20) == (False, None)
    assert load_plan(tmp_path / "plan.npz", features, 21) == (False, None)
    (tmp_path / "plan.npz").write_bytes((tmp_path / "plan.npz").read_bytes()[:500])
    assert load_plan(tmp_path / "plan.npz", features, 20) == (False, None)


def test_that_no_plan_is_worth_while_is_remembered(tmp_path: Path) -> None:
    features = unit_rows(0, 100)
    save_plan(tmp_path / "plan.npz", None, features, 5)
    assert load_plan(tmp_path / "plan.npz", features, 5) == (True, None)
