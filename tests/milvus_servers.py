"""Milvus servers for the tests of the cluster store: the one of milvus-lite, and the real one of PyPI's `milvus`.

`make test` tries to install the real one into .milvus-venv; elsewhere INSCLR_MILVUS_SERVER names its program
(`milvus-server`). It needs about 400 MB of disk for its unpacked program and 300 MB of memory.
"""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Milliseconds between two looks at what is to be loaded: a collection is ready in 2 seconds less.
_PROMPT = ("queryCoord.checkInterval", "queryCoord.distPullInterval", "queryCoord.checkHandoffInterval")


class LiteServer:
    """The gRPC server of milvus-lite on a folder and a port of its own."""

    def __init__(self, folder: Path) -> None:
        program = Path(sys.executable).with_name("milvus-lite")
        if not program.exists():
            pytest.skip("milvus-lite is not installed")
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        command = [program, "server", "--host", "127.0.0.1", "--port", str(self.port)]
        self._process = start([*command, "--data-dir", folder / "data"], folder / "log")
        wait_for(self.port, self._process)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)


class RealServer:
    """A Milvus standalone server on a folder and ports of its own, which can be killed and started again."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._program = real_program()
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        peers, clients = free_port(), free_port()
        # Two servers on one machine would meet at etcd's own ports.
        self._etcd = folder / "etcd.yaml"
        self._etcd.write_text(
            f"listen-client-urls: http://127.0.0.1:{clients}\nadvertise-client-urls: http://127.0.0.1:{clients}\n"
            f"listen-peer-urls: http://127.0.0.1:{peers}\ninitial-advertise-peer-urls: http://127.0.0.1:{peers}\n"
            f"initial-cluster: default=http://127.0.0.1:{peers}\ndata-dir: {folder / 'etcd'}\n"
        )
        self._unpack()
        self.start()

    def start(self) -> None:
        os.environ.pop("METRICS_PORT", None)
        command = [self._program, "--data", self._folder, "--proxy-port", str(self.port), *self._options]
        for setting in _PROMPT:
            command += ["--extra-config", f"{setting}=100"]
        environment = os.environ | {"ETCD_CONFIG_PATH": str(self._etcd)}
        self._process = start(command, self._folder / "log", environment)
        wait_for(self.port, self._process)

    def kill(self) -> None:
        """As a power cut would: SIGKILL to the program and to what started it."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)

    stop = kill  # stopping in order takes long, and nobody needs the data

    def _unpack(self) -> None:
        """Let the servers of all tests share the unpacked program: it takes 5 seconds and 370 MB."""
        shared = self._program.parents[1] / "unpacked"
        shared.mkdir(exist_ok=True)
        (self._folder / "bin").symlink_to(shared)
        with (shared / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            python = self._program.with_name("python")
            unpack = f"import milvus; milvus._initialize_data_files({str(self._folder)!r})"
            subprocess.run([python, "-c", unpack], check=True)


def real_program() -> Path:
    """The program of the real server; skips the test where there is none."""
    told = os.environ.get("INSCLR_MILVUS_SERVER", "")
    found = Path(told) if told else ROOT / ".milvus-venv" / "bin" / "milvus-server"
    if not found.exists():
        pytest.skip(f"there is no Milvus server at {found}: `make .milvus-venv` installs it where it can")
    return found.absolute()


def start(
    command: "list[str | Path]", log: Path, environment: dict[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, start_new_session=True
        )


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        if server.poll() is not None:
            pytest.fail("the Milvus server ended at once")
        with socket.socket() as knock:
            if knock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the Milvus server does not listen")
