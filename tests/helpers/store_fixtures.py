"""Stores for the tests: a folder, a small Milvus server (milvus-lite), and a real one where it is installed."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.milvus_servers import LiteServer, RealServer
from helpers.store_info import INFO
from insclr.store import Store, create_store


@pytest.fixture(scope="session")
def lite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = LiteServer(tmp_path_factory.mktemp("milvus"))
    yield server.address
    server.stop()


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = RealServer(tmp_path_factory.mktemp("real-milvus"))
    yield server.address
    server.stop()


@pytest.fixture
def lite_uri(lite_server: str) -> str:
    """A collection of its own for every test."""
    return f"{lite_server}/t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def real_uri(real_server: str) -> str:
    """A collection of its own for every test, in a real Milvus server."""
    return f"{real_server}/t{uuid.uuid4().hex[:12]}"


_MILVUS = ["lite", pytest.param("real", marks=pytest.mark.slow)]


@pytest.fixture(params=_MILVUS)
def milvus_uri(request: pytest.FixtureRequest) -> str:
    """The address of a cluster store: every test with it runs on both servers."""
    return str(request.getfixturevalue(f"{request.param}_uri"))


@pytest.fixture(params=["local", *_MILVUS])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store's address: every test with it runs on each kind of store."""
    if request.param == "local":
        return str(tmp_path / "store")
    return str(request.getfixturevalue(f"{request.param}_uri"))


@pytest.fixture
def store(uri: str) -> Iterator[Store]:
    """An empty store, of each kind."""
    store = create_store(uri, INFO)
    yield store
    store.close()
