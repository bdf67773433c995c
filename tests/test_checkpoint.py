"""Checkpoints: the last few are kept, damaged ones passed over."""

import io
import pickle
import random
import zipfile
from pathlib import Path

import pytest
import torch

from insclr.checkpoint import latest_step, list_checkpoints, load_latest, save_checkpoint
from insclr.errors import UserError


def test_the_last_k_are_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save_checkpoint(tmp_path, step, {"step": step, "weights": torch.ones(2) * step}, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-0000020.pt", "step-0000030.pt"]
    state = load_latest(tmp_path)
    assert state is not None
    assert state["weights"].tolist() == [30, 30]


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    for step in (10, 20):
        save_checkpoint(tmp_path, step, {"step": step}, keep=2)
    newest = list_checkpoints(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:40])
    state = load_latest(tmp_path)
    assert state == {"step": 10}


def _zip_of_nothing() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", b"no pickle")
    return stream.getvalue()


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\0" * 4096,
        random.Random(0).randbytes(4096),
        b"hello, world",
        pickle.dumps([1, 2]),
        pickle.dumps(Path("x")),
        _zip_of_nothing(),
    ],
)
def test_garbage_is_passed_over_and_counts_as_no_step(tmp_path: Path, garbage: bytes) -> None:
    for step in (10, 20):
        save_checkpoint(tmp_path, step, {"step": step}, keep=2)
    list_checkpoints(tmp_path)[-1].write_bytes(garbage)
    assert load_latest(tmp_path) == {"step": 10}
    assert latest_step(tmp_path) == 10


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert load_latest(tmp_path / "round-1") is None


def test_a_full_disk_is_reported_and_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 10, {"step": 10}, keep=2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match=r"No space left.*--resume"):
        save_checkpoint(tmp_path, 20, {"step": 20}, keep=2)
    assert load_latest(tmp_path) == {"step": 10}
