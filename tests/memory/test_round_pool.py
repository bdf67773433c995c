"""A pool built block by block, by several ranks, and resumed."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers.unit_rows import unit_rows
from insclr.errors import UserError
from insclr.memory import round_pool
from insclr.memory.round_pool import PoolBlocks, find_plan
from insclr.neighbours.pool import ApproximateSearch, Plan, build_pool, make_plan
from insclr.ranks import Ranks


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_build_the_pool_together(tmp_path: Path, ranks: int) -> None:
    features = unit_rows(1, 50, 6)
    blocks = PoolBlocks(features, 5, tmp_path, block_rows=8)
    for rank in range(ranks):
        blocks.build(Ranks(rank=rank, world=ranks), torch.float32)
    together = blocks.collect()
    whole = build_pool(features, 5)
    assert torch.equal(together.ids, whole.ids)
    assert torch.allclose(together.similarities, whole.similarities, atol=1e-6)


def test_a_stopped_build_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = unit_rows(2, 50, 6)
    blocks = PoolBlocks(features, 5, tmp_path, block_rows=10)
    computed: list[int] = []

    def stop_after(blocks: int) -> None:
        def nearest(features: Tensor, rows: Tensor, *args: int, **options: int) -> tuple[Tensor, Tensor]:
            if len(computed) == blocks:
                raise KeyboardInterrupt
            computed.append(int(rows[0]))
            return real(features, rows, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(round_pool, "nearest_rows", nearest)

    real = round_pool.nearest_rows  # type: ignore[attr-defined]
    stop_after(3)
    with pytest.raises(KeyboardInterrupt):
        blocks.build(Ranks())
    with pytest.raises(UserError, match="Start the same command again"):
        blocks.collect()
    stop_after(99)
    blocks.build(Ranks())
    assert computed == [0, 10, 20, 30, 40]
    assert torch.equal(blocks.collect().ids, build_pool(features, 5).ids)


def test_blocks_of_other_features_are_not_taken_over(tmp_path: Path) -> None:
    PoolBlocks(unit_rows(3, 20, 6), 5, tmp_path).build(Ranks())
    features = unit_rows(4, 20, 6)
    blocks = PoolBlocks(features, 5, tmp_path)
    blocks.build(Ranks())
    assert torch.equal(blocks.collect().ids, build_pool(features, 5).ids)


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
    blocks = PoolBlocks(features, 20, tmp_path, plan, block_rows=300)
    for rank in range(ranks):
        blocks.build(Ranks(rank=rank, world=ranks))
    together = blocks.collect()
    alone = round_pool.round_pool(
        features, 20, tmp_path / "alone", Ranks(), torch.device("cpu"), approximate_from=0
    )
    assert torch.equal(together.ids, alone.ids)
    torch.testing.assert_close(together.similarities.float(), alone.similarities, atol=1e-3, rtol=0)
    assert together.recall == alone.recall
    assert 0.9 < together.recall < 1


def test_a_stopped_approximate_build_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, plan = clustered()
    real = ApproximateSearch.search
    searched: list[int] = []

    def search(self: ApproximateSearch, first: int, last: int):
        if len(searched) == 2:
            searched.append(-1)
            raise KeyboardInterrupt
        searched.append(first)
        return real(self, first, last)

    monkeypatch.setattr(ApproximateSearch, "search", search)
    blocks = PoolBlocks(features, 20, tmp_path, plan, block_rows=750)
    with pytest.raises(KeyboardInterrupt):
        blocks.build(Ranks())
    blocks.build(Ranks())
    assert searched == [0, 750, -1, 1500, 2250]
    alone = round_pool.round_pool(
        features, 20, tmp_path / "alone", Ranks(), torch.device("cpu"), approximate_from=0
    )
    assert torch.equal(blocks.collect().ids, alone.ids)


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of every collection that a plan is made for."""
    made: list[int] = []

    def counted(features: Tensor, size: int) -> Plan | None:
        made.append(len(features))
        return make_plan(features, size)

    monkeypatch.setattr(round_pool, "make_plan", counted)
    return made


def test_a_plan_comes_back_for_its_own_features_alone(tmp_path: Path, searched: list[int]) -> None:
    features, plan = clustered()
    file = tmp_path / "plan.safetensors"
    for _ in range(2):
        found = find_plan(features, 20, file)
        assert found is not None
        assert torch.equal(found.probes, plan.probes)
        assert torch.equal(found.list_of, plan.list_of)
    assert len(searched) == 1
    find_plan(features.flip(0), 20, file)
    find_plan(features.flip(0), 21, file)
    assert len(searched) == 3
    file.write_bytes(file.read_bytes()[:500])
    find_plan(features.flip(0), 21, file)
    assert len(searched) == 4


def test_that_no_plan_is_worth_while_is_kept(tmp_path: Path, searched: list[int]) -> None:
    for _ in range(2):
        assert find_plan(unit_rows(0, 100, 6), 5, tmp_path / "plan.safetensors") is None
    assert len(searched) == 1
