from pathlib import Path

import pytest
import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.mining import pool_file
from insclr.mining.pool import Pool, build_pool
from insclr.mining.pool_file import build_pool_blocks, collect_pool, load_pool, save_pool


def unit_rows(seed: int, images: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(images, 6, generator=generator), dim=-1)


def test_a_saved_pool_comes_back_the_same(tmp_path: Path) -> None:
    built = build_pool(unit_rows(0, 30), 7, dtype=torch.float16)
    save_pool(tmp_path / "pool-1.npz", Pool(built.ids, built.similarities, recall=0.97))
    loaded = load_pool(tmp_path / "pool-1.npz")
    assert torch.equal(loaded.ids, built.ids)
    assert torch.equal(loaded.similarities, built.similarities)
    assert loaded.similarities.dtype == torch.float16
    assert loaded.recall == 0.97
    assert [file.name for file in tmp_path.iterdir()] == ["pool-1.npz"]


@pytest.mark.parametrize("content", [b"", b"no zip at all", None])
def test_a_damaged_pool_says_what_to_do(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "pool.npz"
    if content is None:  # cut off in the middle
        save_pool(path, build_pool(unit_rows(0, 30), 7))
        content = path.read_bytes()[:500]
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"not a whole candidate pool.*Delete it"):
        load_pool(path)


def test_a_missing_pool_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no candidate pool at"):
        load_pool(tmp_path / "pool.npz")


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
    features, computed = unit_rows(2, 50), []

    def stop_after(blocks: int) -> None:
        def nearest(features: Tensor, rows: Tensor, *args: int, **options: int) -> tuple[Tensor, Tensor]:
            if len(computed) == blocks:
                raise KeyboardInterrupt
            computed.append(int(rows[0]))
            return real(features, rows, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(pool_file, "nearest_rows", nearest)

    real = pool_file.nearest_rows
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
