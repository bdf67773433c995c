"""Who may talk to the server: names, origins, tokens, proxies."""

import json
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from helpers.clients import client_of
from helpers.drawn_store import make_store
from helpers.running_server import free_port, running
from insclr.cli import main
from insclr.errors import UserError
from insclr.web.served import ServedStore
from insclr.web.settings import ServeOptions, find_token

TOKEN = "a-long-secret"


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),  # a program
        ("http://127.0.0.1", True),
        ("https://127.0.0.1", False),  # another scheme is another origin
        ("http://127.0.0.1:9000", False),
        ("http://evil.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("null", False),  # a page from a file, or in a sandbox
        ("", False),
    ],
)
def test_a_post_of_another_site_is_refused(
    collection: ServedStore, origin: str | None, allowed: bool
) -> None:
    row = next(iter(collection.store.rows_by_path().values())).id
    headers = {} if origin is None else {"origin": origin}
    with client_of(collection) as client:
        answer = client.post("/api/search", data={"rows": f"0:{row}"}, headers=headers)
        assert answer.status_code == (200 if allowed else 403)


@pytest.mark.parametrize(
    ("path", "site", "status"),
    [
        ("/", "cross-site", 200),  # a link to the page
        ("/api/about", "cross-site", 403),  # an address hidden in another page
        ("/api/stores/0/rows/1/thumbnail", "cross-site", 403),
        ("/api/about", "same-origin", 200),
        ("/api/about", "none", 200),
        ("/metrics", "cross-site", 403),
    ],
)
def test_fetch_metadata_of_the_browser_is_trusted(
    collection: ServedStore, path: str, site: str, status: int
) -> None:
    with client_of(collection) as client:
        assert client.get(path, headers={"sec-fetch-site": site}).status_code == status


@pytest.mark.parametrize(
    "path", ["/", "/api/about", "/docs", "/metrics", "/static/app.js", "/openapi.json", "/no"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "PUT", "OPTIONS"])
