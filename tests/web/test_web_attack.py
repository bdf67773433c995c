"""Pictures, clients and connections that mean harm: the server answers others, stays small, and ends when told."""

import contextlib
import io
import logging
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from helpers.drawn_store import make_store
from helpers.histogram_describer import HistogramDescriber, draw_things
from helpers.made_files import jpeg_bytes, photo, repeated_scans
from helpers.running_server import Server, running
from insclr.data.images import list_images
from insclr.retrieval.index import index_images
from insclr.store import open_store
from insclr.web.request_checks import allowed_connections
from insclr.web.served import ServedStore
from insclr.web.server import create_app


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    make_store(folder, things=3, views=4)
    return folder / "store"


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[Server]:
    with running(store, decode_seconds=1.5, max_uploads=2, header_seconds=1.0, decoders=2) as server:
        yield server


@pytest.fixture(scope="module")
def impatient(store: Path) -> Iterator[Server]:
    """A server whose time limit is half of what the image of `slow` takes on a fast core."""
    with running(store, decode_seconds=0.6, max_uploads=2, decoders=2) as server:
        yield server


@pytest.fixture(scope="module")
def strict(store: Path) -> Iterator[Server]:
    with running(store, max_connections=5, body_seconds=1.0, max_server_bytes=3_000_000) as server:
        yield server


@pytest.fixture(scope="module")
def slow() -> bytes:
    """A picture that passes every check of its header and takes more than a second to decode: 60 scans of 62 MP."""
    return repeated_scans(Image.new("RGB", (7900, 7900), "grey"), 50)


def search(server: Server, *contents: bytes, timeout: float = 30.0) -> httpx.Response:
    files = [("pictures", (f"{i}.jpg", content, "image/jpeg")) for i, content in enumerate(contents)]
    return httpx.post(f"{server.url}/api/search", files=files, timeout=timeout)


def flat_png(side: int) -> bytes:
    stream = io.BytesIO()
    Image.new("P", (side, side)).save(stream, "PNG")
    return stream.getvalue()


def noise_png(side: int) -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((side, side), 80).save(stream, "PNG")
    return stream.getvalue()


def test_a_jpeg_of_thousands_of_scans_is_refused_at_once(server: Server) -> None:
    bomb = repeated_scans(Image.new("RGB", (4000, 4000), "grey"), 3000)
    began = time.monotonic()
    answer = search(server, bomb)
    assert (answer.status_code, time.monotonic() - began < 2) == (415, True)
    assert "too many scans" in answer.json()["detail"]


def test_a_picture_that_takes_too_long_is_given_up_and_costs_one_process(
    impatient: Server, slow: bytes
) -> None:
    killed = impatient.metric("insclr_decoders_killed_total")
    began = time.monotonic()
    answer = search(impatient, slow)
    assert answer.status_code == 415
    assert "takes too long" in answer.json()["detail"]
    assert time.monotonic() - began < 5
    assert impatient.metric("insclr_decoders_killed_total") == killed + 1
    assert search(impatient, jpeg_bytes(photo(64, 48))).status_code == 200


def test_many_flat_pictures_in_one_request_take_no_memory(server: Server) -> None:
    assert search(server, jpeg_bytes(photo(64, 48))).status_code == 200  # the network is loaded by now
    before = server.memory()
    picture = flat_png(7900)  # 62 megapixels in some kilobytes
    highest = before

    def watch() -> None:
        nonlocal highest
        while not done.is_set():
            highest = max(highest, server.memory())
            time.sleep(0.02)

    done = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    answer = search(server, *[picture] * 16)
    one = search(server, flat_png(5000))
    done.set()
    watcher.join()
    assert answer.status_code == 413
    assert "together" in answer.json()["detail"]
    assert one.status_code == 200
    assert highest - before < 700_000_000


def test_a_full_server_sends_retry_after_and_rows_are_still_found(impatient: Server, slow: bytes) -> None:
    statuses: list[int] = []
    retry: list[str] = []

    def ask() -> None:
        answer = search(impatient, slow)
        statuses.append(answer.status_code)
        retry.append(answer.headers.get("retry-after", ""))

    clients = [threading.Thread(target=ask) for _ in range(6)]
    for client in clients:
        client.start()
    time.sleep(0.3)
    row = httpx.get(f"{impatient.url}/api/stores/0/sample?count=1").json()[0]["ref"]
    began = time.monotonic()
    found = httpx.post(f"{impatient.url}/api/search", data={"rows": row}, timeout=10)
    assert (found.status_code, time.monotonic() - began < 1) == (200, True)
    for client in clients:
        client.join()
    assert sorted(statuses) == [415, 415, 503, 503, 503, 503]
    assert all(after for status, after in zip(statuses, retry, strict=True) if status == 503)


