"""Limits of a server: what exceeds them is refused at once, or waits without occupying a thread."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

RETRY = {"retry-after": "2"}
_POLL_INTERVAL = 0.1  # seconds

Result = TypeVar("Result")


class Busy(Exception):
    """A limit is reached: the client may try again in a moment."""


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Limit:
    """At most `size` units (bytes, requests) are in use at once."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._lock = threading.Lock()

    def take(self, amount: int) -> None:
        """Use `amount` more; Busy when that exceeds the limit."""
        with self._lock:
            if self.used + amount > self.size:
                raise Busy
            self.used += amount

    def give_back(self, amount: int) -> None:
        """Free what was taken."""
        with self._lock:
            self.used -= amount


async def run_limited(
    request: Request,
    limit: Limit,
    activity: str,
    work: Callable[[threading.Event], Result],
    patience: float = 0.0,
) -> Result:
    """Run the work in a thread, within the limit, for which the request waits up to `patience` seconds.

    Busy when the limit or all decoders stay in use; `activity` names in its message what is done to too many
    photos. The work receives an event that is set when the client has left, so that it ends soon.
    """
    gone = threading.Event()
    end = time.monotonic() + patience
    try:
        while True:
            try:
                limit.take(1)
                break
            except Busy:
                if time.monotonic() >= end:
                    raise
            if await request.is_disconnected():
                raise ClientGone
            await asyncio.sleep(_POLL_INTERVAL)
        try:
            task = asyncio.ensure_future(run_in_threadpool(work, gone))
            while not (await asyncio.wait({task}, timeout=_POLL_INTERVAL))[0]:
                if await request.is_disconnected():
                    gone.set()
            return await task
        finally:
            gone.set()
            limit.give_back(1)
    except Busy:
        raise Busy(f"too many photos are being {activity}: try again in a moment") from None
