"""Training learns from groups that matched points prove, unless that is switched off, and resumes with the same."""

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.blots import textured
from insclr.jobs import train as train_job
from insclr.jobs.train import train
from insclr.model.model_file import Model

SMALL = (
    "workers=0",
    "network.dim=16",
    "descriptor.size=32",
    "rounds.augmented_size=32",
    "rounds.plain_size=32",
    "rounds.cached_views=2",
    "rounds.tuples=8",
    "rounds.steps=2",
)


@pytest.fixture
def prints(tmp_path: Path) -> Path:
    folder = tmp_path / "prints"
    folder.mkdir()
    for i in range(36):
        textured(i // 3).rotate(30 * (i % 3)).save(folder / f"{i:02d}.png")
    return folder


def run(photos: Path, out: Path, **options: Any) -> Model:
    return train(photos, out, "fast", changes=SMALL, **options)


def test_prints_are_learned_by_their_points(
    prints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = run(prints, tmp_path / "run")
    assert model.notes["matched points"] == "36 images are of groups that matched points prove"
    assert "answers" not in model.notes
    monkeypatch.setattr(train_job, "find_verified_groups", lambda _: pytest.fail("the groups are kept"))
    (tmp_path / "run" / "model.safetensors").unlink()
    again = train(None, tmp_path / "run", resume=True)
    for name, weight in model.network.state_dict().items():
        assert torch.equal(weight, again.network.state_dict()[name])


def test_points_are_left_alone_where_they_are_switched_off(
    prints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_job, "find_verified_groups", lambda _: pytest.fail("it is switched off"))
    assert "matched points" not in run(prints, tmp_path / "run", local="off").notes
