"""kill -9 at random moments: nothing that was written is lost, and the next run ends like an unbroken one."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from helpers.killing import MODEL, Note, kill_at, rows_of, same, whole, within
from insclr.model.model_file import load_model

SETTINGS = "workers=1 checkpoint_every=20 rounds.steps=120 rounds.epochs=0 rounds.tuples=16"


def test_index(images: Path, tmp_path: Path, kills: int, note: Note) -> None:
    seconds = whole("index", MODEL, images, "--store", tmp_path / "whole")
    expected = rows_of(tmp_path / "whole")
    dice, hit, store, at_work = random.Random(0), 0, tmp_path / "s", False
    for number in range(kills):
        if number % 5 == 0 or not at_work:
            shutil.rmtree(store, ignore_errors=True)
        before = rows_of(store) if (store / "rows.sqlite").exists() else {}
        at_work = kill_at(dice.uniform(0.05, 0.6) * seconds, "index", MODEL, images, "--store", store)
        hit += at_work
        if (store / "rows.sqlite").exists():
            found = rows_of(store)
            assert within(before, found)
            assert within(found, expected)
    whole("index", MODEL, images, "--store", store)
    assert same(rows_of(store), expected)
    note(
        f"kill -9 x {kills} ({hit} at work): index", "0 rows lost, equal to an unbroken run", "0 lost, equal"
    )


def test_index_prune(images: Path, tmp_path: Path, kills: int, note: Note) -> None:
    few = tmp_path / "few.txt"
    few.write_text("\n".join(str(path) for path in sorted(images.rglob("*.jpg"))[::7]))
    whole("index", MODEL, images, "--store", tmp_path / "full")
    shutil.copytree(tmp_path / "full", tmp_path / "whole")
    seconds = whole("index", MODEL, few, "--store", tmp_path / "whole", "--prune")
    before, expected = rows_of(tmp_path / "full"), rows_of(tmp_path / "whole")
    assert len(expected) < len(before)
    dice, hit, kinds = random.Random(1), 0, set()
    for _ in range(kills):
        store = tmp_path / "s"
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(tmp_path / "full", store)
        hit += kill_at(dice.uniform(0.05, 1.0) * seconds, "index", MODEL, few, "--store", store, "--prune")
        found = rows_of(store)
        assert same(found, before) or same(found, expected), "the delete is one transaction"
        kinds.add(len(found))
        whole("index", MODEL, few, "--store", store, "--prune")
        assert same(rows_of(store), expected)
    note(
        f"kill -9 x {kills} ({hit} at work): index --prune",
        "all rows or the wanted ones, never between",
        "0 lost",
    )


def test_embed(images: Path, tmp_path: Path, kills: int, note: Note) -> None:
    seconds = whole("embed", MODEL, images, "--out", tmp_path / "whole.npz")
    dice, hit, out = random.Random(2), 0, tmp_path / "d.npz"
    for _ in range(kills):
        hit += kill_at(dice.uniform(0.05, 0.95) * seconds, "embed", MODEL, images, "--out", out)
        if out.exists():
            np.load(out)["vectors"]
            out.unlink()
    whole("embed", MODEL, images, "--out", out)
    one, other = np.load(out), np.load(tmp_path / "whole.npz")
    assert one["paths"].tolist() == other["paths"].tolist()
    np.testing.assert_allclose(one["vectors"], other["vectors"], atol=1e-5)
    note(
        f"kill -9 x {kills} ({hit} at work): embed",
        "file absent or whole, equal to an unbroken run",
        "0 lost, equal",
    )


def test_whiten(images: Path, tmp_path: Path, kills: int, note: Note) -> None:
    arguments = ("whiten", MODEL, images, "--dim", "64", "--out")
    seconds = whole(*arguments, tmp_path / "whole.safetensors")
    dice, hit, out = random.Random(3), 0, tmp_path / "m.safetensors"
    for _ in range(kills):
        hit += kill_at(dice.uniform(0.05, 0.98) * seconds, *arguments, out)
        if out.exists():
            load_model(out)
    whole(*arguments, out)
    one, other = (safetensors.torch.load_file(file) for file in (out, tmp_path / "whole.safetensors"))
    assert all(torch.allclose(one[key], other[key], atol=1e-4) for key in other)
    note(f"kill -9 x {kills} ({hit} at work): whiten", "model absent or whole, equal", "0 lost, equal")


def test_train_fast(images: Path, tmp_path: Path, kills: int, note: Note) -> None:
    changes = [word for change in SETTINGS.split() for word in ("--set", change)]
    arguments: tuple[str | Path, ...] = ("train", images, "--recipe", "fast", *changes, "--out")
    seconds = whole(*arguments, tmp_path / "whole")
    expected = safetensors.torch.load_file(tmp_path / "whole" / "model.safetensors")
    dice, hit, run, runs = random.Random(4), 0, tmp_path / "run-0", 1
    for _ in range(kills):
        resume = ["--resume"] if (run / "recipe.toml").exists() else []
        hit += kill_at(dice.uniform(0.1, 0.7) * seconds, *arguments, run, *resume)
        if (run / "model.safetensors").exists():  # it was done: the next kills hit another one
            run, runs = tmp_path / f"run-{runs}", runs + 1
    for number in range(runs):
        run = tmp_path / f"run-{number}"
        resume = ["--resume"] if (run / "recipe.toml").exists() else []
        whole(*arguments, run, *resume)
        found = safetensors.torch.load_file(run / "model.safetensors")
        assert all(torch.equal(found[key], expected[key]) for key in expected)
        assert (run / "report.html").exists()
        assert (run / "skipped.csv").exists()
        assert not list(run.rglob("*.part"))
        for line in (run / "metrics.jsonl").read_text().splitlines():
            json.loads(line)
    note(
        f"kill -9 x {kills} ({hit} at work): train fast",
        "weights bit-equal to an unbroken run",
        "0 lost, equal",
    )
