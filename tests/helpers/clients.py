"""Clients of the API that need no network."""

from typing import Any

from fastapi.testclient import TestClient

from insclr.web.served import ServedStore
from insclr.web.server import create_app
from insclr.web.settings import ServeOptions


def client_of(*collections: ServedStore, base: str = "http://127.0.0.1", **settings: Any) -> TestClient:
    """A client of these stores, asked for at the address `base`; a fault of the server is an answer of 500."""
    app = create_app(collections, ServeOptions(**settings))
    return TestClient(app, base_url=base, raise_server_exceptions=False)
