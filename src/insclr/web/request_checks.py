"""What every request must pass: the right name and origin, the token, a bounded body; what every answer carries."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response

from insclr.web.load import Full, Numbers, Room
from insclr.web.settings import ServeOptions

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_COOKIE = "insclr_token"
HEALTH = "/healthz"
_PAGES = (
    "/",
    "/things",
    "/teach",
)  # without anything of the collection in them: other sites may link to them
_LARGE = 200_000  # bytes
RETRY = {"retry-after": "2"}
_FULL = "the server has too much to do just now: try again in a moment"
# Nothing from other hosts, no inline code; pictures also from the page's own memory (drop, paste).
_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class RequestChecks:
    """ASGI middleware around the whole application."""

    def __init__(self, app: App, settings: ServeOptions, room: Room, uploads: Room, numbers: Numbers) -> None:
        self.app = app
        self.settings = settings
        self.room = room  # bytes of all requests together
        self.uploads = uploads  # requests with pictures
        self.numbers = numbers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request with the right status, or pass it on with a counted body."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        body = _Body(receive, self.settings, self.room)
        try:
            refusal = self._refusal(scope) or body.reserve(Headers(scope=scope))
            if refusal is None and body.large and self.uploads.taken >= self.uploads.size:
                # Taking the form apart would cost others more than throwing it away does.
                await body.discard()
                refusal = _problem(503, _FULL, RETRY)
            if refusal is not None:
                await refusal(scope, receive, send_with_headers)
            else:
                await self.app(scope, body.receive, send_with_headers)
        finally:
            body.release()
            route = getattr(scope.get("route"), "path", "") or ("refused" if refusal else "other")
            self.numbers.add(_known_method(scope), route, status, time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["path"] == HEALTH:
            return None  # says nothing but that the server is there, and health checks know no names
        if not self._own_name(headers.get("host", "")):
            return _problem(421, "this page is served under another name")
        if self._from_elsewhere(scope, headers):
            return _problem(403, "another site may not use this page")
        if self.settings.token:
            asked = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
            if self._is_token(asked) and scope["path"] == "/":
                return self._with_cookie(scope)
            if not self._is_token(_bearer(headers) or _cookie(headers)):
                return _problem(401, "a token is needed: open the address that `insclr serve` printed")
        return None

    def _from_elsewhere(self, scope: Scope, headers: Headers) -> bool:
        """Whether a page of another site sends this: browsers say so."""
        reads = scope["method"] in ("GET", "HEAD", "OPTIONS")
        if headers.get("sec-fetch-site") == "cross-site" and not (reads and scope["path"] in _PAGES):
            return True
        origin = headers.get("origin")
        if origin is None or reads:
            return False
        return origin.lower() != f"{scope.get('scheme', 'http')}://{headers.get('host', '')}".lower()

    def _with_cookie(self, scope: Scope) -> Response:
        """The address with the token is opened once; from then on a cookie carries it."""
        home = f"{self.settings.root_path}/"
        page = RedirectResponse(home, status_code=303)
        secure = scope.get("scheme") == "https"
        page.set_cookie(
            _COOKIE, self.settings.token, httponly=True, samesite="strict", path=home, secure=secure
        )
        return page

    def _own_name(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        return "*" in self.settings.hosts or name.strip("[]").lower() in self.settings.hosts

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self.settings.token.encode())


class _Body:
    """The body of one request: counted against its own limit and the server's, and given some time only."""

    def __init__(self, receive: Receive, settings: ServeOptions, room: Room) -> None:
        self._receive = receive
        self._settings = settings
        self._room = room
        self._reserved = 0
        self._read = 0
        self._whole = False
        self.large = False  # too large to hold no picture
        self._end = time.monotonic() + settings.body_seconds

    def reserve(self, headers: Headers) -> Response | None:
        """Make room for what the request announces, or say why there is none."""
        length = headers.get("content-length", "0")
        announced = int(length) if length.isdecimal() and length.isascii() else 0
        if announced > self._settings.max_bytes:
            return _problem(413, self._too_large())
        self.large = announced > _LARGE
        try:
            self._take(announced)
        except Full:
            return _problem(503, _FULL, RETRY)
        return None

    async def receive(self) -> Message:
        """The next message; HTTPException when there is too much of it or it takes too long."""
        if self._whole:
            return await self._receive()  # waits for the client to go
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._end - time.monotonic()))
        except TimeoutError:
            raise HTTPException(408, "the request did not arrive in time") from None
        self._whole = not message.get("more_body", False)
        self._read += len(message.get("body", b""))
        if self._read > self._settings.max_bytes:
            raise HTTPException(413, self._too_large())
        try:
            self._take(max(0, self._read - self._reserved))
        except Full:
            raise HTTPException(503, _FULL, RETRY) from None
        return message

    async def discard(self) -> None:
        """Read the body to its end, so that the client hears the answer, and forget it."""
        try:
            while not self._whole:
                await self.receive()
        except HTTPException:
            return

    def release(self) -> None:
        """Free the room that was taken."""
        self._room.give_back(self._reserved)
        self._reserved = 0

    def _take(self, amount: int) -> None:
        self._room.take(amount)
        self._reserved += amount

    def _too_large(self) -> str:
        return f"the upload is larger than {self._settings.max_bytes / 1e6:g} MB"


def _problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"detail": detail}, status_code=status, headers=headers)


def _known_method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "OPTIONS") else "OTHER"


def _bearer(headers: Headers) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
