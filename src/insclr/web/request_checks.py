"""Checks of every connection and request (host, origin, token, size of the body), and headers of every answer."""

import asyncio
import collections
import logging
import resource
import secrets
import time
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from insclr.web.limits import RETRY, Busy, Limit
from insclr.web.pages import PAGE_PATHS
from insclr.web.server_metrics import ServerMetrics
from insclr.web.settings import ServeOptions

_FILES_OF_SERVER = 100  # that stores, models and decoders may open beside the connections


def allowed_connections(asked: int) -> int:
    """As many as asked for, if this process may open as many files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return asked if files == resource.RLIM_INFINITY else max(8, min(asked, files - _FILES_OF_SERVER))


def make_protocol(settings: ServeOptions, connections: int, per_address: int) -> type[asyncio.Protocol]:
    """A protocol that closes connections of slow clients, and idle ones where there are more than the limits allow.

    A client may take `header_seconds` for the head of a request, may leave an answer unread for `write_seconds`, and
    may send `max_bytes` of a body that has been answered already. One address may hold `per_address` of all
    `connections`.
    """
    open_by_address = collections.Counter[str]()

    class Guarded(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _writing: asyncio.TimerHandle | None = None
        _address = ""
        _waits_since = 0.0
        _unasked = 0  # bytes since the last answer

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._address = str((transport.get_extra_info("peername") or [""])[0])
            open_by_address[self._address] += 1
            full_address = open_by_address[self._address] > per_address
            if (full_address or len(self.connections) > connections) and not self._close_idle(full_address):
                transport.abort()
                return
            self._start()

        def _close_idle(self, own_address: bool) -> bool:
            """Close the connection whose request has been awaited longest, so that this one can be served."""
            idle = [
                one
                for one in self.connections
                if isinstance(one, Guarded)
                and one is not self
                and (not one._has_request() or one.cycle.more_body)
                and not one.transport.is_closing()
                and (not own_address or one._address == self._address)
            ]
            if idle:
                min(idle, key=lambda one: one._waits_since).transport.abort()
            return bool(idle)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._writing = self.loop.call_later(settings.write_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._cancel_writing()

        def _cancel_writing(self) -> None:
            if self._writing is not None:
                self._writing.cancel()
                self._writing = None

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._has_request():
                self._cancel()
                self._unasked = 0
                return
            self._unasked += len(data)
            if self._unasked > settings.max_bytes:
                self.transport.abort()
            elif self._timer is None:
                self._start()  # the beginning of a further request

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            self._cancel_writing()
            open_by_address[self._address] -= 1
            if not open_by_address[self._address]:
                del open_by_address[self._address]
            super().connection_lost(exc)

        def _has_request(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _start(self) -> None:
            self._waits_since = self.loop.time()
            self._timer = self.loop.call_later(settings.header_seconds, self._expire)

        def _cancel(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _expire(self) -> None:
            self._timer = None
            if not self._has_request() and not self.transport.is_closing():
                self.transport.close()

    return Guarded


class RareLines(logging.Filter):
    """Lets the same message through a few times a minute: clients could fill the disk with their mistakes."""

    def __init__(self, most: int = 5, seconds: float = 60.0) -> None:
        super().__init__()
        self._most, self._seconds = most, seconds
        self._began = 0.0
        self._counts = collections.Counter[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a record."""
        if time.monotonic() - self._began > self._seconds:
            self._began = time.monotonic()
            self._counts.clear()
        self._counts[str(record.msg)[:100]] += 1
        return self._counts[str(record.msg)[:100]] <= self._most


