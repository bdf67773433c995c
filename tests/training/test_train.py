import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch

from insclr.data.images import list_images
from insclr.errors import UserError
from insclr.memory import mapped_bank
from insclr.model.model_file import load_model
from insclr.recipe import Recipe, load_recipe
from insclr.tracking import read_metrics
from insclr.training.banks import open_banks
from insclr.training.train import train

# Two rounds, the second through the whole network: small, but every stage of a real run.
_TINY = """
name = "tiny"
workers = 0
checkpoint_every = 3

[network]
dim = 32
start = "pca"
keep_start = 0.25

[descriptor]
size = 64
fit = "square"
scales = [1.0]

[[rounds]]
train = "fc"
steps = 20
tuples = 8
neighbours = 2
pool = 20
augmented_size = 64
plain_size = 64
cached_views = 2
lr = 1e-3
refresh_bank = 7
mining = { batch_threshold = "auto", sparsity = "auto", k = 2, repeats = 2 }
loss = { margin = "auto", normalise = "mean" }

[[rounds]]
train = "all"
steps = 8
tuples = 3
neighbours = 2
pool = 20
augmented_size = 64
plain_size = 64
lr = 1e-4
average = 0.9
batch_norm = "frozen"
mining = { batch_threshold = "auto", sparsity = "auto", k = 2, repeats = 2 }
loss = { margin = "auto", normalise = "mean" }
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(_TINY)
    return file


def _weights(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / "model.safetensors")


def test_a_run_leaves_a_model_and_its_story(small_collection: Path, tiny: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = train(small_collection, run, tiny, labels=small_collection / "labels.csv")
    records = read_metrics(run)
    starts = [record for record in records if record.get("event") == "start"]
    assert [record["round"] for record in starts] == [1, 2]
    assert all(0 < record["map"] <= 100 for record in starts)
    finish = records[-1]
    assert finish["event"] == "finish"
    assert 0 < finish["map"] <= 100
    steps = [record for record in records if record["round"] == 1 and "loss" in record]
    assert [record["step"] for record in steps] == [10, 20]
    assert 0 <= steps[-1]["memory_precision"] <= 1
    assert load_model(run / "model.safetensors").fingerprint == model.fingerprint
    assert load_recipe(run / "recipe.toml") == load_recipe(tiny)


def test_one_seed_gives_one_model(small_collection: Path, tiny: Path, tmp_path: Path) -> None:
    models = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(small_collection, tmp_path / name, tiny, changes=(f"seed={seed}", "rounds.steps=4"))
        models.append(_weights(tmp_path / name))
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    assert not all(torch.equal(models[0][key], models[2][key]) for key in models[0])


def test_the_shipped_layer_lies_between_its_start_and_its_end(
    small_collection: Path, tiny: Path, tmp_path: Path
) -> None:
    for share in ("0.0", "0.75", "1.0"):
        changes = (f"network.keep_start={share}", "rounds.steps=4")
        train(small_collection, tmp_path / share, tiny, changes=changes)
    start = safetensors.torch.load_file(tmp_path / "0.0" / "start.safetensors")
    end, between, back = (_weights(tmp_path / share) for share in ("0.0", "0.75", "1.0"))
    for name in ("weight", "bias"):
        key = f"fc.{name}"
        assert not torch.allclose(end[key], start[name])
        assert torch.allclose(back[key], start[name])
        assert torch.allclose(between[key], 0.75 * start[name] + 0.25 * end[key], atol=1e-6)
    # What the other layers have learned is theirs.
    others = [key for key in end if not key.startswith("fc.")]
    assert all(torch.equal(end[key], between[key]) for key in others)


def test_banks_in_files_train_the_same_network_and_are_read_ahead(
    small_collection: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(small_collection, tmp_path / "memory", tiny)
    taken = []

    def take_alone(features: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor) -> None:
        taken.append(len(ids))
        torch.index_select(features, 0, ids, out=rows)

    monkeypatch.setattr(mapped_bank, "_take_alone", take_alone)
    monkeypatch.setattr("insclr.training.train.open_banks", partial(open_banks, in_memory=0))
    train(small_collection, tmp_path / "files", tiny)
    # The round on images, whose network leaves the time: 8 steps of 3 tuples, both banks, a pool of 20.
    assert taken == [3 * 20] * 2 * 8
    memory, files = _weights(tmp_path / "memory"), _weights(tmp_path / "files")
    assert all(torch.equal(memory[key], files[key]) for key in memory)


def _start(collection: Path, run: Path, recipe: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "insclr", "train", str(collection), "--out", str(run)]
    return subprocess.Popen(
        [*command, "--recipe", str(recipe), "--resume"], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


def test_killed_in_mid_round_and_resumed_it_ends_in_the_same_weights(
    small_collection: Path, tiny: Path, tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert _start(small_collection, whole, tiny).wait() == 0
    # Kill twice: as soon as the first checkpoint of each round is there.
    for number in (1, 2):
        process = _start(small_collection, broken, tiny)
        while process.poll() is None and not list((broken / f"round-{number}").glob("step-*.pt")):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() != 0, "the run ended before it could be killed"
        assert not (broken / "model.safetensors").exists()
    assert _start(small_collection, broken, tiny).wait() == 0
    expected, found = _weights(whole), _weights(broken)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    strip = ("seconds", "seconds_per_step")
    stories = [
        [{key: value for key, value in record.items() if key not in strip} for record in read_metrics(run)]
        for run in (whole, broken)
    ]
    assert stories[0] == stories[1]


def test_resuming_a_finished_run_changes_nothing(small_collection: Path, tiny: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = train(small_collection, run, tiny, changes=("rounds.steps=2",))
    again = train(small_collection, run, tiny, changes=("rounds.steps=2",), resume=True)
    assert first.fingerprint == again.fingerprint


def test_a_run_folder_is_not_overwritten(small_collection: Path, tiny: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small_collection, run, tiny, changes=("rounds.steps=2",))
    before = (run / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="--resume"):
        train(small_collection, run, tiny, changes=("rounds.steps=2",))
    with pytest.raises(UserError, match=r"another recipe: .*steps = 3 \(the run has steps = 2\)"):
        train(small_collection, run, tiny, changes=("rounds.steps=3",), resume=True)
    assert (run / "model.safetensors").read_bytes() == before
    other = tmp_path / "holiday"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="not a run folder"):
        train(small_collection, other, tiny)
    assert (other / "letter.txt").read_text() == "dear"


def test_unreadable_photos_are_left_out_and_listed(
    small_collection: Path, tiny: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for file in small_collection.glob("*.png"):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "thing3-1.png").write_bytes(b"not a picture")
    model = train(folder, tmp_path / "run", tiny, changes=("rounds.steps=2",))
    assert model.notes["images"] == "47"
    assert "thing3-1.png" in (tmp_path / "run" / "skipped.csv").read_text()


def test_labels_of_other_images_are_refused(small_collection: Path, tiny: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("path,instance\na.jpg,a\nb.jpg,a\n")
    with pytest.raises(UserError, match="None of the labels names an image"):
        train(small_collection, tmp_path / "run", tiny, labels=labels)


def test_a_loss_that_is_not_a_number_stops_the_run(
    small_collection: Path, tiny: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"not a number.*lr="):
        train(small_collection, tmp_path / "run", tiny, changes=("rounds.0.lr=1e30",))


def test_a_time_budget_plans_the_steps(small_collection: Path, tiny: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small_collection, run, tiny, changes=("rounds.1.steps=5000", "minutes=0.05"))
    planned = next(record for record in read_metrics(run) if record.get("event") == "planned")
    assert planned["steps"] < 5000
    end = [record for record in read_metrics(run) if record.get("event") == "end"][-1]
    assert end["steps"] == planned["steps"]


def test_images_json_keeps_the_ids_when_the_folder_grows(small_collection: Path, tmp_path: Path) -> None:
    from insclr.run_folder import RunFolder

    images = list_images(small_collection)
    RunFolder(tmp_path / "run", Recipe(), resume=False).images(images)
    kept = RunFolder(tmp_path / "run", Recipe(), resume=True).images(images.subset([3, 4]))
    assert kept.paths == images.paths
    assert json.loads((tmp_path / "run" / "images.json").read_text())["paths"] == list(images.paths)
