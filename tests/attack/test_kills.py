"""kill -9 at random moments: nothing that was written is lost, and the next run ends like an unbroken one."""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from insclr.model.model_file import load_model
from insclr.retrieval.store import open_store

MODEL = "pretrained:efficientnet_lite0"
SETTINGS = "workers=1 checkpoint_every=20 rounds.steps=120 rounds.epochs=0 rounds.tuples=16"
Note = Callable[[str, str, str], None]


def _run(arguments: list[str]) -> None:
    import torch

    from insclr.cli import main

    torch.set_num_threads(1)
    sys.argv = ["insclr", *arguments]
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        sys.stdout = sys.stderr = nowhere
        main()


def start(*arguments: str | Path) -> "multiprocessing.process.BaseProcess":
    """A command in a process of its own that has done the long imports already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["insclr.cli.training", "insclr.jobs.train", "insclr.retrieval.index"])
    process = context.Process(target=_run, args=([str(one) for one in arguments],))
    process.start()
    return process


def whole(*arguments: str | Path) -> float:
    """Run to the end; gives the seconds it took."""
    began = time.monotonic()
    process = start(*arguments)
    process.join()
    assert process.exitcode == 0
    return time.monotonic() - began


def kill_at(moment: float, *arguments: str | Path) -> bool:
    """Start and kill; whether it was still at work."""
    process = start(*arguments)
    process.join(moment)
    alive = process.exitcode is None
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    return alive


Rows = dict[str, tuple[str, np.ndarray]]


def rows_of(store: Path) -> Rows:
    opened = open_store(store)
    try:
        rows = opened.rows_by_path()
        vectors = opened.descriptors([row.id for row in rows.values()])
        found = {
            path: (row.image.hash, vector) for (path, row), vector in zip(rows.items(), vectors, strict=True)
        }
    finally:
        opened.close()
    with sqlite3.connect(store / "rows.sqlite") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return found


def within(some: Rows, others: Rows) -> bool:
    """Whether these rows are among the others; descriptors may differ in their last digits with their batch."""
    return all(
        path in others and digest == others[path][0] and np.allclose(vector, others[path][1], atol=2e-3)
        for path, (digest, vector) in some.items()
    )


def same(some: Rows, others: Rows) -> bool:
    return within(some, others) and within(others, some)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from insclr_demo import draw_collection

    folder = tmp_path_factory.mktemp("kills")
    draw_collection(folder / "c", things=20, views=10, size=160, seed=0)
    whole("recipes")  # starts the server that forks, so that no time measured later holds its imports
    return folder / "c" / "images"


@pytest.fixture
def kills(soak: bool) -> int:
    return 25 if soak else 4


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
