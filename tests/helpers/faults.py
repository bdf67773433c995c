"""Commands in which one system call fails: the n-th write, fsync, open, rename and so on below a folder.

A process with `faults.c` preloaded has done the long imports and forks for every command.
"""

import contextlib
import ctypes
import errno
import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

KINDS = ("write", "fsync", "open", "rename", "unlink", "mmap", "truncate", "read", "mkdir")
ERRORS = {
    "write": (errno.ENOSPC, errno.EIO, 0),  # 0: only half of the bytes are written
    "fsync": (errno.EIO,),
    "open": (errno.EMFILE, errno.EACCES, errno.EINTR),
    "rename": (errno.EIO, errno.EACCES),
    "unlink": (errno.EIO, errno.EACCES),
    "mmap": (errno.ENOMEM,),
    "truncate": (errno.EIO, errno.ENOSPC),
    "read": (errno.EIO, errno.EINTR),
    "mkdir": (errno.ENOSPC, errno.EACCES),
}
_TIMEOUT = 120.0  # seconds of a command
# What a person does on the page; the last entry of the journal that it writes has the same name.
ACTS = ("answer", "skip", "judge", "name", "remove", "merge", "hide", "undo")
_PRELOADED = ("insclr.cli.training", "insclr.jobs.train", "insclr.retrieval.index", "insclr.feedback.names")


@dataclass(frozen=True)
class Fault:
    """The `number`-th call of a kind fails, and all after it where the disk is full; 0: none, all are counted."""

    kind: str = "write"
    number: int = 0
    error: int = errno.EIO

    def __str__(self) -> str:
        name = errno.errorcode.get(self.error, "short") if self.error else "short"
        return f"{self.kind} {self.number} {name}"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int  # -1: it did not
    said: str  # on stderr
    calls: dict[str, int]  # by kind; of the fault's kind alone where there was one


class FaultyProcess:
    """Runs commands of insclr whose system calls fail."""

    def __init__(self, scratch: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None or not sys.platform.startswith("linux"):
            pytest.skip("faults are injected with a C compiler on Linux: install gcc")
        self.shim = scratch / "faults.so"
        source = Path(__file__).with_name("faults.c")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", self.shim, source, "-ldl"], check=True
        )
        variables = {
            "LD_PRELOAD": str(self.shim),
            "OMP_NUM_THREADS": "1",
            "INSCLR_CACHE": str(scratch / "engines"),
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, self.shim, scratch / "stderr"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | variables,
            text=True,
        )

    def run(self, folder: Path, fault: Fault, *arguments: str | Path) -> Ended:
        """Run a command; only calls on files below the folder count."""
        job = {
            "folder": str(folder),
            "fault": [KINDS.index(fault.kind), fault.number, fault.error],
            "arguments": [str(one) for one in arguments],
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return Ended(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def faulty_process(scratch: Path) -> Iterator[FaultyProcess]:
    """A process to run commands in."""
    process = FaultyProcess(scratch)
    try:
        yield process
    finally:
        process.close()


def _serve(shim: ctypes.CDLL, log: Path) -> None:
    answers = os.fdopen(os.dup(1), "w")
    modules = log.with_name("modules")
    for line in sys.stdin:
        job = json.loads(line)
        count = log.with_name("count")
        count.write_text("{}")
        gc.freeze()  # else the child copies the memory of all that is imported
        child = os.fork()
        if not child:
            _run(shim, job, log, count)
        status = _wait(child)
        for name in modules.read_text().split() if modules.exists() else ():
            with contextlib.suppress(Exception):
                importlib.import_module(name)  # the next ones need not wait for it
        modules.unlink(missing_ok=True)
        said = log.read_text(errors="replace")
        print(json.dumps([status, said, json.loads(count.read_text() or "{}")]), file=answers, flush=True)


def _wait(child: int) -> int:
    end = time.monotonic() + _TIMEOUT
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def _act(stores: list, options: Any, _: object) -> None:
    """In place of serving for ever: do what a person does on the page, and print what the server answers."""
    from starlette.testclient import TestClient

    from insclr.web.server import create_app

    client = TestClient(
        create_app(stores, options), base_url="http://127.0.0.1:8000/api", raise_server_exceptions=False
    )
    shown = {"fingerprint": stores[0].store.info.fingerprint}
    rows = [f"0:{id_}" for id_ in range(1, 9)]
    things = [one.id for one in stores[0].feedback.gallery().things]
    one, two = things[:2]
    bodies: dict[str, tuple[str, dict[str, object]]] = {
        "answer": ("teach/answer", shown | {"query": rows[0], "same": [rows[1]], "different": [rows[2]]}),
        "skip": ("teach/skip", shown | {"query": rows[3]}),
        "judge": (
            "teach/judge",
            shown
            | {"query": rows[0], "result": rows[1], "rank": 1, "model": shown["fingerprint"], "same": True},
        ),
        "name": (f"things/{one}/name", {"name": "another name"}),
        "remove": ("photos/remove", shown | {"refs": [rows[2]]}),
        "merge": (f"things/{one}/merge", {"into": two, "name": "one name"}),
        "hide": (f"things/{two}/hide", {"hidden": True}),
        "undo": ("undo", {}),
    }
    for act, (address, body) in bodies.items():
        answer = client.post(f"/stores/0/{address}", json=body)
        print("act", act, answer.status_code, answer.text[:200].replace("\n", " "))
    thumbnail = client.get("/stores/0/rows/1/thumbnail")
    print("act thumbnail", thumbnail.status_code)


def _run(shim: ctypes.CDLL, job: dict, log: Path, count: Path) -> None:
    import insclr.web.server
    from insclr.cli import main

    insclr.web.server.serve = _act  # type: ignore[assignment]

    with log.open("w") as opened, open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
        os.dup2(opened.fileno(), 1)
        os.dup2(opened.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w") for number in (1, 2))
    sys.argv = ["insclr", *job["arguments"]]
    status = 1
    shim.faults_set(*job["fault"], job["folder"].encode())
    try:
        main()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        calls = {kind: shim.faults_calls(number) for number, kind in enumerate(KINDS)}
        shim.faults_set(-1, 0, 0, b"/nowhere")
        count.write_text(json.dumps(calls))
        if not job["fault"][1]:
            log.with_name("modules").write_text("\n".join(sys.modules))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    for name in _PRELOADED:
        importlib.import_module(name)
    library = ctypes.CDLL(sys.argv[1])
    library.faults_set.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_char_p]
    library.faults_calls.restype = ctypes.c_long
    _serve(library, Path(sys.argv[2]))
