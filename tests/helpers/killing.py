"""Commands in processes of their own that are killed: at a moment of their run, or inside one of their steps."""

import contextlib
import multiprocessing
import os
import pkgutil
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from insclr.store import open_store

MODEL = "pretrained:efficientnet_lite0"
Note = Callable[[str, str, str], None]
Rows = dict[str, tuple[str, np.ndarray]]
Process = multiprocessing.process.BaseProcess


def _run(arguments: list[str]) -> None:
    import torch

    from insclr.cli import main

    torch.set_num_threads(1)
    sys.argv = ["insclr", *arguments]
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        sys.stdout = sys.stderr = nowhere
        main()


def _started(target: Callable[..., None], arguments: tuple[object, ...]) -> Process:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["insclr.cli.training", "insclr.jobs.train", "insclr.retrieval.index"])
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def start(*arguments: str | Path) -> Process:
    """A command in a process of its own that has done the long imports already."""
    return _started(_run, ([str(one) for one in arguments],))


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


def whole_step(step: str, told: Path, job: Callable[..., None], *arguments: object) -> float:
    """Run a job to its end; gives the seconds that it spent in its `step`, a function by its full name."""
    process = _started(_watched, (step, -1.0, told, job, arguments))
    process.join()
    assert process.exitcode == 0
    seconds = float(told.read_text())
    told.unlink()
    return seconds


def kill_inside(step: str, delay: float, told: Path, job: Callable[..., None], *arguments: object) -> bool:
    """Kill a job `delay` seconds after it entered its `step`; whether it was still inside."""
    process = _started(_watched, (step, delay, told, job, arguments))
    process.join()
    inside = not told.exists()
    told.unlink(missing_ok=True)
    return inside and process.exitcode == -signal.SIGKILL


def _watched(
    step: str, delay: float, told: Path, job: Callable[..., None], arguments: tuple[object, ...]
) -> None:
    """Run a job whose first entry into `step` starts the clock; `told` appears when the step is over."""
    owner = pkgutil.resolve_name(step.rpartition(".")[0])
    name = step.rpartition(".")[2]
    plain = getattr(owner, name)

    def timed(*given: object, **named: object) -> object:
        setattr(owner, name, plain)
        # SQLite and the files are written without the lock of the interpreter: the other thread strikes there too.
        if delay >= 0:
            threading.Thread(target=_die_after, args=(delay,), daemon=True).start()
        began = time.perf_counter()
        found = plain(*given, **named)
        told.write_text(str(time.perf_counter() - began))
        return found

    setattr(owner, name, timed)
    sys.setswitchinterval(1e-5)
    job(*arguments)


def _die_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def rows_of(store: Path) -> Rows:
    """Content and descriptor of every row by its path; the database must be whole."""
    opened = open_store(store)
    try:
        rows = opened.rows_by_path()
        vectors = opened.descriptors([row.id for row in rows.values()])
        found = {
            path: (row.image.hash, vector) for (path, row), vector in zip(rows.items(), vectors, strict=True)
        }
    finally:
        opened.close()
    with sqlite3.connect((opened.folder or store) / "rows.sqlite") as database:
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
