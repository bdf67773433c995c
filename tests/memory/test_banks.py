"""Banks of features in memory and in files."""

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

from insclr.checkpoint import copies_beside, save_checkpoint
from insclr.errors import UserError
from insclr.memory.banks import MappedBank, MemoryBank, MemoryBanks, open_banks
from insclr.ranks import Ranks


@pytest.fixture(params=["memory", "file"])
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryBank:
    if request.param == "memory":
        return MemoryBank(6, 2)
    return MappedBank(6, 2, torch.float32, tmp_path / "bank.bin")


def test_rows_come_back_as_written_in_any_shape(bank: MemoryBank) -> None:
    bank.write(torch.tensor([4, 1]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    read = bank.read(torch.tensor([[1, 4], [0, 1]], dtype=torch.int32))
    assert read.tolist() == [[[3, 4], [1, 2]], [[0, 0], [3, 4]]]


def test_fill_block_by_block(bank: MemoryBank) -> None:
    rows = torch.arange(12.0).view(6, 2)
    bank.fill(rows[:4])
    bank.fill(rows[4:], first=4)
    assert torch.equal(bank.read(torch.arange(6)), rows)


@given(ids=st.lists(st.integers(0, 5), max_size=30))
def test_the_last_of_several_writes_to_one_row_stays(ids: list[int]) -> None:
    bank, expected = MemoryBank(6, 1), [0.0] * 6
    for place, i in enumerate(ids):
        expected[i] = place + 1.0
    bank.write(torch.tensor(ids, dtype=torch.int64), torch.arange(1.0, len(ids) + 1)[:, None])
    assert bank.read(torch.arange(6))[:, 0].tolist() == expected


def test_reading_gives_a_copy_without_gradient(bank: MemoryBank) -> None:
    feature = torch.ones(1, 2, requires_grad=True)
    bank.write(torch.tensor([0]), feature)
    read = bank.read(torch.tensor([0]))
    read += 1
    assert not read.requires_grad
    assert bank.read(torch.tensor([0])).tolist() == [[1, 1]]


def test_half_precision_rows_are_read_as_float32(tmp_path: Path) -> None:
    banks = MemoryBank(3, 4, torch.float16), MappedBank(3, 4, torch.float16, tmp_path / "half.bin")
    for bank in banks:
        bank.write(torch.tensor([1]), torch.full((1, 4), 0.1))
        read = bank.read(torch.tensor([1]))
        assert read.dtype == torch.float32
        assert torch.allclose(read, torch.full((1, 4), 0.1), atol=1e-4)
    assert (tmp_path / "half.bin").stat().st_size == 3 * 4 * 2


def test_a_checkpoint_restores_the_rows(tmp_path: Path) -> None:
    banks = open_banks(6, 2, torch.float32, tmp_path, Ranks())
    banks.write(torch.tensor([3, 5]), torch.rand(2, 2), torch.rand(2, 2))
    torch.save(banks.state_dict(), tmp_path / "state.pt")
    other = open_banks(6, 2, torch.float32, tmp_path, Ranks())
    other.restore(torch.load(tmp_path / "state.pt", weights_only=True), {}, Ranks())
    assert torch.equal(other.plain.features, banks.plain.features)
    assert torch.equal(other.augmented.features, banks.augmented.features)


def test_a_checkpoint_of_another_size_is_refused(tmp_path: Path) -> None:
    state = open_banks(6, 2, torch.float32, tmp_path, Ranks()).state_dict()
    with pytest.raises(UserError, match=r"is \(6, 2\), this run needs \(6, 3\)"):
        open_banks(6, 3, torch.float32, tmp_path, Ranks()).restore(state, {}, Ranks())


def test_mapped_banks_of_several_ranks_are_taken_over_by_one(tmp_path: Path) -> None:
    mapped = open_banks(6, 2, torch.float32, tmp_path, Ranks(), in_memory=0)
    mapped.write(torch.tensor([3]), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    save_checkpoint(tmp_path, 7, {"banks": mapped.state_dict()}, 1, mapped.files)
    alone = open_banks(6, 2, torch.float32, tmp_path, Ranks())
    alone.restore(mapped.state_dict(), copies_beside(tmp_path, 7), Ranks())
    assert alone.plain.read(torch.tensor([3])).tolist() == [[1, 0]]
    assert alone.augmented.read(torch.tensor([3])).tolist() == [[0, 1]]


def test_both_banks_are_written_together() -> None:
    banks = MemoryBanks(MemoryBank(4, 2), MemoryBank(4, 2))
    banks.write(torch.tensor([3]), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    assert banks.plain.read(torch.tensor([3])).tolist() == [[1, 0]]
    assert banks.augmented.read(torch.tensor([3])).tolist() == [[0, 1]]


IDS = st.lists(st.integers(0, 6), min_size=1, max_size=5)
DEEDS = st.lists(st.tuples(st.sampled_from(["write", "fill", "read"]), IDS), max_size=20)


@settings(max_examples=60)
@given(DEEDS)
def test_in_any_order_of_use_a_file_holds_what_memory_holds(deeds: list[tuple[str, list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bank.bin"
        mapped, plain = MappedBank(7, 3, torch.float16, file), MemoryBank(7, 3, torch.float16)
        for step, (deed, numbers) in enumerate(deeds):
            ids, rows = torch.tensor(numbers), torch.full((len(numbers), 3), float(step))
            rows += torch.arange(len(numbers))[:, None] / 8
            for bank in (mapped, plain):
                if deed == "write":
                    bank.write(ids, rows)
                elif deed == "fill":
                    bank.fill(rows[:2], first=min(numbers[0], 5))
            if deed == "read":
                assert torch.equal(mapped.read(ids), plain.read(ids))
        assert torch.equal(mapped.features, plain.features)
        assert file.read_bytes() == plain.features.numpy().tobytes()


def test_a_disk_error_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = MappedBank(4, 2, torch.float32, tmp_path / "bank.bin")

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", broken)
    with pytest.raises(OSError, match="Input/output"):
        bank.write(torch.tensor([1]), torch.ones(1, 2))


def test_two_processes_see_one_file(tmp_path: Path) -> None:
    bank = MappedBank(5, 3, torch.float32, tmp_path / "bank.bin")
    bank.write(torch.tensor([1]), torch.full((1, 3), 2.0))
    program = (
        "import sys, torch; from pathlib import Path; from insclr.memory.banks import MappedBank\n"
        "bank = MappedBank(5, 3, torch.float32, Path(sys.argv[1]))\n"
        "bank.write(torch.tensor([4]), 2 * bank.read(torch.tensor([1])))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "bank.bin")], check=True, env=os.environ)
    assert bank.read(torch.tensor([4])).tolist() == [[4, 4, 4]]


def test_releasing_pages_loses_nothing(tmp_path: Path) -> None:
    bank = MappedBank(2000, 64, torch.float32, tmp_path / "bank.bin")
    rows = torch.rand(2000, 64)
    bank.fill(rows)
    bank.write(torch.arange(700), rows[:700] + 1)
    rows[:700] += 1
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(bank.read(order), rows[order])


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
