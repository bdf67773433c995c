"""The search server under load: parallel clients on 127.0.0.1 for a while, errors and latencies counted.

    python benchmarks/serve.py STORE [--clients 32] [--seconds 30] [--uploads 0.2]

A part of the requests upload a photo (network and search), the others search from a row.
"""

import argparse
import collections
import http.client
import json
import random
import subprocess
import sys
import threading
import time
import uuid

import numpy as np

PORT = 18473
SERVER = """
import sys
from insclr.web.server import open_served, serve
from insclr.web.settings import ServeOptions
serve(open_served([sys.argv[1]]), ServeOptions(port=int(sys.argv[2])))
"""


def form(fields: dict[str, str], picture: bytes | None) -> tuple[bytes, str]:
    boundary = uuid.uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    if picture is not None:
        head = 'Content-Disposition: form-data; name="pictures"; filename="q.jpg"\r\nContent-Type: image/jpeg'
        parts.append(f"--{boundary}\r\n{head}\r\n\r\n".encode() + picture + b"\r\n")
    return b"".join(parts) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def get(path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    connection.request("GET", path)
    content = connection.getresponse().read()
    connection.close()
    return content


class Client(threading.Thread):
    """One visitor who asks the next thing as soon as the answer is there."""

    def __init__(
        self, seed: int, until: float, uploads: float, rows: list[str], pictures: list[bytes]
    ) -> None:
        super().__init__()
        self.dice = random.Random(seed)
        self.until, self.uploads, self.rows, self.pictures = until, uploads, rows, pictures
        self.seconds: dict[str, list[float]] = {"row": [], "upload": []}
        self.statuses: collections.Counter[int] = collections.Counter()

    def run(self) -> None:
        """Ask until the time is over."""
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
        while time.monotonic() < self.until:
            kind = "upload" if self.dice.random() < self.uploads else "row"
            fields = {"top": "20"} | ({"rows": self.dice.choice(self.rows)} if kind == "row" else {})
            body, content_type = form(fields, self.dice.choice(self.pictures) if kind == "upload" else None)
            began = time.perf_counter()
            connection.request("POST", "/api/search", body, {"content-type": content_type})
            answer = connection.getresponse()
            answer.read()
            self.seconds[kind].append(time.perf_counter() - began)
            self.statuses[answer.status] += 1
        connection.close()


def wait_for_server(server: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        if server.poll() is not None:
            sys.exit("the server ended at once")
        try:
            get("/api/about")
            return
        except OSError:
            time.sleep(0.2)
    sys.exit("the server does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--uploads", type=float, default=0.2)
    asked = parser.parse_args()
    server = subprocess.Popen([sys.executable, "-c", SERVER, asked.store, str(PORT)])
    try:
        wait_for_server(server)
        sample = json.loads(get("/api/stores/0/sample?count=100"))
        pictures = [get(one["picture"]) for one in sample[:20]]
        until = time.monotonic() + asked.seconds
        rows = [one["ref"] for one in sample]
        clients = [Client(i, until, asked.uploads, rows, pictures) for i in range(asked.clients)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
    finally:
        server.terminate()
        server.wait(30)
    statuses = sum((one.statuses for one in clients), collections.Counter())
    print(
        f"{asked.clients} clients, {asked.seconds:g} s: {statuses.total()} requests, by status {dict(statuses)}"
    )
    for kind in ("row", "upload"):
        seconds = np.array([value for one in clients for value in one.seconds[kind]]) * 1000
        if len(seconds):
            p50, p99 = np.percentile(seconds, [50, 99])
            print(f"  {kind:<7} {len(seconds):6d} x   p50 {p50:7.1f} ms   p99 {p99:7.1f} ms")
    sys.exit(0 if set(statuses) == {200} else 1)


if __name__ == "__main__":
    main()
