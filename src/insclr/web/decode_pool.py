"""Decode images from unknown sources in a few worker processes that are killed when they take too long."""

import contextlib
import json
import logging
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from insclr.data.decode import BadImage
from insclr.data.decode_limits import MAX_PIXELS
from insclr.web.limits import Busy, ClientGone

_log = logging.getLogger(__name__)
_MAX_ANSWER = 1_000_000_000  # bytes
_JOBS = 500  # of one worker, before a new one replaces it
_POLL_INTERVAL = 0.05  # seconds
_START_SECONDS = 60.0
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}


@dataclass(frozen=True)
class DecodedImage:
    """An RGB image, possibly reduced by `factor`, and its full size."""

    image: Image.Image
    whole: tuple[int, int]
    factor: int


class Part(NamedTuple):
    """The size of a part of an image, in pixels or as fractions of the image's sides."""

    width: float
    height: float
    fractions: bool


class DecodePool:
    """Up to `workers` processes, started on demand; a job may wait `seconds` for a worker and then run as long."""

    def __init__(self, workers: int = 2, seconds: float = 10.0) -> None:
        self.seconds = seconds
        self.killed = 0  # workers that took too long or died
        self._places: queue.Queue[_Worker | None] = queue.Queue()
        for _ in range(workers):
            self._places.put(None)
        self._live: set[_Worker] = set()
        self._closed = threading.Event()
        weakref.finalize(self, _end_all, self._live)

    def pixels(
        self,
        source: bytes | Path,
        longest: int,
        *,
        part: Part | None = None,
        max_pixels: int,
        gone: threading.Event | None = None,
    ) -> DecodedImage:
        """Decode an image at a size that suffices for `longest` pixels of it, or of a `part` of this size.

        Raises BadImage, Busy or ClientGone.
        """
        job: dict[str, Any] = {"longest": longest, "part": part, "max_pixels": max_pixels, "jpeg": 0}
        header, content = self._run(source, job, gone)
        image = Image.frombytes("RGB", tuple(header["size"]), content)
        return DecodedImage(image, tuple(header["whole"]), header["factor"])

    def size(self, content: bytes, gone: threading.Event | None = None) -> tuple[int, int]:
        """Width and height of an image by its header; raises BadImage, Busy or ClientGone."""
        width, height = self._run(content, {"header": True, "max_pixels": MAX_PIXELS}, gone)[0]["size"]
        return width, height

    def jpeg(
        self, source: Path, side: int, quality: int, max_pixels: int, gone: threading.Event | None = None
    ) -> bytes:
        """A small JPEG of an image; raises BadImage, Busy or ClientGone."""
        job = {"longest": side, "part": None, "max_pixels": max_pixels, "jpeg": quality}
        return self._run(source, job, gone)[1]

    def close(self) -> None:
        """End the workers; waiting jobs raise Busy."""
        self._closed.set()
        _end_all(self._live)

    def _run(
        self, source: bytes | Path, job: dict[str, Any], gone: threading.Event | None
    ) -> tuple[dict[str, Any], bytes]:
        content = source if isinstance(source, bytes) else b""
        text = json.dumps(job | {"path": None if isinstance(source, bytes) else str(source)}).encode()
        worker = self._take(gone)
        kept = None
        try:
            header, answer = worker.run(text, content, self.seconds, gone)
            kept = worker if worker.jobs < _JOBS and not self._closed.is_set() else None
        except _Failed as failed:
            self.killed += 1
            raise Busy if self._closed.is_set() else BadImage(str(failed)) from None
        finally:
            if kept is None:
                worker.end()
                self._live.discard(worker)
            self._places.put(kept)
        if "reason" in header:
            raise BadImage(str(header["reason"])[:200])
        return header, answer

    def _take(self, gone: threading.Event | None) -> "_Worker":
        end = time.monotonic() + self.seconds
        while not self._closed.is_set() and time.monotonic() < end:
            if gone is not None and gone.is_set():
                raise ClientGone
            with contextlib.suppress(queue.Empty):
                place = self._places.get(timeout=_POLL_INTERVAL)
                return place or self._start()
        raise Busy

    def _start(self) -> "_Worker":
        """Start a worker for the place just taken; on failure free the place and raise Busy."""
        try:
            worker = _Worker()
        except OSError as error:  # no memory, processes or open files are left
            self._places.put(None)
            _log.warning("no process can be started to decode images: %s", error)
            raise Busy from None
        self._live.add(worker)
        return worker


class _Failed(Exception):
    """A worker was killed or died; the message is the reason for the user."""


class _Worker:
    def __init__(self) -> None:
        self.jobs = 0
        self._pipe, other = multiprocessing.Pipe()
        with other:
            # -P: never import modules from the current folder.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "insclr.web.decode_worker", str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env=os.environ | _ONE_THREAD,
            )

    def run(
        self, job: bytes, content: bytes, seconds: float, gone: threading.Event | None
    ) -> tuple[dict[str, Any], bytes]:
        """Send a job and receive its answer; after _Failed or ClientGone the worker cannot be used again."""
        if not self.jobs:
            self._wait_until_ready(gone)
        self.jobs += 1
        overran = threading.Event()

        def kill() -> None:
            overran.set()
            self._process.kill()

        timer = threading.Timer(seconds, kill)
        timer.start()
        try:
            self._pipe.send_bytes(job)
            self._pipe.send_bytes(content)
            while not self._pipe.poll(_POLL_INTERVAL):
                if gone is not None and gone.is_set():
                    raise ClientGone
            return json.loads(self._pipe.recv_bytes(_MAX_ANSWER)), self._pipe.recv_bytes(_MAX_ANSWER)
        except (EOFError, OSError, ValueError):
            late = overran.is_set()
            raise _Failed(
                "takes too long to decode" if late else "cannot be decoded in the memory allowed for it"
            ) from None
        finally:
            timer.cancel()

    def _wait_until_ready(self, gone: threading.Event | None) -> None:
        """The start of a process does not count as decoding."""
        end = time.monotonic() + _START_SECONDS
        try:
            while not self._pipe.poll(_POLL_INTERVAL):
                if gone is not None and gone.is_set():
                    raise ClientGone
                if time.monotonic() > end:
                    raise Busy
            self._pipe.recv_bytes(_MAX_ANSWER)
        except (EOFError, OSError) as error:
            _log.warning("a process that decodes images ended as it started: %s", error)
            raise Busy from None

    def end(self) -> None:
        """Kill the process; the pipe closes with its last reference."""
        self._process.kill()
        self._process.wait()


def _end_all(live: "set[_Worker]") -> None:
    for worker in list(live):
        worker.end()
