"""A bank of features in memory."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from insclr.checkpoint import copies_beside, save_checkpoint
from insclr.errors import UserError
from insclr.memory.bank import MemoryBank, MemoryBanks
from insclr.memory.banks import open_banks
from insclr.memory.mapped_bank import MappedBank
from insclr.ranks import Ranks


@pytest.fixture(params=["memory", "file", "shared file"])
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryBank:
    if request.param == "memory":
        return MemoryBank(6, 2)
    return MappedBank(6, 2, torch.float32, tmp_path / "bank.bin", shared=request.param == "shared file")


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
