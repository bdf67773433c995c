"""The server in a process of its own, on a free port of this machine."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

_FOLDERS = [str(Path(__file__).parents[1])]
_CODE = """
import json, sys
sys.path[:0] = json.loads(sys.argv[3])
from pathlib import Path
from helpers.histogram_describer import HistogramDescriber
from insclr.store import open_store
from insclr.web.served import ServedStore
from insclr.web.server import serve
from insclr.web.settings import ServeOptions
store = ServedStore("Search", open_store(sys.argv[1]), HistogramDescriber())
serve([store], ServeOptions(**json.loads(sys.argv[2])))
"""


class Server:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, temporary: Path | None = None) -> None:
        """`temporary` is where the process writes temporary files, if it has a folder of its own."""
        self.process = process
        self._temporary = temporary
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def metric(self, name: str) -> float:
        """A number of /metrics."""
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
            if line.startswith(name):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name}")

    def memory(self) -> int:
        """Resident bytes of the server and its decoders."""
        return sum(_resident(pid) for pid in (self.process.pid, *_children(self.process.pid)))

    def own_memory(self) -> int:
        """Resident bytes of the server alone."""
        return _resident(self.process.pid)

    def descriptors(self) -> int:
        """Files and connections that the server has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def temporary_files(self) -> int:
        """Files in the folder for temporary files, and deleted ones that the server has open."""
        opened = Path(f"/proc/{self.process.pid}/fd").iterdir()
        deleted = sum(os.path.lexists(one) and str(one.readlink()).endswith(" (deleted)") for one in opened)
        return deleted + (len(list(self._temporary.rglob("*"))) if self._temporary else 0)

    def decoders(self) -> list[int]:
        """The processes that decode."""
        return _children(self.process.pid)

    @contextmanager
    def decoder_peaks(self) -> Iterator[dict[int, int]]:
        """The most bytes that each process that decodes held at once, looked at every few milliseconds."""
        peaks: dict[int, int] = {}
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.005):
                for pid in self.decoders():
                    peaks[pid] = max(peaks.get(pid, 0), _peak(pid))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield peaks
        finally:
            over.set()
            thread.join()

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> float:
        """Tell it to end; gives the seconds it took."""
        began = time.monotonic()
        self.process.send_signal(sent)
        self.process.wait(30)
        return time.monotonic() - began


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(store: Path, **settings: Any) -> Iterator[Server]:
    """Serve a store made by `make_store`; its messages go to the `log` where there is one."""
    log: Path | None = settings.pop("log", None)
    port = free_port()
    command: list[str | Path] = [
        sys.executable,
        "-c",
        _CODE,
        store,
        json.dumps({"port": port, **settings}),
        json.dumps(_FOLDERS),
    ]
    stderr = None if log is None else log.open("w")
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=stderr)
    server = Server(process, port)
    try:
        for _ in range(300):
            try:
                httpx.get(f"{server.url}/healthz")
                break
            except httpx.TransportError:
                assert process.poll() is None, "the server ended at once"
                time.sleep(0.1)
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has ended
            found += map(int, (task / "children").read_text().split())
    return found


def _peak(pid: int) -> int:
    """The kernel's own record of the most resident bytes, which a process keeps until it ends."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) * 1024 if found else 0


def _resident(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except FileNotFoundError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
