"""What is told to be written is on disk: the order of the system calls, as strace records it.

A power cut keeps what was synced and any part of the rest. So a file must be synced before it gets its name, and
the folder after; a database log after the last write to it.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = "write,pwrite64,rename,renameat,renameat2,fsync,fdatasync,mkdir"
# The second form is that of a call during which another thread was heard of.
_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*?)(?:\) += (-?\d+).*| <unfinished \.\.\.>)$")


@pytest.fixture(scope="module", autouse=True)
def _strace_works() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: apt-get install strace")
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("strace may not trace processes: run as root, outside a container without SYS_PTRACE")


def calls_of(code: str, log: Path) -> list[tuple[str, str]]:
    """(call, arguments with the paths of handles) of a Python program, those that succeeded, in order."""
    command: list[str | Path] = [
        "strace",
        "-f",
        "-y",
        "-s",
        "200",
        "-e",
        f"trace={CALLS}",
        "-o",
        log,
        sys.executable,
        "-c",
        code,
    ]
    subprocess.run(command, check=True)
    found = (_LINE.match(line) for line in log.read_text(errors="replace").splitlines())
    return [(match[1], match[2]) for match in found if match and int(match[3] or 0) >= 0]


def place(calls: list[tuple[str, str]], kinds: tuple[str, ...], text: str, start: int = 0) -> int:
    """Where the first call of one of these kinds stands whose arguments hold `text`."""
    for i, (kind, arguments) in enumerate(calls[start:], start):
        if kind in kinds and text in arguments:
            return i
    raise AssertionError(f"no {'/'.join(kinds)} of {text} after call {start} of {len(calls)}")


RENAMES = ("rename", "renameat", "renameat2")
SYNCS = ("fsync", "fdatasync")


def test_a_file_is_synced_then_renamed_then_its_folder_synced(tmp_path: Path) -> None:
    target = tmp_path / "new" / "result"
    code = f"""
from insclr.files import whole_file
with whole_file({str(target)!r}) as scratch:
    scratch.write_text("content")
"""
    calls = calls_of(code, tmp_path / "log")
    made = place(calls, ("mkdir",), str(target.parent))
    assert place(calls, SYNCS, f"<{tmp_path}>", made)  # the new folder's own name
    written = place(calls, ("write",), "content")
    synced = place(calls, SYNCS, ".result.", written)
    renamed = place(calls, RENAMES, f'"{target}"')
    assert written < synced < renamed < place(calls, SYNCS, f"<{target.parent}>", renamed)


def test_a_folder_is_synced_with_all_it_holds_before_it_is_swapped(tmp_path: Path) -> None:
    target = tmp_path / "sheets"
    code = f"""
from insclr.files import whole_folder
for text in ("first", "second"):
    with whole_folder({str(target)!r}) as scratch:
        (scratch / "deep").mkdir()
        (scratch / "deep" / "page").write_text(text)
"""
    calls = calls_of(code, tmp_path / "log")
    written = place(calls, ("write",), "second")
    file = place(calls, SYNCS, "/deep/page>", written)
    folder = place(calls, SYNCS, "/deep>", file)
    renamed = place(calls, RENAMES, f'"{target}"', folder)
    assert "RENAME_EXCHANGE" in calls[renamed][1]
    assert place(calls, SYNCS, f"<{tmp_path}>", renamed)


def test_rows_are_synced_after_the_last_write_of_every_batch(tmp_path: Path) -> None:
    code = f"""
import numpy as np
from pathlib import Path
from insclr.store.local import LocalStore
from insclr.store.rows import IndexedImage, StoreInfo
store = LocalStore.create(Path({str(tmp_path / "s")!r}), StoreInfo("m", "f", 4, Path("/")))
for i in range(2):
    store.upsert([IndexedImage(f"photo{{i}}", "h", 1, 1)], np.eye(4, dtype=np.float32)[:1])
    Path({str(tmp_path / "told")!r}).write_text("told")
import os
os._exit(0)
"""
    calls = calls_of(code, tmp_path / "log")
    start = 0
    for _ in range(2):
        told = place(calls, ("write",), "told", start)
        log = [i for i in range(start, told) if "rows.sqlite-wal>" in calls[i][1]]
        assert calls[log[-1]][0] in SYNCS, "the log is written after it was synced"
        assert any(calls[i][0] == "pwrite64" for i in log)
        start = told + 1


def test_the_log_of_a_run_is_synced_when_it_is_closed(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from insclr.tracking import Tracker
tracker = Tracker(Path({str(tmp_path)!r}))
tracker.step(1, 1, loss=0.5)
tracker.close()
"""
    calls = calls_of(code, tmp_path / "log")
    written = place(calls, ("write",), "metrics.jsonl>")
    assert place(calls, SYNCS, "metrics.jsonl>", written)
