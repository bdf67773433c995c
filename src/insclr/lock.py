"""A lock for one writer at a time, released when its process ends."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from insclr.errors import WHERE_IT_RUNS, UserError


@contextlib.contextmanager
def only_writer(file: Path, wait: float) -> Iterator[None]:
    """Hold the lock on `file`; the system frees it when the process and all that it forked have ended.

    UserError, naming the other process, when it is still held after `wait` seconds.
    """
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(handle, file, wait)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def _take(handle: int, file: Path, wait: float) -> None:
    try:
        import fcntl
    except ImportError as error:
        raise UserError(WHERE_IT_RUNS) from error
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                writer = os.pread(handle, 32, 0).decode(errors="replace") or "unknown"
                raise UserError(
                    f"another writer (process {writer}) is busy with {file.parent}: waited {wait:g} s; "
                    "try again when it has finished"
                ) from None
            time.sleep(0.05)
