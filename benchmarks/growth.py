"""How each stage's cost grows from 10,000 to 1.2 million images, beside mining (see its own part)."""

import tempfile
from pathlib import Path

import torch
from torch.nn import functional

from insclr.data.tuples import TupleSampler
from insclr.memory.banks import MappedBank
from insclr.memory.round_pool import round_pool
from insclr.mining.own_views import random_pairs
from insclr.ranks import Ranks
from table import Row, milliseconds
from timing import in_turns, seconds

SIZES = (10_000, 100_000, 1_200_000)
POOL_SIZES = (5_000, 10_000, 20_000, 40_000)
DIM = 512


def measure() -> list[Row]:
    return [_sampler(), _bank(), _calibration(), *_pool()]


def _across(what: str, times: dict[str, float], sizes: tuple[int, ...]) -> Row:
    taken = [times[str(size)] for size in sizes]
    spread = ", ".join(f"{milliseconds(t)} at {size:,}" for t, size in zip(taken, sizes, strict=True))
    return Row(what, spread, "", f"{taken[-1] / taken[0]:.2f} x")


def _sampler() -> Row:
    """Drawing a batch: an epoch's order costs one permutation, which its steps share."""
    samplers = {
        str(size): TupleSampler(torch.zeros(size, 4, dtype=torch.int32), 16, 3, seed=0) for size in SIZES
    }
    times = in_turns(
        {
            name: lambda sampler=sampler: [sampler.step(n) for n in range(100)]  # type: ignore[misc]
            for name, sampler in samplers.items()
        },
        turns=7,
    )
    return _across("draw 100 batches of 16 tuples", times, SIZES)


def _bank() -> Row:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        banks = {
            str(size): MappedBank(size, DIM, torch.float16, Path(scratch) / f"{size}.bank") for size in SIZES
        }
        rows = torch.randn(64, DIM)

        def work(bank: MappedBank) -> None:
            for _ in range(20):
                bank.write(torch.randint(len(bank), (64,)), rows)

        times = in_turns({name: lambda bank=bank: work(bank) for name, bank in banks.items()}, turns=7)  # type: ignore[misc]
    return _across("write 20 batches of 64 rows into a mapped bank", times, SIZES)


def _calibration() -> Row:
    rows = {str(size): torch.empty(size, DIM, dtype=torch.float16).normal_() for size in SIZES}
    times = in_turns({name: lambda part=part: random_pairs(part) for name, part in rows.items()}, turns=3)  # type: ignore[misc]
    return _across("calibrate: similarities of 200,000 random pairs", times, SIZES)


def _pool() -> list[Row]:
    """The exact pool grows with N squared: seconds for all images, and per image."""
    features = functional.normalize(torch.randn(max(POOL_SIZES), DIM), dim=1)
    times = {}
    with tempfile.TemporaryDirectory() as scratch:
        for size in POOL_SIZES:
            part = features[:size]
            times[size] = seconds(
                lambda part=part: round_pool(part, 500, Path(scratch), Ranks(), torch.device("cpu"))  # type: ignore[misc]
            )
    per_image = {str(size): times[size] / size for size in POOL_SIZES}
    return [_across(f"exact pool of {DIM}-d features, per image", per_image, POOL_SIZES)]
