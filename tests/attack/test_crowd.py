"""Many clients at once: searches, large and hostile uploads, shown photos, names; and every request of the API."""

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from helpers.fuzzed_api import request_every_operation
from helpers.hostile import by_hand
from helpers.made_files import jpeg_bytes, photo
from helpers.running_server import Server, free_port
from insclr_demo import draw_collection

MODEL = "pretrained:efficientnet_lite0"
Note = Callable[[str, str, str], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> object:
    """`insclr serve` itself with a real network, on a store of 200 photos."""
    folder = tmp_path_factory.mktemp("crowd")
    draw_collection(folder / "c", things=20, views=10, size=160, seed=0)
    insclr = [sys.executable, "-m", "insclr"]
    store = folder / "store"
    index: list[str | Path] = ["index", MODEL, folder / "c" / "images", "--store", store, "--local", "off"]
    subprocess.run([*insclr, *index], check=True)
    port = free_port()
    (folder / "tmp").mkdir()
    process = subprocess.Popen(
        [*insclr, "serve", store, "--port", str(port)], env=os.environ | {"TMPDIR": str(folder / "tmp")}
    )
    running = Server(process, port, folder / "tmp")
    for _ in range(300):
        try:
            httpx.get(f"{running.url}/healthz")
            break
        except httpx.TransportError:
            time.sleep(0.1)
    yield running
    process.kill()
    process.wait()


_KINDS = ("row", "row", "upload", "hostile", "row", "photo", "row", "name")


class Crowd:
    """Clients that go on until told to stop, and what they were answered."""

    def __init__(self, server: Server, rows: list[str], pause: float) -> None:
        self.server = server
        self.rows = rows
        self.pause = pause  # seconds between two requests of a client, on average
        self.fingerprint = httpx.get(f"{server.url}/api/about").json()["stores"][0]["fingerprint"]
        self.stop = threading.Event()
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.wrong: list[str] = []
        self.row_seconds: list[float] = []
        self.large = jpeg_bytes(photo(5200, 3900))
        self.hostile = [content for _, content in by_hand() if len(content) < 20_000_000]
        self.lock = threading.Lock()

    def client(self, number: int) -> None:
        dice = random.Random(number)
        with httpx.Client(base_url=self.server.url, timeout=60) as client:
            while not self.stop.is_set():
                kind = _KINDS[number % len(_KINDS)]
                try:
                    self._ask(client, kind, dice)
                except httpx.TransportError as error:
                    with self.lock:
                        self.wrong.append(f"{kind}: {error!r}")
                time.sleep(self.pause * dice.uniform(0.5, 1.5))

    def _ask(self, client: httpx.Client, kind: str, dice: random.Random) -> None:
        began = time.monotonic()
        row = dice.choice(self.rows)
        if kind == "row":
            answer = client.post("/api/search", data={"rows": row, "top": 5})
        elif kind == "photo":
            what = dice.choice(["thumbnail", "picture", "original"])
            answer = client.get(f"/api/stores/0/rows/{row.partition(':')[2]}/{what}")
        elif kind == "name":
            shown = {"fingerprint": self.fingerprint}
            answer = client.post("/api/stores/0/teach/skip", json=shown | {"query": row})
        else:
            content = self.large if kind == "upload" else dice.choice(self.hostile)
            answer = client.post("/api/search", files={"pictures": ("x", content)})
        took = time.monotonic() - began
        good = {"row": (200,), "hostile": (200, 413, 415, 503)}.get(kind, (200, 503))
        with self.lock:
            self.statuses[kind, answer.status_code] += 1
            if kind == "row":
                self.row_seconds.append(took)
            if answer.status_code not in good:
                self.wrong.append(f"{kind}: {answer.status_code} {answer.text[:200]}")
            if answer.status_code == 503 and not answer.headers.get("retry-after"):
                self.wrong.append("503 without Retry-After")


def test_64_clients(server: Server, soak: bool, note: Note) -> None:
    crowd_for(server, note, clients=64, pause=0.65, seconds=300 if soak else 40)


def test_8_clients_for_an_hour(server: Server, soak: bool, note: Note) -> None:
    """One client of each kind, at a rate that leaves most of the machine to others; with `make attack` a minute."""
    crowd_for(server, note, clients=8, pause=3.0, seconds=3600 if soak else 60)


def crowd_for(server: Server, note: Note, clients: int, pause: float, seconds: float) -> None:
    rows = [row["ref"] for row in httpx.get(f"{server.url}/api/stores/0/sample?count=50").json()]
    expected = httpx.post(f"{server.url}/api/search", data={"rows": rows[0], "top": 5}).json()["matches"]
    crowd = Crowd(server, rows, pause)
    threads = [threading.Thread(target=crowd.client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    used: list[tuple[int, int, int]] = []  # memory, descriptors, temporary files
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(1)
        used.append((server.own_memory(), server.descriptors(), server.temporary_files()))
    crowd.stop.set()
    for thread in threads:
        thread.join()
    again = httpx.post(f"{server.url}/api/search", data={"rows": rows[0], "top": 5}).json()["matches"]
    late = sorted(crowd.row_seconds)[int(0.99 * len(crowd.row_seconds))]
    thirds = [used[len(used) * k // 3 : len(used) * (k + 1) // 3] for k in (1, 2)]
    middle, last = ([max(values) for values in zip(*third, strict=True)] for third in thirds)
    answered = ", ".join(f"{kind} {status}: {n}" for (kind, status), n in sorted(crowd.statuses.items()))
    who = f"{clients} clients, {seconds:g} s"
    note(who, f"{len(crowd.wrong)} wrong ({answered})", "0 wrong, no 5xx but 503")
    note(f"{who}: p99 of searches by row", f"{late * 1000:.0f} ms", "500 ms")
    note(
        f"{who}: most memory, descriptors and temporary files of the server, last third of the time / the one before",
        f"{last[0] / 1e9:.3f} / {middle[0] / 1e9:.3f} GB, {last[1]} / {middle[1]}, {last[2]} / {middle[2]}",
        "+10 %, +10, +0",
    )
    assert crowd.wrong == []
    assert [one["ref"] for one in again] == [one["ref"] for one in expected]
    assert last[0] < 1.1 * middle[0]
    assert last[1] <= middle[1] + 10
    assert last[2] <= middle[2]
    assert late < 0.5


def test_100_uploads_of_20_megapixels_at_once(server: Server, note: Note) -> None:
    """A few are answered, the others are put off, and a search by row is answered meanwhile."""
    content = jpeg_bytes(photo(5200, 3900))
    start = threading.Barrier(101)

    def upload(_: int) -> httpx.Response:
        start.wait()
        return httpx.post(f"{server.url}/api/search", files={"pictures": ("x", content)}, timeout=120)

    with ThreadPoolExecutor(100) as pool:
        uploads = [pool.submit(upload, number) for number in range(100)]
        start.wait()
        by_row = httpx.post(f"{server.url}/api/search", data={"rows": "0:1"}, timeout=60)
        answers = [one.result() for one in uploads]
    assert by_row.status_code == 200
    statuses = Counter(one.status_code for one in answers)
    assert set(statuses) == {200, 503}
    assert all(one.headers.get("retry-after") for one in answers if one.status_code == 503)
    found = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    took, own = by_row.elapsed.total_seconds(), server.own_memory() / 1e9
    note(
        "100 uploads of 20 megapixels at once",
        f"{found}; a search by row {took:.1f} s; server {own:.2f} GB",
        "200 or 503",
    )


def test_schemathesis(tmp_path: Path, soak: bool, note: Note) -> None:
    for mode in ("positive", "negative"):
        request_every_operation(tmp_path / mode, mode, examples=400 if soak else 60)
    note("schemathesis, every operation, good and bad requests", "0 findings", "0 findings")


def test_the_server_ends_when_told(server: Server, note: Note) -> None:
    took = server.stop()
    note("SIGTERM", f"ended after {took:.1f} s", "10 s")
    assert took < 10
