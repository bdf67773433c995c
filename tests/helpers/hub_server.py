"""A stand-in for the Hugging Face hub: a real HTTP server that speaks its API as far as push and pull need it.

Repositories, their visibility, tokens, the check of a card's front matter, LFS uploads by digest, commits in one
step, and downloads. As with the hub: no token, no write; another one's private repository is not there.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

TOKENS = {"hf_alice": "alice", "hf_bob": "bob"}


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)  # their messages

    @property
    def sha(self) -> str:
        return hashlib.sha1(repr((len(self.commits), sorted(self.files))).encode()).hexdigest()


class HubServer(ThreadingHTTPServer):
    """`broken` maps a part of an address to the status that it answers with; `cut` bytes are missing in downloads."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []  # method and path of every request
        self.broken: dict[str, int] = {}
        self.cut = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def running_hub() -> Iterator[HubServer]:
    with HubServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


class _Refused(Exception):
    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.status, self.code, self.message = status, code, message


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        body = self._body()
        path = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        try:
            for part, status in self.server.broken.items():
                if part in path:
                    raise _Refused(status, message="broken for a test")
            for pattern, answer in _ROUTES.items():
                if found := re.fullmatch(pattern, f"{self.command} {path}"):
                    return answer(self, body, *found.groups())
            raise _Refused(404, message=f"the stand-in knows no {self.command} {path}")
        except _Refused as refused:
            headers = {"X-Error-Code": refused.code, "X-Error-Message": refused.message}
            self._answer({"error": refused.message}, refused.status, headers)

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, value: Any, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        self._send(json.dumps(value).encode(), status, headers)

    def _send(self, content: bytes, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, text in headers.items():
            if text:
                self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _user(self) -> str | None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in TOKENS:
            raise _Refused(401, message="Invalid credentials in Authorization header")
        return TOKENS.get(token)

    def _repository(self, name: str, write: bool = False) -> Repository:
        user, found = self._user(), self.server.repositories.get(name)
        owned = user == name.partition("/")[0]
        if found is None or (found.private and not owned):
            raise _Refused(404 if user else 401, "RepoNotFound", "Repository not found")
        if write and not owned:
            raise _Refused(403, message="You don't have the rights")
        return found

    def info(self, _: bytes, name: str, revision: str | None) -> None:
        found = self._repository(name)
        if revision not in (None, "main", found.sha):
            raise _Refused(404, "RevisionNotFound", "Invalid rev id")
        siblings = [{"rfilename": file} for file in found.files]
        self._answer(
            {"id": name, "sha": found.sha, "private": found.private, "siblings": siblings, "tags": []}
        )

    def create(self, body: bytes) -> None:
        user, asked = self._user(), json.loads(body)
        if user is None:
            raise _Refused(401, message="Invalid username or password.")
        if (asked["organization"] or user) != user:
            raise _Refused(403, message="You don't have the rights to create a model under this namespace")
        name = f"{user}/{asked['name']}"
        if name in self.server.repositories:
            raise _Refused(409, message="You already created this model repo")
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.server.repositories[name] = Repository(private)
        self._answer({"url": f"{self.server.address}/{name}", "name": name})

    def validate(self, body: bytes) -> None:
        content = json.loads(body)["content"]
        try:
            table = yaml.safe_load(content.split("---\n")[1])
            wrong = [] if isinstance(table, dict) else ["no table"]
        except (yaml.YAMLError, IndexError) as error:
            wrong = [str(error)]
        errors = [{"message": one} for one in wrong]
        self._answer({"errors": errors, "warnings": []}, 400 if errors else 200)

    def preupload(self, body: bytes, name: str) -> None:
        self._repository(name, write=True)
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        self._answer({"files": files})

    def batch(self, body: bytes, name: str) -> None:
        self._repository(name, write=True)
        objects = [
            one | {"actions": {"upload": {"href": f"{self.server.address}/objects/{one['oid']}"}}}
            for one in json.loads(body)["objects"]
        ]
        self._answer({"transfer": "basic", "objects": objects})

    def put(self, body: bytes, oid: str) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            raise _Refused(400, message="another digest")
        self.server.objects[oid] = body
        self._answer({})

    def commit(self, body: bytes, name: str) -> None:
        found = self._repository(name, write=True)
        header, *lines = [json.loads(line) for line in body.splitlines()]
        added = {}
        for line in lines:
            value = line["value"]
            added[value["path"]] = (
                self.server.objects[value["oid"]]
                if line["key"] == "lfsFile"
                else base64.b64decode(value["content"])
            )
        found.files |= added
        found.commits.append(header["value"]["summary"])
        url = f"{self.server.address}/{name}/commit/{found.sha}"
        self._answer({"success": True, "commitUrl": url, "commitOid": found.sha})

    def resolve(self, _: bytes, name: str, revision: str, file: str) -> None:
        found = self._repository(name)
        if revision not in ("main", found.sha):
            raise _Refused(404, "RevisionNotFound", "Invalid rev id")
        if file not in found.files:
            raise _Refused(404, "EntryNotFound", "Entry not found")
        content = found.files[file]
        digest = hashlib.sha256(content).hexdigest()
        headers = {"X-Repo-Commit": found.sha, "ETag": f'"{digest}"', "X-Linked-Size": str(len(content))}
        self._send(content[: len(content) - self.server.cut], 200, headers)


_MODEL = r"([^/]+/[^/]+)"
_ROUTES: dict[str, Callable[..., None]] = {
    rf"GET /api/models/{_MODEL}(?:/revision/(.+))?": _Handler.info,
    r"POST /api/repos/create": _Handler.create,
    r"POST /api/validate-yaml": _Handler.validate,
    rf"POST /api/models/{_MODEL}/preupload/main": _Handler.preupload,
    rf"POST /{_MODEL}\.git/info/lfs/objects/batch": _Handler.batch,
    r"PUT /objects/(\w+)": _Handler.put,
    rf"POST /api/models/{_MODEL}/commit/main": _Handler.commit,
    rf"(?:GET|HEAD) /{_MODEL}/resolve/([^/]+)/(.+)": _Handler.resolve,
}
