"""Work that decodes takes its turn: so many requests at once, the others hear 503 and searches by rows go on."""

from pathlib import Path

import pytest
from drawn_store import make_store
from fastapi.testclient import TestClient

from insclr.web.served import ServedStore
from insclr.web.server import create_app
from insclr.web.settings import ServeSettings


def client_of(*collections: ServedStore, **settings: object) -> TestClient:
    app = create_app(collections, ServeSettings(**settings))  # type: ignore[arg-type]
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


def row_of(collection: ServedStore, path: str) -> int:
    return collection.store.rows_by_path()[path].id


@pytest.mark.parametrize("settings", [{"decoders": 0, "decode_seconds": 0.1}, {"max_uploads": 0}])
def test_a_row_of_the_other_store_takes_its_turn(tmp_path: Path, settings: dict[str, object]) -> None:
    after, before = (make_store(tmp_path / name, things=2, views=2) for name in ("after", "before"))
    with client_of(after, before, **settings) as client:
        answer = client.post("/api/search", data={"rows": f"1:{row_of(before, '0/0.png')}", "store": 0})
        assert answer.status_code == 503, answer.text
        own = client.post("/api/search", data={"rows": f"0:{row_of(after, '0/0.png')}", "store": 0})
        assert own.status_code == 200
