"""Requests made up from the API's own description."""

from collections import Counter
from contextlib import suppress
from pathlib import Path

import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from helpers.drawn_store import make_store
from insclr.web.server import create_app


def request_every_operation(folder: Path, mode: str, examples: int) -> None:
    """Send `examples` requests, valid ("positive") or not ("negative"), to each operation. The server never fails."""
    app = create_app([make_store(folder, things=3, views=4)])
    local = {"host": "127.0.0.1"}
    description = schemathesis.openapi.from_asgi("/openapi.json", app, headers=local)
    statuses: Counter[int] = Counter()
    for found in description.get_all_operations():
        requests = found.ok().as_strategy(  # type: ignore[union-attr]
            generation_mode=schemathesis.GenerationMode(mode)
        )

        @settings(
            max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
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
