"""A real Milvus gRPC server for the tests of the cluster store: the one milvus-lite brings."""

import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = Path(sys.executable).with_name("milvus-lite")
    if not program.exists() and shutil.which("milvus-lite") is None:
        pytest.skip("milvus-lite is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "server", "--host", "127.0.0.1", "--port", str(port)]
    folder = tmp_path_factory.mktemp("milvus")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([*command, "--data-dir", folder / "data"], stdout=log, stderr=log)
        try:
            _wait_for(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(10)


@pytest.fixture
def milvus_uri(milvus_server: str) -> str:
    """A collection of its own for every test."""
    return f"{milvus_server}/t{uuid.uuid4().hex[:12]}"


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(200):
        if server.poll() is not None:
            pytest.fail("the Milvus server ended at once")
        with socket.socket() as knock:
            if knock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the Milvus server does not listen")
