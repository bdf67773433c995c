"""Watching a folder: what arrives is indexed once it has stopped growing."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from helpers.histogram_describer import HistogramDescriber, draw, draw_things
from insclr.data.images import list_images
from insclr.errors import UserError
from insclr.retrieval.index import IndexReport, index_images
from insclr.retrieval.watch import Watcher, watch
from insclr.store import open_store


class _End(Exception):
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw_things(tmp_path / "images", 2, 2)
    return tmp_path / "images"


@pytest.fixture
def watcher(folder: Path, tmp_path: Path) -> Watcher:
    index_images(HistogramDescriber(), list_images(folder), tmp_path / "store")
    made = Watcher(HistogramDescriber(), folder, tmp_path / "store")
    assert made.begin() == 4
    return made


def told(watcher: Watcher, *between: Callable[[], object]) -> list[IndexReport | UserError]:
    """What watching tells when these things happen, one between two looks."""
    steps = iter(between)

    def wait(_: float) -> None:
        step = next(steps, None)
        if step is None:
            raise _End
        step()

    found: list[IndexReport | UserError] = []
    with suppress(_End):
        found.extend(watch(watcher, 0, wait))
    return found


def nothing() -> None:
    pass


def paths(watcher: Watcher) -> set[str]:
    store = open_store(watcher.uri)
    try:
        return set(store.rows_by_path())
    finally:
        store.close()


def test_what_is_known_is_not_described_again(watcher: Watcher) -> None:
    assert told(watcher, nothing, nothing) == []
    assert watcher.describer.described == []  # type: ignore[attr-defined]


def test_a_photo_that_arrives_is_indexed(watcher: Watcher, folder: Path) -> None:
    (report,) = told(watcher, lambda: draw(folder / "9" / "0.png", 9, 0), nothing, nothing, nothing)
    assert isinstance(report, IndexReport)
    assert (report.added, report.total, report.vanished) == (1, 5, 0)
    assert "9/0.png" in paths(watcher)
    assert watcher.describer.described == ["9/0.png"]  # type: ignore[attr-defined]


def test_a_file_is_left_alone_while_it_grows(watcher: Watcher, folder: Path, tmp_path: Path) -> None:
    draw(tmp_path / "whole.png", 9, 0)
    content = (tmp_path / "whole.png").read_bytes()
    file = folder / "slow.png"

    def grow(part: float) -> Callable[[], object]:
        return lambda: file.write_bytes(content[: int(len(content) * part)])

    found = told(watcher, grow(0), nothing, nothing, grow(0.3), grow(0.6), grow(0.9), grow(1), nothing)
    (report,) = found
    assert isinstance(report, IndexReport)
    assert report.added == 1
    assert not report.skipped
    assert watcher.describer.described == ["slow.png"]  # type: ignore[attr-defined]


def test_a_changed_photo_is_described_again_and_columns_of_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    names = draw_things(folder, 2, 2)
    table = folder / "list.csv"
    table.write_text("path,room\n" + "".join(f"{name},attic\n" for name in names))
    index_images(HistogramDescriber(), list_images(table), tmp_path / "store")
    watcher = Watcher(HistogramDescriber(), folder, tmp_path / "store")
    watcher.begin()
    told(watcher, lambda: draw(folder / "1" / "1.png", 7, 0), nothing, nothing)
    assert watcher.changed == 1
    store = open_store(tmp_path / "store")
    rows = store.rows_by_path()
    store.close()
    assert rows["0/0.png"].image.columns == {"room": "attic"}


def test_an_unreadable_file_is_reported_once(watcher: Watcher, folder: Path) -> None:
    (report,) = told(watcher, lambda: (folder / "bad.png").write_bytes(b"no photo"), *[nothing] * 4)
    assert isinstance(report, IndexReport)
    assert [path for path, _ in report.skipped] == ["bad.png"]
    assert report.added == 0


def test_rows_of_vanished_files_stay(watcher: Watcher, folder: Path) -> None:
    assert told(watcher, (folder / "0" / "0.png").unlink, nothing, nothing) == []
    assert "0/0.png" in paths(watcher)


def test_a_folder_that_disappears_is_reported_once_and_awaited(
    watcher: Watcher, folder: Path, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    found = told(
        watcher,
        lambda: folder.rename(away),
        nothing,
        lambda: away.rename(folder),
        lambda: draw(folder / "9" / "0.png", 9, 0),
        nothing,
        nothing,
    )
    assert [type(one) for one in found] == [UserError, IndexReport]
    assert "not there any more" in str(found[0])


@pytest.mark.parametrize(
    "trouble",
    [
        UserError("another process writes to this store"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "store/rows.sqlite"),
    ],
)
def test_a_store_that_cannot_be_written_just_now_is_tried_again(
    watcher: Watcher, folder: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    from insclr.retrieval import watch as module

    real, calls = module.index_images, []  # type: ignore[attr-defined]

    def busy_first(*given: object, **more: object) -> IndexReport:
        calls.append(1)
        if len(calls) == 1:
            raise trouble
        return real(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "index_images", busy_first)
    found = told(watcher, lambda: draw(folder / "9" / "0.png", 9, 0), nothing, nothing, nothing)
    assert [type(one) for one in found] == [UserError, IndexReport]
    assert watcher.added == 1


def test_a_new_store_begins_with_what_is_there(folder: Path, tmp_path: Path) -> None:
    watcher = Watcher(HistogramDescriber(), folder, tmp_path / "new")
    (report,) = told(watcher, nothing, nothing)
    assert isinstance(report, IndexReport)
    assert report.added == 4


def test_only_a_folder_can_be_watched(tmp_path: Path) -> None:
    for wrong in (tmp_path / "nowhere", Path(__file__)):
        with pytest.raises(UserError, match="is not a folder"):
            Watcher(HistogramDescriber(), wrong, tmp_path / "store")


def test_a_new_store_needs_a_model(folder: Path, tmp_path: Path) -> None:
    from insclr.cli.search import watch as command

    with pytest.raises(UserError, match="say with --model which model"):
        command(folder, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_the_command_indexes_new_files_and_ctrl_c_reports_what_is_kept(tmp_path: Path) -> None:
    folder, store = tmp_path / "images", tmp_path / "store"
    draw_things(folder, 1, 2)
    command = [sys.executable, "-m", "insclr", "watch", str(folder), "--store", str(store), "--every", "0.2"]
    command += ["--model", "pretrained:efficientnet_lite0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "watching" in process.stdout.readline()
        assert "2 added" in process.stdout.readline()
        draw(folder / "9" / "0.png", 9, 0)
        assert "1 added: 3 photos in the store" in process.stdout.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "3 photos added and 0 changed" in out
    assert "stopped" in errors
    assert "Traceback" not in errors
