"""Work that decodes takes its turn: so many requests at once, the others hear 503 and searches by rows go on."""

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.clients import client_of
from helpers.drawn_store import make_store
from helpers.running_server import running
from insclr.web.served import ServedStore


def row_of(collection: ServedStore, path: str) -> int:
    return collection.store.rows_by_path()[path].id


@pytest.mark.parametrize("settings", [{"decoders": 0, "decode_seconds": 0.1}, {"max_uploads": 0}])
def test_a_row_of_the_other_store_takes_its_turn(tmp_path: Path, settings: dict[str, Any]) -> None:
    after, before = (make_store(tmp_path / name, things=2, views=2) for name in ("after", "before"))
    with client_of(after, before, **settings) as client:
        answer = client.post("/api/search", data={"rows": f"1:{row_of(before, '0/0.png')}", "store": 0})
        assert answer.status_code == 503, answer.text
        own = client.post("/api/search", data={"rows": f"0:{row_of(after, '0/0.png')}", "store": 0})
        assert own.status_code == 200


def test_pictures_to_look_at_wait_for_their_turn_and_hold_no_thread(tmp_path: Path) -> None:
    made = make_store(tmp_path, things=2, views=2)
    row = row_of(made, "0/0.png")
    with client_of(made, max_previews=0, decode_seconds=0.3) as client:
        began = time.monotonic()
        for kind in ("thumbnail", "picture"):
            answer = client.get(f"/api/stores/0/rows/{row}/{kind}")
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
        assert time.monotonic() - began >= 0.6
    with client_of(made) as client:
        assert client.get(f"/api/stores/0/rows/{row}/thumbnail").status_code == 200
    with client_of(made, max_previews=0, decode_seconds=0.3) as client:  # one that is kept needs no turn
        assert client.get(f"/api/stores/0/rows/{row}/thumbnail").status_code == 200


def test_pictures_that_take_long_leave_searches_their_threads(tmp_path: Path) -> None:
    made = make_store(tmp_path, things=8, views=6)
    rows = [row.id for row in made.store.rows_by_path().values()]
    made.store.close()
    with (
        running(tmp_path / "store", decode_seconds=20.0, decoders=0) as server,
        ThreadPoolExecutor(44) as pool,
    ):
        waiting = [
            pool.submit(_ask, f"{server.url}/api/stores/0/rows/{row}/{kind}", timeout=4)
            for kind, row in zip(cycle(("picture", "thumbnail")), rows[:44], strict=False)
        ]
        time.sleep(1.5)
        began = time.monotonic()
        found = httpx.post(f"{server.url}/api/search", data={"rows": f"0:{rows[0]}"}, timeout=20)
        assert found.status_code == 200
        assert time.monotonic() - began < 10
        assert all(one.result() is None for one in waiting)
        # Who gave up makes room for others.
        until = time.monotonic() + 13  # before their own time of 20 s is over
        while server.metric("insclr_previews_in_progress") and time.monotonic() < until:
            time.sleep(0.1)
        assert server.metric("insclr_previews_in_progress") == 0


def _ask(url: str, timeout: float) -> httpx.Response | None:
    try:
        return httpx.get(url, timeout=timeout)
    except httpx.TimeoutException:
        return None
