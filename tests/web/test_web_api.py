"""The API: searching, what it refuses and how, and that nothing but indexed files is served."""

import io
import os
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from helpers.clients import client_of
from helpers.drawn_store import make_store
from helpers.histogram_describer import HistogramDescriber
from insclr.errors import UserError
from insclr.store import StoreUnavailable
from insclr.web.served import ServedStore
from insclr.web.server import open_served, serve
from insclr.web.settings import ServeOptions, draw_qr_code


def picture_of(collection: ServedStore, path: str) -> bytes:
    return (collection.store.info.root / path).read_bytes()


def row_of(collection: ServedStore, path: str) -> int:
    return collection.store.rows_by_path()[path].id


def upload(content: bytes, name: str = "query.png") -> dict:
    return {"pictures": (name, content, "image/png")}


def found(answer: object) -> list[str]:
    return [match["path"] for match in answer.json()["matches"]]  # type: ignore[attr-defined]


def test_an_uploaded_picture_finds_itself_and_its_thing(client: TestClient, collection: ServedStore) -> None:
    answer = client.post("/api/search", files=upload(picture_of(collection, "2/3.png")), data={"top": 8})
    assert answer.status_code == 200
    assert found(answer)[0] == "2/3.png"
    assert {path.split("/")[0] for path in found(answer)[:5]} == {"2"}
    first, *others = answer.json()["matches"]
    assert first["similarity"] == pytest.approx(1, abs=1e-3)
    assert (first["likely"], first["band"], first["is_query"]) == (True, "sure", True)
    assert len(others) == 8
    assert not any(one["is_query"] for one in others)
    assert {one["band"] for one in others} <= {"sure", "maybe", "other"}
    assert all(isinstance(one["copies"], list) for one in others)
    assert first["columns"] == {"thing": "2", "year": "2019"}
    assert answer.json()["likely"] == sum(one["likely"] for one in others)


def test_a_row_that_searches_is_marked_and_not_counted(client: TestClient, collection: ServedStore) -> None:
    ref = f"0:{row_of(collection, '4/0.png')}"
    answer = client.post("/api/search", data={"rows": ref, "top": 5})
    own, *others = answer.json()["matches"]
    assert (own["path"], own["is_query"]) == ("4/0.png", True)
    assert [one["is_query"] for one in others] == [False] * 5
    assert others[0]["path"].startswith("4/")


def test_a_box_searches_by_a_part(client: TestClient, collection: ServedStore) -> None:
    both = Image.new("RGB", (96, 48))
    for side, path in enumerate(("1/0.png", "3/0.png")):
        both.paste(Image.open(collection.store.info.root / path), (48 * side, 0))
    written = io.BytesIO()
    both.save(written, "PNG")
    for unit, box, path in (("pixels", "0,0,48,48", "1/0.png"), ("fraction", "0.5,0,1,1", "3/0.png")):
        data = {"boxes": box, "box_unit": unit, "top": 1}
        assert found(client.post("/api/search", files=upload(written.getvalue()), data=data)) == [path]


def test_a_box_on_a_row_may_find_its_own_picture(client: TestClient, collection: ServedStore) -> None:
    ref = f"0:{row_of(collection, '5/1.png')}"
    data = {"rows": ref, "row_boxes": "0,0.3,1,1", "box_unit": "fraction", "top": 8}
    assert "5/1.png" in found(client.post("/api/search", data=data))


def test_several_queries_are_one_query_set(client: TestClient, collection: ServedStore) -> None:
    refs = [f"0:{row_of(collection, path)}" for path in ("0/0.png", "1/0.png")]
    answer = client.post("/api/search", data={"rows": refs, "top": 10, "aggregate": "max"})
    things = {path.split("/")[0] for path in found(answer)[:8]}
    assert {"0", "1"} <= things
    vectors = collection.store.descriptors([int(ref[2:]) for ref in refs])
    mean = client.post("/api/search", data={"rows": refs, "top": 1}).json()["matches"][0]
    row = collection.store.descriptors([int(mean["ref"][2:])])[0]
    assert mean["similarity"] == pytest.approx(float((vectors @ row).mean()), abs=2e-3)


