"""A run that was killed, whatever it left, ends like one that was not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from helpers.small_training import SMALL
from insclr.checkpoint import list_checkpoints
from insclr.jobs.train import train
from insclr.tracking import read_metrics

# Trains, and is killed right after the given function has done its work for the given time.
KILLED = """
import importlib, os, signal, sys
images, out, module, name, times, *changes = sys.argv[1:]
module = importlib.import_module(module)
done, left = getattr(module, name), int(times)

def once_more(*args, **more):
    global left
    result = done(*args, **more)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(module, name, once_more)
from insclr.jobs.train import train
train(images, out, "fast", changes=tuple(changes))
"""


def killed(images: Path, out: Path, module: str, name: str, times: int) -> None:
    command: list[str | Path] = [sys.executable, "-c", KILLED, images, out, module, name, str(times), *SMALL]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def story(run: Path) -> list[tuple[object, ...]]:
    return [(record["round"], record["step"], record.get("event")) for record in read_metrics(run)]


def test_garbage_in_the_newest_checkpoint_costs_a_few_steps_and_nothing_else(
    small_collection: Path, tmp_path: Path
) -> None:
    train(small_collection, tmp_path / "whole", "fast", changes=SMALL)
    broken = tmp_path / "broken"
    killed(small_collection, broken, "insclr.training.steps", "save_checkpoint", 3)
    newest = list_checkpoints(broken / "round-1")[-1]
    newest.write_bytes(os.urandom(newest.stat().st_size))
    train(small_collection, broken, "fast", changes=SMALL, resume=True)
    expected, found = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "broken"))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert story(broken) == story(tmp_path / "whole")


def test_killed_after_the_model_was_written_a_run_still_gets_its_report(
    small_collection: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for file in small_collection.glob("*.png"):
        (photos / file.name).write_bytes(file.read_bytes())
    (photos / "broken.png").write_bytes(b"no image")
    run = tmp_path / "run"
    killed(photos, run, "insclr.training.run", "save_model", 1)
    assert not (run / "report.html").exists()
    model = (run / "model.safetensors").read_bytes()
    train(photos, run, "fast", changes=SMALL, resume=True)
    assert (run / "model.safetensors").read_bytes() == model
    assert "broken.png" in (run / "report.html").read_text()
    assert "broken.png,not an image" in (run / "skipped.csv").read_text()


def test_a_report_of_the_unfinished_run_gives_way_to_that_of_the_finished_one(
    small_collection: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    killed(small_collection, run, "insclr.training.run", "save_model", 1)
    (run / "report.html").write_text("as it was half-way")
    os.utime(run / "report.html", (0, 0))
    train(small_collection, run, "fast", changes=SMALL, resume=True)
    assert "half-way" not in (run / "report.html").read_text()
