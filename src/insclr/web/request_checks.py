"""What every request must pass: the right host name, the token, a bounded body; and what every answer carries."""

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response

from insclr.web.settings import ServeSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_COOKIE = "insclr_token"
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

    def __init__(self, app: App, settings: ServeSettings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request with the right status, or pass it on with a counted body."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        await self.app(scope, self._counted(receive), send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._own_name(headers.get("host", "")):
            return _problem(421, "this page is served under another name")
        if self.settings.token:
            asked = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
            if self._is_token(asked) and scope["path"] == "/":
                # The address with the token is opened once; from then on a cookie carries it.
                page = RedirectResponse("/", status_code=303)
                page.set_cookie(_COOKIE, self.settings.token, httponly=True, samesite="strict")
                return page
            if not self._is_token(_bearer(headers) or _cookie(headers)):
                return _problem(401, "a token is needed: open the address that `insclr serve` printed")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.settings.max_bytes:
            return _problem(413, self._too_large())
        return None

    def _own_name(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        return "*" in self.settings.hosts or name.strip("[]").lower() in self.settings.hosts

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self.settings.token.encode())

    def _too_large(self) -> str:
        return f"the upload is larger than {self.settings.max_bytes / 1e6:g} MB"

    def _counted(self, receive: Receive) -> Receive:
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.settings.max_bytes:
                raise HTTPException(413, self._too_large())
            return message

        return counted


def _problem(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status_code=status)


def _bearer(headers: Headers) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
