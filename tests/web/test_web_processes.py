"""The processes that the server starts: they run this package, and nothing that lies among the photos."""

import os
import time
from pathlib import Path

import pytest

from insclr.feedback.entries import answer
from insclr.progress import json_line
from insclr.web.decode_pool import DecodePool
from insclr.web.learning import Learning, read_step
from insclr.web.limits import Limit
from insclr.web.served import Served, ServedStore
from insclr.web.server_metrics import ServerMetrics
from insclr.web.settings import ServeOptions


@pytest.fixture
def served(collection: ServedStore) -> Served:
    one, two, three, four = (Limit(1) for _ in range(4))
    return Served((collection,), ServeOptions(), DecodePool(1), one, two, three, four, ServerMetrics(dict))


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The server was started in a folder with a file that has the name of a module; this is what it would write."""
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "typer.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(folder)
    return tmp_path / "ran"


def test_learning_runs_no_module_of_the_current_folder(served: Served, ran: Path) -> None:
    one, other = (row.image.hash for row in list(served.stores[0].store.rows_by_path().values())[:2])
    served.stores[0].feedback.append([answer(one, [other], [])])
    learning = Learning(served)
    learning.start("no such recipe")
    while learning.state().state == "running":
        time.sleep(0.05)
    assert not ran.exists()
    assert "no such recipe" in learning.state().message


def test_the_step_of_learning_is_read_in_words_with_the_time_left(tmp_path: Path) -> None:
    lines = [
        json_line(
            "progress", "extracting", stages=[{"stage": "extracting features", "done": 0, "total": None}]
        ),
        json_line("info", "plan: describe 24 photos"),
        json_line("progress", "x", stages=[{"stage": "round 2", "done": 5, "total": 9}], left=12.5),
    ]
    with (tmp_path / "log").open("w+b") as log:
        assert (read_step(log).step, read_step(log).doing) == (1, "describing the photos")
        log.write("\n".join(lines).encode() + b"\n{cut")
        log.flush()
        place = os.lseek(log.fileno(), 0, os.SEEK_CUR)
        found = read_step(log)
        assert (found.step, found.steps, found.doing, found.left) == (2, 4, "training", 12.5)
        assert os.lseek(log.fileno(), 0, os.SEEK_CUR) == place  # the other process writes on from there
