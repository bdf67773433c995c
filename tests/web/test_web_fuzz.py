"""Requests made up from the API's own description: whatever comes, the server never fails."""

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from helpers.drawn_store import make_store
from insclr.web.server import create_app

schemathesis = pytest.importorskip("schemathesis")
EXAMPLES = 20  # a kind of request; the campaign of `make attack` tries more


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_no_request_makes_the_server_fail(tmp_path: Path, mode: str) -> None:
    app = create_app([make_store(tmp_path, things=3, views=4)])
    local = {"host": "127.0.0.1"}
    description = schemathesis.openapi.from_asgi("/openapi.json", app, headers=local)
    statuses: Counter[int] = Counter()
    for found in description.get_all_operations():
        requests = found.ok().as_strategy(generation_mode=schemathesis.GenerationMode(mode))

        @settings(
            max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
        )
        @given(requests)
        def ask(case: object) -> None:
            response = case.call(headers=local)  # type: ignore[attr-defined]
            statuses[response.status_code] += 1
            assert response.status_code < 500, response.text

        with suppress(Unsatisfiable):  # a call that takes nothing cannot be called wrongly
            ask()
    assert statuses.total() >= 80
    assert statuses[200] > 0 if mode == "positive" else statuses[422] > 0


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
        "/api/stores/{store}/things/alone",
        "/api/stores/{store}/things/{thing}",
        "/api/stores/{store}/things/{thing}/name",
        "/api/stores/{store}/things/{thing}/remove",
        "/api/stores/{store}/things/{thing}/split",
        "/api/stores/{store}/things/{thing}/merge",
        "/api/stores/{store}/things/{thing}/hide",
        "/api/stores/{store}/undo",
        "/api/stores/{store}/teach/screen",
        "/api/stores/{store}/teach/answer",
        "/api/stores/{store}/teach/skip",
        "/api/stores/{store}/teach/sample",
        "/api/stores/{store}/teach/judge",
        "/api/stores/{store}/teach/learn",
    }
    for methods in described["paths"].values():
        for operation in methods.values():
            assert operation["description"]
            assert {"200", "404", "503"} <= set(operation["responses"])
