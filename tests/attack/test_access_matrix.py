"""Every address with every combination of method, Origin, Host and token; addresses that lead out of the store."""

import http.client
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fastapi.testclient import TestClient

from helpers.drawn_store import make_store
from helpers.running_server import running
from insclr.web.server import create_app
from insclr.web.settings import ServeOptions

Note = Callable[[str, str, str], None]
TOKEN = "a-long-secret"
OWN = "http://127.0.0.1"
READS = ("GET", "HEAD", "OPTIONS")
METHODS = (*READS, "POST", "PUT", "DELETE", "PATCH")
ORIGINS = (None, OWN, "http://evil.example", "https://127.0.0.1", "http://127.0.0.1:9", "null", "")
SITES = (None, "same-origin", "cross-site")
HOSTS = ("127.0.0.1", "localhost", "evil.example", "127.0.0.1.evil.example", "")
TOKENS: tuple[dict[str, str], ...] = (
    {},
    {"authorization": "Bearer wrong"},
    {"cookie": "insclr_token=wrong"},
    {"authorization": f"Basic {TOKEN}"},
    {"authorization": f"Bearer {TOKEN}"},
    {"cookie": f"insclr_token={TOKEN}"},
)
OUTWARD = (
    "/static/../../../../etc/passwd",
    "/static/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/static/..%2f..%2f..%2fetc%2fpasswd",
    "/static/..%5c..%5cetc%5cpasswd",
    "/static//etc/passwd",
    "/static/app.js%00.png",
    "//etc/passwd",
    "/..//..//etc/passwd",
    "/api/stores/0/rows/../../../../secret.txt",
    "/api/stores/0/rows/..%2f..%2fsecret.txt/original",
    "/api/stores/0/rows/%2fetc%2fpasswd/original",
    "/api/stores/0/rows/1%00/original",
    "/api/stores/0/rows/-1/original",
    "/api/stores/0/rows/1e0/original",
    "/api/stores/0/rows/99999999999999999999/original",
    "/api/stores/-1/rows/1/original",
    "/api/stores/..%2f0/rows/1/original",
    "/api/stores/0/things/..%2f..%2fsecret.txt",
    "/api/stores/0/things/group-../../secret.txt",
    "/api/stores/0/things/thing-0000%0d%0aset-cookie:%20a=b",
    "/api/stores/0/sample?count=1&seed=../../secret.txt",
    "/api/stores/0/rows/1/original?path=/etc/passwd",
)


def refusal(
    method: str, path: str, origin: str | None, site: str | None, host: str, token: dict[str, str]
) -> int | None:
    """The status that the rules ask for; None: let in."""
    if host not in ("127.0.0.1", "localhost"):
        return 421
    page = path in ("/", "/things", "/teach") and method in READS
    if site == "cross-site" and not page:
        return 403
    if method not in READS and origin is not None and origin != f"http://{host}":
        return 403
    good = {"authorization": f"Bearer {TOKEN}"}, {"cookie": f"insclr_token={TOKEN}"}
    return None if token in good else 401


def test_origin_host_token_and_method(tmp_path: Path, soak: bool, note: Note) -> None:
    store = make_store(tmp_path, things=3, views=4)
    app = create_app([store], ServeOptions(token=TOKEN, wrong_token_seconds=0.0))
    row = next(iter(store.store.rows_by_path().values())).id
    places = {"{store}": "0", "{row}": str(row), "{thing}": "group-0000"}
    paths = ["/", "/things", "/teach", "/metrics", "/docs", "/openapi.json", "/static/app.js", "/no"]
    for described in app.openapi()["paths"]:
        for name, value in places.items():
            described = described.replace(name, value)
        paths.append(described)
    tried, let_in = 0, 0
    with TestClient(app, base_url=OWN, follow_redirects=False) as client:
        for number, (path, method, origin, site, host, token) in enumerate(
            itertools.product(paths, METHODS, ORIGINS, SITES, HOSTS, TOKENS)
        ):
            if not soak and number % 53:  # coprime to every list: each combination of two is among them
                continue
            headers = {"host": host} | token
            headers |= {} if origin is None else {"origin": origin}
            headers |= {} if site is None else {"sec-fetch-site": site}
            client.cookies.clear()
            status = client.request(method, path, headers=headers).status_code
            wanted = refusal(method, path, origin, site, host, token)
            said = (method, path, origin, site, host, token, status)
            assert status == wanted if wanted else status < 500 and status not in (401, 403, 421), said
            tried, let_in = tried + 1, let_in + (wanted is None)
        health = client.get("/healthz", headers={"host": "evil.example", "origin": "null"})
        assert health.json() == {"status": "ok"}
    assert store.store.journal() == [], "a request that was let in by mistake has written"
    note(
        "method x address x Origin x Sec-Fetch-Site x Host x token",
        f"{tried} requests, {let_in} to be let in: 0 wrong",
        "0 findings",
    )


def test_addresses_that_lead_out(tmp_path: Path, note: Note) -> None:
    make_store(tmp_path, things=3, views=4).store.close()
    (tmp_path / "secret.txt").write_text("TOP SECRET root:x:0")
    statuses: Counter[int] = Counter()
    with running(tmp_path / "store") as server:
        for path in OUTWARD:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            connection.putrequest(
                "GET", path, skip_accept_encoding=True
            )  # as it stands: nothing is tidied up
            connection.endheaders()
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            statuses[answer.status] += 1
            assert answer.status < 500, path
            assert answer.getheader("set-cookie") is None, path
            assert b"root:" not in content, path
            assert answer.status != 200 or path.startswith("/api/stores/0/rows/1/original?"), path
    found = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    note(f"{len(OUTWARD)} addresses that lead out of the store", found, "no file but indexed photos")
