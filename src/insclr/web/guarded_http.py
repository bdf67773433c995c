"""The HTTP protocol of uvicorn with limits: idle connections are closed, and their number is bounded."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def make_protocol(seconds: float, connections: int) -> type[asyncio.Protocol]:
    """A protocol that closes a connection without a complete request head after `seconds`.

    Connections above the limit are closed at once.
    """

    class Guarded(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > connections:
                transport.abort()
                return
            self._start()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._has_request():
                self._cancel()
            elif self._timer is None:
                self._start()  # the beginning of a further request

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            super().connection_lost(exc)

        def _has_request(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _start(self) -> None:
            self._timer = self.loop.call_later(seconds, self._expire)

        def _cancel(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _expire(self) -> None:
            self._timer = None
            if not self._has_request() and not self.transport.is_closing():
                self.transport.close()

    return Guarded
