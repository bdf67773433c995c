"""Requests that decode images take turns: a few at once, so that threads are left for all others."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from insclr.web.decode_pool import Busy, ClientGone
from insclr.web.load import Full, Room
from insclr.web.request_checks import RETRY
from insclr.web.served import Refused

_LOOK = 0.1  # seconds between two looks at the client

Result = TypeVar("Result")


async def in_turn(
    request: Request,
    room: Room,
    done: str,
    work: Callable[[threading.Event], Result],
    patience: float = 0.0,
) -> Result:
    """Do the work in a thread while there is room, for which `patience` seconds are waited without a thread.

    Refused (503) when there is none, or no decoder gets free; `done` says there what is being done to too many
    pictures. The work is given an event that is set once the client has left, so that it ends soon.
    """
    gone = threading.Event()
    try:
        await _take(request, room, patience)
        try:
            return await _unless_gone(request, gone, run_in_threadpool(work, gone))
        finally:
            room.give_back(1)
    except (Full, Busy):
        raise Refused(503, f"too many pictures are being {done}: try again in a moment", RETRY) from None


async def _take(request: Request, room: Room, patience: float) -> None:
    end = time.monotonic() + patience
    while True:
        try:
            return room.take(1)
        except Full:
            if time.monotonic() >= end:
                raise
        if await request.is_disconnected():
            raise ClientGone
        await asyncio.sleep(_LOOK)


async def _unless_gone(request: Request, gone: threading.Event, work: Coroutine[Any, Any, Result]) -> Result:
    """Wait for the work; once the client has left, `gone` is set so that it ends soon."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=_LOOK))[0]:
            if await request.is_disconnected():
                gone.set()
        return await task
    finally:
        gone.set()