def test_work_is_dropped_when_the_client_has_gone(store: Path, slow: bytes) -> None:
    with running(store, decode_seconds=20.0, max_uploads=1) as server:
        with pytest.raises(httpx.ReadTimeout):
            search(server, slow, timeout=0.7)
        began = time.monotonic()
        while server.metric("insclr_uploads_in_progress") and time.monotonic() < began + 15:
            time.sleep(0.05)
        assert time.monotonic() - began < 2
        assert search(server, jpeg_bytes(photo(64, 48))).status_code == 200
        # Told to end in the midst of such work it ends, and its decoders with it.
        clients = [threading.Thread(target=lambda: _ignored(server, slow)) for _ in range(4)]
        for client in clients:
            client.start()
        time.sleep(0.5)
        decoders = server.decoders()
        assert server.stop() < 10
        assert not [pid for pid in decoders if _lives(pid)]
        for client in clients:
            client.join()


def _ignored(server: Server, content: bytes) -> None:
    with contextlib.suppress(httpx.TransportError):
        search(server, content)


def _lives(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and ") Z" not in status.read_text()


def test_connections_that_ask_nothing_are_closed(server: Server) -> None:
    silent = socket.create_connection(("127.0.0.1", server.port))
    slowly = socket.create_connection(("127.0.0.1", server.port))
    slowly.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    again = socket.create_connection(("127.0.0.1", server.port))
    again.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    time.sleep(0.3)
    again.sendall(b"GET /hea")  # a second request on the same connection, never finished
    began = time.monotonic()
    for connection in (silent, slowly, again):
        connection.settimeout(5)
        with connection:
            while connection.recv(4096):
                pass
    assert 0.3 < time.monotonic() - began < 3


def test_more_connections_than_allowed_are_closed_at_once(strict: Server) -> None:
    sources = [(f"127.0.0.{1 + number % 10}", 0) for number in range(20)]  # an address may hold four
    held = [socket.create_connection(("127.0.0.1", strict.port), source_address=source) for source in sources]
    closed, end = set[socket.socket](), time.monotonic() + 5
    while len(closed) < 12 and time.monotonic() < end:
        time.sleep(0.05)
        closed |= {connection for connection in held if _is_closed(connection)}
    assert len(closed) >= 12  # eight are always allowed
    for connection in held:
        connection.close()
    time.sleep(0.2)
    assert httpx.get(f"{strict.url}/healthz").status_code == 200


def _is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection on which it sends nothing."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    ("files", "allowed"), [(256, 156), (50, 8), (10_000, 500), (resource.RLIM_INFINITY, 500)]
)
def test_no_more_connections_than_the_process_may_open_files(
    files: int, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert allowed_connections(500) == allowed


def test_wrong_tokens_are_answered_one_after_the_other(store: Path) -> None:
    with running(store, token="the-right-token", wrong_token_seconds=0.3) as server:
        address, began = f"{server.url}/api/about", time.monotonic()
        with ThreadPoolExecutor(6) as pool:
            guesses = [
                pool.submit(httpx.get, address, headers={"authorization": f"Bearer wrong-token-{number}"})
                for number in range(6)
            ]
            right = httpx.get(address, headers={"authorization": "Bearer the-right-token"})
            others = time.monotonic() - began
            assert [one.result().status_code for one in guesses] == [401] * 6
        assert right.status_code == 200
        assert others < 1.5, "a guess delays those who have the token"
        assert time.monotonic() - began >= 6 * 0.3


def test_a_body_that_never_ends_is_given_up(strict: Server) -> None:
    with socket.create_connection(("127.0.0.1", strict.port)) as connection:
        head = "POST /api/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n"
        kind = "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
        connection.sendall((head + kind + "--x\r\n").encode())
        connection.settimeout(5)
        assert b" 408 " in connection.recv(200)
    assert strict.metric("insclr_request_bytes_in_progress") == 0


def test_an_upload_in_endless_chunks_is_refused(strict: Server) -> None:
    with socket.create_connection(("127.0.0.1", strict.port)) as connection:
        connection.sendall(
            b"POST /api/search HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
        )
        connection.settimeout(5)
        memory, sent, end = strict.own_memory(), 0, time.monotonic() + 10
        with contextlib.suppress(OSError):  # the server has closed the connection
            while sent < 200_000_000 and time.monotonic() < end:
                connection.sendall(b"100000\r\n" + bytes(0x100000) + b"\r\n")
                sent += 0x100000
        assert sent < 60_000_000, "the server reads on for ever"  # 25 MB, and what the system buffers
    assert strict.own_memory() < memory + 50_000_000
    assert strict.metric("insclr_request_bytes_in_progress") == 0


def test_requests_that_together_are_too_much_are_put_off(strict: Server) -> None:
    with socket.create_connection(("127.0.0.1", strict.port)) as connection:
        connection.sendall(
            b"POST /api/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2900000\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
            b'Content-Disposition: form-data; name="pictures"; filename="1.jpg"\r\n\r\n' + bytes(2_800_000)
        )
        time.sleep(0.2)
        answer = search(strict, b"x" * 1_000_000)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    time.sleep(0.3)
    assert search(strict, b"x" * 1_000_000).status_code == 415


def test_announced_bytes_that_do_not_come_stop_no_search(server: Server) -> None:
    """Six requests that announce 25 MB each, as much as all requests together may bring, and then stay silent."""
    head = (
        b"POST /api/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 25000000\r\n"
        b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
    )
    with contextlib.ExitStack() as held:
        for _ in range(7):
            connection = held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(head)
        time.sleep(0.2)
        assert httpx.post(f"{server.url}/api/search", data={"rows": "0:1"}).status_code == 200
        assert search(server, noise_png(400)).status_code == 200


def test_one_address_holds_at_most_half_of_the_connections(server: Server) -> None:
    with contextlib.ExitStack() as held:
        connections = [
            held.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(260)
        ]
        time.sleep(0.3)
        closed = sum(map(_is_closed, connections))
        assert 10 <= closed <= 20


@pytest.mark.parametrize(
    "beginning",
    [b"GET / HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"],
)
def test_silent_connections_make_room_for_those_who_ask(server: Server, beginning: bytes) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(300):
            connection = held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(beginning)
        began = time.monotonic()
        for _ in range(5):
            assert httpx.get(f"{server.url}/api/about", timeout=10).status_code == 200
        assert time.monotonic() - began < 5


def test_mistakes_of_clients_do_not_fill_the_log(store: Path, tmp_path: Path) -> None:
    with running(store, log=tmp_path / "log") as server:
        for _ in range(60):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(b"no HTTP at all\r\n\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert 0 < len((tmp_path / "log").read_text().splitlines()) < 20


def test_a_client_that_does_not_read_is_dropped_and_its_file_closed(tmp_path: Path) -> None:
    large = tmp_path / "images" / draw_things(tmp_path / "images", 1, 2)[0]
    large.write_bytes(large.read_bytes() + bytes(18_000_000))  # more than the buffers of a connection hold
    index_images(HistogramDescriber(), list_images(tmp_path / "images"), tmp_path / "store")
    row = open_store(tmp_path / "store").rows_by_path()[str(large.relative_to(tmp_path / "images"))]
    with (
        running(tmp_path / "store", write_seconds=0.5) as server,
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        request = f"GET /api/stores/0/rows/{row.id}/original HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        connection.sendall(request.encode())
        time.sleep(0.3)
        assert _holds(server, large)
        time.sleep(2.0)
        assert not _holds(server, large)


def _holds(server: Server, file: Path) -> bool:
    """Whether the server has the file open."""
    links = Path(f"/proc/{server.process.pid}/fd").iterdir()
    return any(link.exists() and link.resolve() == file.resolve() for link in links)


def test_the_server_parses_no_upload_itself(server: Server) -> None:
    """Readers of AVIF and HEIF are loaded where photos are decoded, and nowhere else."""
    stream = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(stream, "AVIF")
    assert search(server, stream.getvalue()).status_code == 200
    mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "avif" not in mapped.lower()
    assert any("avif" in Path(f"/proc/{pid}/maps").read_text().lower() for pid in server.decoders())


def test_short_answers_on_a_kept_connection_do_not_wait(server: Server) -> None:
    with httpx.Client() as client:
        client.get(f"{server.url}/healthz")
        times = []
        for _ in range(30):
            began = time.perf_counter()
            client.get(f"{server.url}/api/about")
            times.append(time.perf_counter() - began)
    # 0.044 s and more with Nagle's algorithm; the first ones are acknowledged at once
    assert min(times[10:]) < 0.035


def test_uploads_never_touch_the_disk_or_the_log(
    collection: ServedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With nowhere to write temporary files, a large upload is searched for all the same."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    content = noise_png(2000)
    assert len(content) > 2_000_000
    app = create_app([collection])
    with caplog.at_level(logging.DEBUG), TestClient(app, base_url="http://127.0.0.1") as client:
        for one in (content, b"no picture" * 200_000):
            client.post("/api/search", files={"pictures": ("my-secret-name.png", one)})
        answer = client.post("/api/search", files={"pictures": ("my-secret-name.png", content)})
    assert answer.status_code == 200
    assert "my-secret-name" not in caplog.text
    assert "my-secret-name" not in answer.text