def test_without_the_token_nothing_is_given(collection: ServedStore, path: str, method: str) -> None:
    with client_of(collection, token=TOKEN) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "insclr_token=wrong"}):
            assert client.request(method, path, headers=headers).status_code == 401
        assert client.request(method, f"{path}?token=wrong").status_code == 401
        assert client.get("/api/about", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_health_needs_nothing_and_tells_nothing(collection: ServedStore) -> None:
    with client_of(collection, token=TOKEN) as client:
        answer = client.get("/healthz", headers={"host": "10.0.0.7"})
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_metrics_count_requests_by_route_and_name_no_photo(collection: ServedStore) -> None:
    with client_of(collection) as client:
        row = next(iter(collection.store.rows_by_path().values()))
        client.get(f"/api/stores/0/rows/{row.id}")
        client.get("/api/stores/0/rows/999999")
        client.post("/api/search", data={"rows": f"0:{row.id}"})
        text = client.get("/metrics").text
    route = 'method="GET",route="/stores/{store}/rows/{row}"'
    assert f'insclr_requests_total{{{route.replace("/stores", "/api/stores")},status="200"}} 1' in text
    assert f'insclr_requests_total{{{route.replace("/stores", "/api/stores")},status="404"}} 1' in text
    assert 'insclr_request_seconds_count{route="/api/search"} 1' in text
    assert row.image.path not in text
    for line in text.splitlines():
        assert line.startswith("#") or float(line.rsplit(" ", 1)[1]) >= 0


def test_other_machines_are_served_with_a_token_only() -> None:
    with pytest.raises(UserError, match="--insecure"):
        ServeOptions(host="0.0.0.0")
    assert ServeOptions(host="0.0.0.0", token=TOKEN).hosts == ("*",)
    assert ServeOptions(host="0.0.0.0", insecure=True).hosts == ("*",)
    assert "photos.example" in ServeOptions(host="0.0.0.0", insecure=True, names=("photos.example",)).hosts


def test_where_a_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSCLR_TOKEN", "from-the-environment")
    (tmp_path / "token").write_text("from-the-file\n")
    assert find_token(None, make=False) == "from-the-environment"
    assert find_token(tmp_path / "token", make=False) == "from-the-file"
    made = {find_token(None, make=True) for _ in range(3)}
    assert len(made) == 3
    assert all(len(token) >= 32 and ServeOptions(token=token) for token in made)
    monkeypatch.delenv("INSCLR_TOKEN")
    assert find_token(None, make=False) == ""
    (tmp_path / "token").write_text("")
    for file in (tmp_path / "token", tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match="token file"):
            find_token(file, make=False)


def test_a_token_on_the_command_line_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["insclr", "serve", "store", "--token", "12345678"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--token-file" in capsys.readouterr().err


@pytest.mark.parametrize(("base", "secure"), [("http://127.0.0.1", False), ("https://127.0.0.1", True)])
def test_the_cookie_is_for_this_page_alone(collection: ServedStore, base: str, secure: bool) -> None:
    with client_of(collection, base=base, token=TOKEN, root_path="/photos") as client:
        answer = client.get(f"/?token={TOKEN}", follow_redirects=False)
        cookie = answer.headers["set-cookie"].lower()
        assert answer.headers["location"] == "/photos/"
        assert {"httponly", "samesite=strict", "path=/photos/"} <= {
            part.strip() for part in cookie.split(";")
        }
        assert ("secure" in cookie) is secure


@pytest.mark.parametrize("path", ["photos", "/photos/", "/"])
def test_a_root_path_has_one_form(path: str) -> None:
    with pytest.raises(UserError, match="root path"):
        ServeOptions(root_path=path)


def _nginx_example() -> str:
    """The configuration that docs/serving.md shows."""
    text = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    return text.split("```nginx\n")[1].split("```")[0]


def test_behind_nginx_with_tls_as_the_documentation_has_it(tmp_path: Path) -> None:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None or shutil.which("openssl") is None:
        pytest.skip("nginx or openssl is not installed: apt-get install nginx openssl")
    make_store(tmp_path, things=2, views=3)
    key, certificate, port = tmp_path / "key.pem", tmp_path / "cert.pem", free_port()
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=photos.example.org", "-addext", "subjectAltName=DNS:photos.example.org"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    settings = {
        "token": TOKEN,
        "root_path": "/photos",
        "names": ["photos.example.org"],
        "proxy": "127.0.0.1",
    }
    with running(tmp_path / "store", **settings) as server:
        site = _nginx_example().replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        site = site.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
        site = site.replace("/etc/ssl/photos.pem", str(certificate)).replace("/etc/ssl/photos.key", str(key))
        (tmp_path / "nginx.conf").write_text(
            f"pid {tmp_path}/pid; error_log {tmp_path}/error.log; daemon off; events {{}}\n"
            f"http {{ access_log off; client_body_temp_path {tmp_path}/body; proxy_temp_path {tmp_path}/proxy;\n"
            f"fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;\n"
            f"{site} }}\n"
        )
        nginx = subprocess.Popen([program, "-c", tmp_path / "nginx.conf", "-e", tmp_path / "error.log"])
        try:
            _ask_through_nginx(port, certificate)
        finally:
            nginx.terminate()
            nginx.wait(10)
        # Whoever is not the proxy cannot claim to be behind TLS, nor come by another name.
        asked = {"x-forwarded-proto": "https", "host": "evil.example"}
        assert httpx.get(f"{server.url}/?token={TOKEN}", headers=asked).status_code == 421


def _ask_through_nginx(port: int, certificate: Path) -> None:
    trusted = ssl.create_default_context(cafile=str(certificate))
    here = httpx.HTTPTransport(verify=trusted, retries=20)
    # The name is that of the certificate; the connection goes to this machine.
    extensions = {"sni_hostname": "photos.example.org"}
    base = f"https://127.0.0.1:{port}/photos"
    headers = {"host": "photos.example.org"}
    with httpx.Client(transport=here, headers=headers) as client:
        refused = client.get(f"{base}/api/about", extensions=extensions)
        assert refused.status_code == 401
        opened = client.get(f"{base}/?token={TOKEN}", extensions=extensions)
        assert (opened.status_code, opened.headers["location"]) == (303, "/photos/")
        cookie = opened.headers["set-cookie"]
        assert "Secure" in cookie
        asked = headers | {"cookie": cookie.split(";")[0]}
        page = client.get(f"{base}/", headers=asked, extensions=extensions)
        assert 'src="static/app.js"' in page.text
        script = client.get(f"{base}/static/app.js", headers=asked, extensions=extensions)
        assert script.status_code == 200
        row = client.get(f"{base}/api/stores/0/sample?count=1", headers=asked, extensions=extensions).json()[
            0
        ]
        assert row["thumbnail"].startswith("/photos/api/")
        small = client.get(
            f"https://127.0.0.1:{port}{row['thumbnail']}", headers=asked, extensions=extensions
        )
        assert small.headers["content-type"] == "image/jpeg"
        for origin, status in (("https://photos.example.org", 200), ("https://evil.example", 403)):
            found = client.post(
                f"{base}/api/search",
                data={"rows": row["ref"]},
                headers=asked | {"origin": origin},
                extensions=extensions,
            )
            assert found.status_code == status, json.dumps(found.text)