def test_filters_scores_and_reranking_are_those_of_the_search(
    client: TestClient, collection: ServedStore
) -> None:
    files = upload(picture_of(collection, "0/0.png"))
    answer = client.post("/api/search", files=files, data={"where": "thing = 3 and year > 2025"})
    assert sorted(found(answer)) == ["3/2.png", "3/3.png", "3/4.png", "3/5.png", "3/6.png", "3/7.png"]
    answer = client.post("/api/search", files=files, data={"min_score": 0.999})
    assert found(answer) == ["0/0.png"]
    answer = client.post("/api/search", files=files, data={"rerank": "diffusion", "top": 5})
    assert answer.json()["reranked"]


def test_before_and_after_are_two_stores_of_the_same_pictures(tmp_path: Path) -> None:
    after, before = make_store(tmp_path, "After"), make_store(tmp_path, "Before")
    with client_of(after, before) as client:
        assert [one["title"] for one in client.get("/api/about").json()["stores"]] == ["After", "Before"]
        ref = f"0:{row_of(after, '0/0.png')}"
        answer = client.post("/api/search", data={"rows": ref, "store": 1, "top": 3})
        assert all(match["ref"].startswith("1:") for match in answer.json()["matches"])
        assert [one["path"] for one in answer.json()["matches"] if one["is_query"]] == ["0/0.png"]


def test_about_tells_what_there_is(client: TestClient) -> None:
    about = client.get("/api/about").json()
    (store,) = about["stores"]
    assert (store["pictures"], store["columns"], store["name"]) == (48, ["thing", "year"], "store")
    assert 0 < store["cutoff"] < 1
    assert "diffusion" in about["rerankers"]
    assert len(client.get("/api/stores/0/sample?count=7").json()) == 7


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("/home/museum/runs/coins/model.safetensors@1a2b", "coins"),
        ("/home/museum/coins.safetensors", "coins.safetensors"),
        ("pretrained:efficientnet_lite0", "pretrained:efficientnet_lite0"),
    ],
)
def test_about_keeps_to_itself_where_the_model_lies(
    model: str, shown: str, collection: ServedStore, client: TestClient
) -> None:
    collection.store.info = replace(collection.store.info, model=model)
    answer = client.get("/api/about")
    assert answer.json()["stores"][0]["model"] == shown
    assert "museum" not in answer.text


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes that claims to be huge."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"0"))
        + chunk(b"IEND", b"")
    )


PNG = io.BytesIO()
Image.new("RGB", (50, 40), "red").save(PNG, "PNG")
GOOD = PNG.getvalue()


@pytest.mark.parametrize(
    ("content", "data", "status", "says"),
    [
        (b"hello, I am text", {}, 415, "not an image"),
        (b"", {}, 415, "empty file"),
        (GOOD[:60], {}, 415, "cannot be used"),
        (bomb(10_000, 10_000), {}, 413, "megapixels"),
        (bomb(60_000, 60_000), {}, 413, "megapixels"),
        (GOOD, {"boxes": "10,10,10,30"}, 422, "empty"),
        (GOOD, {"boxes": "30,10,10,20"}, 422, "empty"),
        (GOOD, {"boxes": "60,50,90,80"}, 422, "outside"),
        (GOOD, {"boxes": "-30,-20,-1,-1"}, 422, "outside"),
        (GOOD, {"boxes": "1,2,3"}, 422, "not a box"),
        (GOOD, {"boxes": "0,0,nan,inf"}, 422, "not finite"),
        (GOOD, {"boxes": ["", "1,1,2,2"]}, 422, "2 boxes for 1"),
        (GOOD, {"where": "colour = red"}, 400, "no column 'colour'"),
        (GOOD, {"where": "thing = 'open"}, 400, "quote"),
        (GOOD, {"rerank": "magic"}, 400, "choose one of diffusion"),
        (GOOD, {"top": 0}, 422, "greater"),
        (GOOD, {"min_score": "nan"}, 422, "finite"),
        (GOOD, {"store": 1}, 404, "no store 1"),
        (GOOD, {"rows": "0:999999"}, 404, "no row"),
        (GOOD, {"rows": "../../etc/passwd"}, 422, "names no row"),
        (GOOD, {"rows": "0:٣"}, 422, "names no row"),
        (GOOD, {"rows": ["0:1"] * 40}, 422, "1 to 16 queries"),
        (None, {}, 422, "1 to 16 queries"),
    ],
)
def test_bad_requests_get_the_right_status_and_the_server_stays_up(
    client: TestClient, content: bytes | None, data: dict, status: int, says: str
) -> None:
    answer = client.post("/api/search", files=None if content is None else upload(content), data=data)
    assert answer.status_code == status, answer.text
    assert says in str(answer.json()["detail"])
    assert client.get("/api/about").status_code == 200


