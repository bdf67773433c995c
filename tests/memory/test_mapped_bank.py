"""A bank in a file, read ahead and written behind, holds what one in memory holds."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from insclr.errors import UserError
from insclr.memory.bank import MemoryBank
from insclr.memory.mapped_bank import MappedBank

IDS = st.lists(st.integers(0, 6), min_size=1, max_size=5)
DEEDS = st.lists(st.tuples(st.sampled_from(["write", "fill", "ahead", "read"]), IDS), max_size=20)


@settings(max_examples=60)
@given(DEEDS, st.booleans())
def test_in_any_order_of_use_it_holds_what_a_bank_in_memory_holds(
    deeds: list[tuple[str, list[int]]], shared: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bank.bin"
        mapped, plain = MappedBank(7, 3, torch.float16, file, shared=shared), MemoryBank(7, 3, torch.float16)
        for step, (deed, numbers) in enumerate(deeds):
            ids, rows = torch.tensor(numbers), torch.full((len(numbers), 3), float(step))
            rows += torch.arange(len(numbers))[:, None] / 8
            for bank in (mapped, plain):
                if deed == "write":
                    bank.write(ids, rows)
                elif deed == "fill":
                    bank.fill(rows[:2], first=min(numbers[0], 5))
                elif deed == "ahead":
                    bank.ahead(ids)
            if deed == "read":
                assert torch.equal(mapped.read(ids), plain.read(ids))
        assert torch.equal(mapped.features, plain.features)
        assert file.read_bytes() == plain.features.numpy().tobytes()


def test_rows_written_after_they_were_announced_are_read_as_written(tmp_path: Path) -> None:
    bank = MappedBank(4, 2, torch.float32, tmp_path / "bank.bin")
    ids = torch.tensor([[3, 1], [1, 0]])
    bank.ahead(ids)
    bank.write(torch.tensor([1]), torch.tensor([[5.0, 6.0]]))
    bank.write(torch.tensor([1, 2]), torch.tensor([[7.0, 8.0], [1.0, 1.0]]))
    assert bank.read(ids).tolist() == [[[0, 0], [7, 8]], [[7, 8], [0, 0]]]


def test_a_disk_error_behind_the_network_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = MappedBank(4, 2, torch.float32, tmp_path / "bank.bin")

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", broken)
    bank.write(torch.tensor([1]), torch.ones(1, 2))
    bank.write(torch.tensor([2]), torch.ones(1, 2))
    with pytest.raises(OSError, match="Input/output"):
        bank.write(torch.tensor([3]), torch.ones(1, 2))


def test_two_processes_see_one_file(tmp_path: Path) -> None:
    bank = MappedBank(5, 3, torch.float32, tmp_path / "bank.bin", shared=True)
    bank.write(torch.tensor([1]), torch.full((1, 3), 2.0))
    program = (
        "import sys, torch; from pathlib import Path; from insclr.memory.mapped_bank import MappedBank\n"
        "bank = MappedBank(5, 3, torch.float32, Path(sys.argv[1]), shared=True)\n"
        "bank.write(torch.tensor([4]), 2 * bank.read(torch.tensor([1])))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "bank.bin")], check=True, env=os.environ)
    assert bank.read(torch.tensor([4])).tolist() == [[4, 4, 4]]


def test_giving_pages_back_loses_nothing(tmp_path: Path) -> None:
    bank = MappedBank(50, 64, torch.float32, tmp_path / "bank.bin", resident_bytes=1)
    rows = torch.rand(50, 64)
    for i in range(50):
        bank.write(torch.tensor([i]), rows[i : i + 1])
    assert torch.equal(bank.read(torch.arange(50)), rows)


def test_a_bank_file_of_another_size_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "bank.bin"
    path.write_bytes(b"x" * 100)
    with pytest.raises(UserError, match="holds 100 bytes, this run needs 48"):
        MappedBank(4, 3, torch.float32, path)
    assert path.read_bytes() == b"x" * 100


def test_a_bank_that_does_not_fit_the_disk_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full_disk)
    path = tmp_path / "bank.bin"
    with pytest.raises(UserError, match=r"No space for the memory bank .*float16"):
        MappedBank(1000, 16, torch.float32, path)
    assert not path.exists()
