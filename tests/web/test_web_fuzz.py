"""Requests made up from the API's own description: the server answers all of them and never fails."""

from pathlib import Path

import pytest

from helpers.drawn_store import make_store
from helpers.fuzzed_api import request_every_operation
from insclr.web.server import create_app


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_no_request_makes_the_server_fail(tmp_path: Path, mode: str) -> None:
    request_every_operation(tmp_path, mode, examples=20)  # `make attack` tries more


def test_the_description_is_whole(tmp_path: Path) -> None:
    described = create_app([make_store(tmp_path, things=2, views=2)]).openapi()
    assert set(described["paths"]) == {
        "/api/about",
        "/api/search",
        "/api/why",
        "/api/stores/{store}/sample",
        "/api/stores/{store}/columns",
        "/api/stores/{store}/rows/{row}",
        "/api/stores/{store}/rows/{row}/thumbnail",
        "/api/stores/{store}/rows/{row}/picture",
        "/api/stores/{store}/rows/{row}/original",
        "/api/stores/{store}/things",
        "/api/stores/{store}/things/{thing}",
        "/api/stores/{store}/things/{thing}/name",
        "/api/stores/{store}/things/{thing}/proposals",
        "/api/stores/{store}/things/{thing}/merge",
        "/api/stores/{store}/things/{thing}/hide",
        "/api/stores/{store}/photos",
        "/api/stores/{store}/photos/{row}/thing",
        "/api/stores/{store}/photos/things",
        "/api/stores/{store}/photos/name",
        "/api/stores/{store}/photos/remove",
        "/api/stores/{store}/photos/different",
        "/api/stores/{store}/photos/zip",
        "/api/stores/{store}/history",
        "/api/stores/{store}/history/back",
        "/api/stores/{store}/history/again",
        "/api/stores/{store}/names.csv",
        "/api/stores/{store}/undo",
        "/api/stores/{store}/teach/screen",
        "/api/stores/{store}/teach/answer",
        "/api/stores/{store}/teach/skip",
        "/api/stores/{store}/teach/sample",
        "/api/stores/{store}/teach/judge",
        "/api/stores/{store}/teach/learn",
        "/api/stores/{store}/teach/learn/stop",
    }
    for methods in described["paths"].values():
        for operation in methods.values():
            assert operation["description"]
            assert {"200", "404", "503"} <= set(operation["responses"])