def test_uploads_are_limited_in_bytes_announced_or_not(collection: ServedStore) -> None:
    with client_of(collection, max_bytes=10_000) as client:
        assert client.post("/api/search", files=upload(os.urandom(20_000))).status_code == 413

        def endless() -> Iterator[bytes]:
            yield b'--x\r\nContent-Disposition: form-data; name="pictures"; filename="a"\r\n\r\n'
            for _ in range(100):
                yield b"0" * 1000

        headers = {"content-type": "multipart/form-data; boundary=x"}
        answer = client.post("/api/search", content=endless(), headers=headers)
        assert answer.status_code == 413
        assert "MB" in answer.json()["detail"]
        assert client.get("/api/about").status_code == 200


def test_a_large_picture_passes_when_it_is_allowed(collection: ServedStore) -> None:
    written = io.BytesIO()
    Image.new("RGB", (3000, 2000), "red").save(written, "JPEG")
    with client_of(collection, max_pixels=5_000_000) as client:
        assert client.post("/api/search", files=upload(written.getvalue())).status_code == 413
    with client_of(collection) as client:
        assert client.post("/api/search", files=upload(written.getvalue())).status_code == 200


def test_thumbnails_are_made_once(client: TestClient, collection: ServedStore) -> None:
    Image.new("RGB", (900, 600), "blue").save(collection.store.info.root / "0" / "0.png")
    address = f"/api/stores/0/rows/{row_of(collection, '0/0.png')}/thumbnail"
    first = client.get(address)
    assert first.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(first.content)).size == (320, 213)
    (cached,) = (collection.store.cache / "thumbnails").rglob("*.jpg")
    before = cached.stat().st_mtime_ns
    assert client.get(address).content == first.content
    assert cached.stat().st_mtime_ns == before
    again = client.get(address, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_preview_is_a_new_jpeg_without_the_camera_s_data(
    client: TestClient, collection: ServedStore
) -> None:
    exif = Image.Exif()
    exif[0x010F] = "secret camera"
    Image.new("RGB", (60, 30), "blue").save(collection.store.info.root / "0" / "0.png", exif=exif)
    shown = client.get(f"/api/stores/0/rows/{row_of(collection, '0/0.png')}/picture").content
    assert b"secret" not in shown
    assert Image.open(io.BytesIO(shown)).size == (60, 30)


def test_a_vanished_file_is_a_404_and_its_row_can_still_be_searched_from(
    client: TestClient, collection: ServedStore
) -> None:
    row = row_of(collection, "1/1.png")
    assert client.get(f"/api/stores/0/rows/{row}/thumbnail").status_code == 200
    (collection.store.info.root / "1" / "1.png").unlink()
    for kind in ("thumbnail", "picture"):
        answer = client.get(f"/api/stores/0/rows/{row}/{kind}")
        assert answer.status_code == 404
        assert "not found" in answer.json()["detail"]
    assert client.post("/api/search", data={"rows": f"0:{row}"}).status_code == 200
    boxed = client.post("/api/search", data={"rows": f"0:{row}", "row_boxes": "0,0,9,9"})
    assert boxed.status_code == 404


@pytest.mark.parametrize(
    "address",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
        "/api/stores/0/rows/../../../etc/passwd/picture",
        "/api/stores/0/rows/%2e%2e%2fsecret/picture",
        "/api/stores/0/rows/-1/picture",
        "/api/stores/0/rows/9223372036854775808/picture",
        "/api/stores/7/rows/1/picture",
        "/rows.sqlite",
    ],
)
def test_only_indexed_files_are_served(client: TestClient, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code in (404, 422)
    assert b"import" not in answer.content


def test_a_token_is_asked_for_and_kept_in_a_cookie(collection: ServedStore) -> None:
    with client_of(collection, token="a-long-token") as client:
        for address in ("/", "/api/about", "/static/app.js", "/docs"):
            assert client.get(address).status_code == 401
        assert client.get("/?token=wrong").status_code == 401
        assert client.get("/api/about", headers={"authorization": "Bearer a-long-token"}).status_code == 200
        opened = client.get("/?token=a-long-token")
        assert opened.status_code == 200
        assert "token" not in str(opened.url)
        assert client.get("/api/about").status_code == 200
        assert "HttpOnly" in opened.history[0].headers["set-cookie"]


def test_another_site_s_name_is_refused(collection: ServedStore) -> None:
    with client_of(collection) as client:
        assert client.get("/api/about", headers={"host": "evil.example"}).status_code == 421
        assert client.get("/api/about", headers={"host": "localhost:8000"}).status_code == 200
    with client_of(collection, host="0.0.0.0", insecure=True) as client:
        assert client.get("/api/about", headers={"host": "my-machine:8000"}).status_code == 200


def test_pages_need_no_other_host(client: TestClient) -> None:
    for address in (
        "/",
        "/docs",
        "/static/style.css",
        "/static/docs.css",
        "/static/app.js",
        "/static/docs.js",
    ):
        answer = client.get(address)
        assert answer.status_code == 200
        assert "https://" not in answer.text
        assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "/api/search" in client.get("/openapi.json").json()["paths"]


def test_a_store_that_does_not_answer_is_a_503(
    client: TestClient, collection: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise StoreUnavailable("Milvus at http://x does not answer")

    monkeypatch.setattr(collection.store, "search", unreachable)
    answer = client.post("/api/search", files=upload(GOOD))
    assert answer.status_code == 503
    assert "Milvus" in answer.json()["detail"]
    assert client.get("/api/about").status_code == 200


def test_many_searches_at_once_give_the_same_answers(client: TestClient, collection: ServedStore) -> None:
    refs = [f"0:{one}" for one in collection.store.ids()[:8]]
    alone = [found(client.post("/api/search", data={"rows": ref})) for ref in refs]
    together: dict[int, list[str]] = {}

    def ask(i: int) -> None:
        together[i] = found(client.post("/api/search", data={"rows": refs[i % 8]}))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(32)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert all(together[i] == alone[i % 8] for i in range(32))


def test_new_rows_show_up_without_a_restart(
    client: TestClient, collection: ServedStore, tmp_path: Path
) -> None:
    from helpers.histogram_describer import draw
    from insclr.data.images import list_images
    from insclr.retrieval.index import index_images

    client.post("/api/search", files=upload(GOOD))
    draw(tmp_path / "images" / "77" / "0.png", 77, 0)
    index_images(collection.describer, list_images(tmp_path / "images"), tmp_path / "store")
    for _ in range(100):
        answer = client.post("/api/search", files=upload(picture_of(collection, "77/0.png")), data={"top": 1})
        if found(answer)[0] == "77/0.png":
            return
        threading.Event().wait(0.05)
    pytest.fail("the new picture was never found")


def test_mistakes_in_starting_are_reported(collection: ServedStore, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no store at"):
        open_served([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="one store or two"):
        open_served([])
    with pytest.raises(UserError, match="port"):
        ServeOptions(port=99999)
    with pytest.raises(UserError, match="8 characters"):
        ServeOptions(token="short")
    announced: list[str] = []
    with pytest.raises(UserError, match=r"cannot listen on 192\.0\.2\.1:1"):
        serve(
            [collection],
            ServeOptions(host="192.0.2.1", port=1, insecure=True),
            lambda: announced.append("open"),
        )
    assert announced == []  # the address of a closed port is not printed
    other = HistogramDescriber()
    other.fingerprint = "ffff"
    with pytest.raises(UserError, match="another model"):
        ServedStore("x", collection.store, other)


def test_the_address_to_open() -> None:
    assert ServeOptions().address == "http://127.0.0.1:8000/"
    assert ServeOptions(host="::1", token="12345678").address == "http://[::1]:8000/"
    everywhere = ServeOptions(host="0.0.0.0", token="12345678").address
    assert re.fullmatch(r"http://\d+\.\d+\.\d+\.\d+:8000/", everywhere)
    assert "0.0.0.0" not in everywhere
    assert draw_qr_code(everywhere).count("\n") > 10
    assert np.all([ServeOptions(host=one).local for one in ("127.0.0.1", "localhost", "::1")])


def test_uploads_do_not_keep_searches_by_row_with_local_evidence_waiting(
    collection: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("insclr.web.api.uses_local", lambda *_: True)
    client = client_of(collection)
    uploads = client.app.state.served.uploads  # type: ignore[attr-defined]
    uploads.take(uploads.size)
    row = f"0:{row_of(collection, '0/0.png')}"
    assert client.post("/api/search", data={"rows": row}).status_code == 200
    assert client.post("/api/search", data={"rows": row, "row_boxes": "0,0,9,9"}).status_code == 503
