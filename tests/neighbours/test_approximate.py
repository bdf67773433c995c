"""The approximate pool: most neighbours found, the share told, all that is found true."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from insclr.neighbours import approximate
from insclr.neighbours.approximate import LARGEST_LIST, make_lists
from insclr.neighbours.exact import nearest_rows
from insclr.neighbours.pool import Pool, build_pool


def things(seed: int, images: int, dim: int = 32, count: int = 150) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(count, dim, generator=generator)[
        torch.randint(count, (images,), generator=generator)
    ]
    return torch.nn.functional.normalize(centres + 0.6 * torch.randn(images, dim, generator=generator), dim=1)


def true_recall(pool: Pool, exact: Pool) -> float:
    pairs = zip(pool.ids.numpy(), exact.ids.numpy(), strict=True)
    return float(np.mean([len(np.intersect1d(found, true)) / len(true) for found, true in pairs]))


@pytest.mark.parametrize("block_bytes", [2**18, 2**28])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_most_neighbours_are_found_and_the_share_is_reported(block_bytes: int, stored: torch.dtype) -> None:
    features = things(0, 5000).to(stored)
    pool = build_pool(features, 30, approximate=True, block_bytes=block_bytes)
    recall = true_recall(pool, build_pool(features, 30))
    assert 0.93 < recall < 1  # a recall of 1 would mean that everything was searched
    assert pool.recall == pytest.approx(recall, abs=0.02)


def test_what_is_found_is_true() -> None:
    features = things(1, 4000)
    pool = build_pool(features, 40, approximate=True)
    similarities = torch.einsum("nd,npd->np", features, features[pool.ids.long()])
    assert torch.allclose(pool.similarities, similarities, atol=1e-4)
    assert (pool.similarities.diff(dim=1) <= 0).all()
    assert (pool.ids != torch.arange(4000)[:, None]).all()
    assert (pool.ids.sort(dim=1).values.diff(dim=1) > 0).all()  # nobody twice


def test_the_same_seed_gives_the_same_pool() -> None:
    features = things(2, 3000)
    first, second = (build_pool(features, 30, approximate=True) for _ in range(2))
    assert torch.equal(first.ids, second.ids)


def test_vectors_without_neighbourhoods_are_searched_exactly() -> None:
    features = torch.nn.functional.normalize(
        torch.randn(3000, 64, generator=torch.Generator().manual_seed(0)), dim=1
    )
    pool = build_pool(features, 30, approximate=True)
    assert pool.recall == 1.0
    assert torch.equal(pool.ids, build_pool(features, 30).ids)


def test_rows_whose_lists_are_too_short_are_searched_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    # Lists of about nine rows take 16 places each: of the 64 places a row is given, many lie empty.
    features, searched = things(3, 2000), []

    def spy(features: Tensor, rows: Tensor, size: int, **options: int) -> tuple[Tensor, Tensor]:
        searched.append(rows)
        return nearest_rows(features, rows, size, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(approximate, "nearest_rows", spy)
    monkeypatch.setattr(approximate, "probe_width", lambda *_: 64)
    pool = build_pool(features, 30, approximate=True)
    similarities = torch.einsum("nd,npd->np", features, features[pool.ids.long()])
    assert torch.allclose(pool.similarities, similarities, atol=1e-4)
    assert (pool.ids != torch.arange(2000)[:, None]).all()
    short = torch.cat(searched[1:])  # the first search was that of the sample
    assert 0 < len(short) < 2000
    assert torch.equal(pool.ids[short], build_pool(features, 30).ids[short])


def test_sorting_many_rows_into_lists_takes_no_memory_of_its_own() -> None:
    """Two hundred products of 16 MB, one after the other, in the memory of a few."""
    program = (
        "import resource, torch; from insclr.neighbours.approximate import nearest_centre as nearest\n"
        "points, centres = torch.randn(200 * 1024, 8), torch.randn(4096, 8)\n"
        "nearest(points[:2048], centres)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "found = nearest(points, centres)\n"
        "assert torch.equal(found[-5:], (points[-5:] @ centres.T).argmax(1))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    grown = int(done.stdout) / (1000 if sys.platform != "darwin" else 1_000_000)  # MB
    assert grown < 200


def test_every_row_is_in_one_list_and_no_list_is_too_long() -> None:
    features = torch.cat([things(5, 900), things(6, 1).expand(600, -1)])  # 600 identical images among others
    index = make_lists(features, 40, torch.Generator().manual_seed(0))
    assert index.rows.sort().values.tolist() == list(range(1500))
    assert index.start[-1] == 1500
    assert index.start.diff().max() <= LARGEST_LIST
