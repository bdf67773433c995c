"""Milvus servers for the tests of the cluster store: the one of milvus-lite, and the real one of PyPI's `milvus`.

The set-up of `make test` installs the real one where it can; elsewhere INSCLR_MILVUS_SERVER names its program,
`milvus-server`. It needs 300 MB of disk once for all tests, and 200 MB of memory and as much disk for each server.
"""

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

# Milliseconds between two looks at what is to be loaded, so that collections are ready sooner.
_PROMPT = ("queryCoord.checkInterval", "queryCoord.distPullInterval", "queryCoord.checkHandoffInterval")


class LiteServer:
    """The gRPC server of milvus-lite on a folder and a port of its own."""

    def __init__(self, folder: Path) -> None:
        program = Path(sys.executable).with_name("milvus-lite")
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        command: list[str | Path] = [program, "server", "--host", "127.0.0.1", "--port", str(self.port)]
        self._process = start([*command, "--data-dir", folder / "data"], folder / "log")
        wait_for(self.port, self._process)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)


class RealServer:
    """A Milvus standalone server on a folder and ports of its own, which can be killed and started again."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self._folder = folder
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        program = real_program()
        # All tests share the unpacked program: unpacking takes 5 seconds and 370 MB.
        unpacked = program.parents[1] / "milvus-unpacked"
        unpacked.mkdir(exist_ok=True)
        (folder / "bin").symlink_to(unpacked)
        settings = dict.fromkeys(_PROMPT, 100) | {"proxy_port": self.port} | settings
        with (unpacked / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.run(
                [program.with_name("python"), "-c", _SET_UP, folder, json.dumps(settings)], check=True
            )
        clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        # Two servers on one machine would meet at etcd's own ports.
        (folder / "etcd.yaml").write_text(
            f"listen-client-urls: {clients}\nadvertise-client-urls: {clients}\nlisten-peer-urls: {peers}\n"
            f"initial-advertise-peer-urls: {peers}\ninitial-cluster: default={peers}\ndata-dir: {folder / 'etcd'}\n"
        )
        self._health = free_port()
        self._environment = {
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(self._health),
            "MILVUS_RUN_DIR": str(folder / "run"),
            "LD_LIBRARY_PATH": str(unpacked),
            "ETCD_CONFIG_PATH": str(folder / "etcd.yaml"),
        }
        try:
            self.start()
        except pytest.fail.Exception as error:
            # Not every machine runs its program; one that it has run on must start it again.
            pytest.skip(f"{error}; the end of its log: {(folder / 'log').read_text(errors='replace')[-500:]}")

    def start(self) -> None:
        command: list[str | Path] = [self._folder / "bin" / "milvus", "run", "standalone"]
        self._process = start(
            command, self._folder / "log", cwd=self._folder, env=os.environ | self._environment
        )
        wait_for(self.port, self._process)
        for _ in range(1200):  # it listens before it can answer
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{self._health}/healthz", timeout=5) as answer,
            ):
                if b"OK" in answer.read():
                    return
            time.sleep(0.1)
        pytest.fail("the Milvus server does not get ready")

    def kill(self) -> None:
        """As a power cut would."""
        self._process.kill()
        self._process.wait(10)

    stop = kill  # stopping in order takes long, and nobody needs the data


# As `milvus-server` begins, but for ports that are still in use by the last connections of a killed server.
_SET_UP = """
import json, sys, milvus
server = milvus.default_server
server.set_base_dir(sys.argv[1])
for name, value in json.loads(sys.argv[2]).items():
    server.config.set(name, value)
server.config.resolve()
milvus._initialize_data_files(sys.argv[1])
"""


def real_program() -> Path:
    """The program of the real server; skips the test where there is none."""
    named = os.environ.get("INSCLR_MILVUS_SERVER", "")
    found = Path(named) if named else Path(sys.executable).with_name("milvus-server")
    if not found.exists():
        pytest.skip(
            "there is no Milvus server: pip install milvus, or set INSCLR_MILVUS_SERVER to its program"
        )
    return found.absolute()


def start(command: "list[str | Path]", log: Path, **options: Any) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, **options)


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