_COOKIE = "insclr_token"
HEALTH = "/healthz"
_LARGE = 200_000  # bytes
_SMALL = 64_000  # bytes of a request without photos, such as a search by rows: not counted among the uploads
_METHODS = ("GET", "HEAD", "POST", "OPTIONS")  # that metrics name
# Nothing from other hosts, no inline code; images also from the page's own memory (drop, paste).
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

    def __init__(
        self,
        app: ASGIApp,
        settings: ServeOptions,
        request_bytes: Limit,
        uploads: Limit,
        metrics: ServerMetrics,
    ) -> None:
        self.app = app
        self.settings = settings
        self.request_bytes = request_bytes  # of all requests together
        self.uploads = uploads  # requests with images
        self.metrics = metrics
        self._wrong_tokens = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request with the right status, or pass it on with a counted body."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, answer = time.perf_counter(), 0, None

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        body = _Body(receive, self.settings, self.request_bytes)
        try:
            request = Request(scope)
            try:
                answer = self._check(request)
                announced = body.check_length(request.headers.get("content-length", "0"))
                if announced > _LARGE and self.uploads.used >= self.uploads.size:
                    # Parsing the form would cost other requests more than reading and dropping it.
                    await body.discard()
                    raise _too_busy()
            except HTTPException as error:
                if error.status_code == 401 and (_given_tokens(request) or request.query_params.get("token")):
                    async with self._wrong_tokens:  # one after the other: guessing takes for ever
                        await asyncio.sleep(self.settings.wrong_token_seconds)
                answer = JSONResponse({"detail": error.detail}, error.status_code, error.headers)
            if answer is not None:
                await answer(scope, receive, send_with_headers)
            else:
                await self.app(scope, body.receive, send_with_headers)
        finally:
            body.release()
            route = getattr(scope.get("route"), "path", "") or ("refused" if answer else "other")
            method = scope["method"] if scope["method"] in _METHODS else "OTHER"
            self.metrics.add(method, route, status, time.perf_counter() - began)

    def _check(self, request: Request) -> Response | None:
        """Raise HTTPException for a forbidden request; answer the one whose address has the token."""
        path, headers = request.scope["path"], request.headers
        if path == HEALTH:
            return None  # it reports only that the server is up, and health checks use no host names
        host = headers.get("host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if "*" not in self.settings.hosts and name.strip("[]").lower() not in self.settings.hosts:
            raise HTTPException(421, "this page is served under another name")
        # Browsers name the site that sends a request.
        reads = request.method in ("GET", "HEAD", "OPTIONS")
        own = f"{request.scope.get('scheme', 'http')}://{host}".lower()
        if (headers.get("sec-fetch-site") == "cross-site" and not (reads and path in PAGE_PATHS)) or (
            not reads and headers.get("origin", own).lower() != own
        ):
            raise HTTPException(403, "another site may not use this page")
        if self.settings.token:
            if path == "/" and self._is_token(request.query_params.get("token", "")):
                return self._set_cookie(request)
            if not any(map(self._is_token, _given_tokens(request))):
                raise HTTPException(401, "a token is needed: open the address that `insclr serve` printed")
        return None

    def _set_cookie(self, request: Request) -> Response:
        """Answer the address with the token by a cookie that later requests carry."""
        home = f"{self.settings.root_path}/"
        page = RedirectResponse(home, status_code=303)
        secure = request.scope.get("scheme") == "https"
        page.set_cookie(
            _COOKIE, self.settings.token, httponly=True, samesite="strict", path=home, secure=secure
        )
        return page

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self.settings.token.encode())


def _given_tokens(request: Request) -> list[str]:
    """The token in the header, or else the one in the cookie; the address may have another."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    bearer = token.strip() if kind.lower() == "bearer" else ""
    return [one for one in (bearer or request.cookies.get(_COOKIE, ""),) if one]


class _Body:
    """The body of one request, with a limit of its size, of all bodies together, and of its time."""

    def __init__(self, receive: Receive, settings: ServeOptions, limit: Limit) -> None:
        self._receive = receive
        self._settings = settings
        self._limit = limit
        self._reserved = 0
        self._read = 0
        self._complete = False
        self._end = time.monotonic() + settings.body_seconds

    def check_length(self, length: str) -> int:
        """The bytes that the request announces; HTTPException where they are too many. Only received bytes count."""
        announced = int(length) if length.isdecimal() and length.isascii() else 0
        self._require_size(announced)
        return announced

    async def receive(self) -> Message:
        """The next message; HTTPException when the body is too large or takes too long."""
        if self._complete:
            return await self._receive()  # waits until the client leaves
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._end - time.monotonic()))
        except TimeoutError:
            raise HTTPException(408, "the request did not arrive in time") from None
        self._complete = not message.get("more_body", False)
        self._read += len(message.get("body", b""))
        self._require(self._read)
        return message

    async def discard(self) -> None:
        """Read the body to its end, so that the client receives the answer, and drop it."""
        try:
            while not self._complete:
                await self.receive()
        except HTTPException:
            return

    def release(self) -> None:
        """Free what was reserved."""
        self._limit.give_back(self._reserved)
        self._reserved = 0

    def _require(self, size: int) -> None:
        """Reserve so many bytes in all, unless they are few; HTTPException where that exceeds a limit."""
        self._require_size(size)
        more = max(0, size - self._reserved) if size > _SMALL else 0
        try:
            self._limit.take(more)
        except Busy:
            raise _too_busy() from None
        self._reserved += more

    def _require_size(self, size: int) -> None:
        if size > self._settings.max_bytes:
            raise HTTPException(413, f"the upload is larger than {self._settings.max_bytes / 1e6:g} MB")


def _too_busy() -> HTTPException:
    return HTTPException(503, "the server has too much to do just now: try again in a moment", RETRY)
