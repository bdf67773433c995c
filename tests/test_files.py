"""Files and folders that are there whole or not at all."""

import errno
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors
import torch

from insclr.files import open_file, read_bytes, remove_leftovers, system_error, whole_file, whole_folder


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "result.txt"
    with whole_file(target) as scratch:
        scratch.write_text("all of it")
        assert not target.exists()
    assert target.read_text() == "all of it"


def test_a_failed_write_leaves_the_old_file_and_no_scratch(tmp_path: Path) -> None:
    target = tmp_path / "result.txt"
    target.write_text("old")

    def fail() -> None:
        with whole_file(target) as scratch:
            scratch.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    "platform", [sys.platform, "elsewhere"]
)  # elsewhere folders are renamed, not swapped
def test_a_folder_replaces_an_older_one_whole(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    target = tmp_path / "sheets"
    for text in ("first", "second"):
        with whole_folder(target) as scratch:
            (scratch / "page").write_text(text)
    assert (target / "page").read_text() == "second"
    assert list(tmp_path.iterdir()) == [target]


def test_files_are_readable_for_others_as_usual(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    with whole_file(tmp_path / "ours") as scratch:
        scratch.touch(mode=0o600)
    assert (tmp_path / "ours").stat().st_mode == plain.stat().st_mode


def test_what_is_not_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name, reason in {
            "pipe": "not a regular file",
            "endless": "not a regular file",
            "socket": "not a regular file",
            "folder": "a folder, not a file",
            "loop": "Too many levels of symbolic links",
        }.items():
            with pytest.raises(OSError, match=reason):
                open_file(tmp_path / name)


def test_a_file_that_becomes_a_pipe_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    regular = (tmp_path / "file").stat()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(os, "stat", lambda _: regular)  # what was there a moment ago
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="not a regular file"):
        open_file(tmp_path / "pipe")
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert read_bytes(tmp_path / "file", 100) == b"x" * 100
    with pytest.raises(OSError, match="too large"):
        read_bytes(tmp_path / "file", 99)


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / "round-1").mkdir()
    old = tmp_path / "round-1" / ".step-1.pt.01234567.part"
    live = tmp_path / ".model.01234567.part"
    for file in (old, live, tmp_path / "a.part"):
        file.write_text("half")
    os.utime(old, (1e9, 1e9))
    remove_leftovers(tmp_path)
    assert (old.exists(), live.exists(), (tmp_path / "a.part").exists()) == (False, True, True)


def test_a_scratch_file_of_last_week_goes_when_its_target_is_written_again(tmp_path: Path) -> None:
    old, other = tmp_path / ".result.01234567.part", tmp_path / ".results.01234567.part"
    for file in (old, other):
        file.write_text("half")
        os.utime(file, (1e9, 1e9))
    with whole_file(tmp_path / "result") as scratch:
        scratch.write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".results.01234567.part", "result"]


def test_a_folder_is_never_absent_while_it_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "sheets"
    with whole_folder(target) as scratch:
        (scratch / "page").write_text("0")
    watch = (
        "import os, sys\nmissing = 0\nprint('ready', flush=True)\n"
        "while not os.path.exists(sys.argv[2]):\n"
        "    try: open(sys.argv[1]).read()\n"
        "    except FileNotFoundError: missing += 1\n"
        "print(missing)"
    )
    stop = tmp_path / "stop"
    with subprocess.Popen(
        [sys.executable, "-c", watch, target / "page", stop], stdout=subprocess.PIPE, text=True
    ) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "ready\n"
        end = time.monotonic() + 1
        while time.monotonic() < end:
            with whole_folder(target) as scratch:
                (scratch / "page").write_text("next")
        stop.touch()
        assert watcher.stdout.read() == "0\n"


@pytest.mark.parametrize(
    "said",
    [
        "I/O error: Read-only file system (os error 30)",
        'IoError(Os { code: 30, kind: ReadOnlyFilesystem, message: "Read-only file system" })',
    ],
    ids=["safetensors now", "safetensors 0.5"],
)
def test_a_disk_error_from_safetensors_is_an_os_error(said: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Read-only") as raised, whole_file(tmp_path / "model"):
        raise RuntimeError(said)
    assert raised.value.errno == errno.EROFS


@pytest.mark.parametrize("numbers", [10, 1_000_000])
def test_a_disk_that_is_full_while_torch_writes_is_an_os_error(numbers: int, tmp_path: Path) -> None:
    def write() -> None:
        with whole_file(tmp_path / "state") as scratch:
            scratch.symlink_to("/dev/full")
            torch.save({"one": torch.zeros(numbers), "two": torch.zeros(numbers)}, scratch)

    with pytest.raises(OSError, match=r"No space|Input/output"):
        write()
    assert not list(tmp_path.iterdir())


def test_a_file_that_torch_cannot_open_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.from_file(str(tmp_path / "nothing"), size=1)
    found = system_error(raised.value)
    assert found is not None
    assert (found.errno, found.filename) == (errno.ENOENT, str(tmp_path / "nothing"))
    assert system_error(RuntimeError("unable to add")) is None


def test_a_file_that_safetensors_cannot_open_is_named(tmp_path: Path) -> None:
    """It says that there is no such file where the process may open no more files, too."""
    with pytest.raises(FileNotFoundError) as raised:
        safetensors.safe_open(tmp_path / "block", "np")
    error = system_error(raised.value)
    assert error is not None
    assert (error.errno, error.filename) == (errno.EIO, str(tmp_path / "block"))
