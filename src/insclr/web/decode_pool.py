"""Decodes images of strangers in a few worker processes that are killed when they overrun."""

import contextlib
import json
import logging
import os
import queue
import select
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
from insclr.web.decode_worker import FRAME

_log = logging.getLogger(__name__)
_MAX_ANSWER = 1_000_000_000  # bytes
_JOBS = 500  # of one worker: then a fresh one takes its place
_SLICE = 50  # ms between two looks at the client
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}


class Busy(Exception):
    """All workers have more to do than can be waited for."""


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True)
class DecodedImage:
    """An RGB image, perhaps reduced by `factor`, and the size it has without."""

    image: Image.Image
    whole: tuple[int, int]
    factor: int


class Part(NamedTuple):
    """The size of a part of an image, in pixels or as fractions of the image's sides."""

    width: float
    height: float
    fractions: bool


class DecodePool:
    """`workers` processes, started when they are needed; a job has `seconds`, and waits so long for its turn."""

    def __init__(self, workers: int = 2, seconds: float = 10.0) -> None:
        self.seconds = seconds
        self.killed = 0  # workers that overran or died
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
        """Decode an image of which `longest`, or so much of a `part` of this size, is wanted.

        Raises BadImage, Busy or ClientGone.
        """
        job: dict[str, Any] = {"longest": longest, "part": part, "max_pixels": max_pixels, "jpeg": 0}
        header, content = self._run(source, job, gone)
        image = Image.frombytes("RGB", tuple(header["size"]), content)
        return DecodedImage(image, tuple(header["whole"]), header["factor"])

    def jpeg(
        self, source: Path, side: int, quality: int, max_pixels: int, gone: threading.Event | None = None
    ) -> bytes:
        """A small JPEG of an image; raises BadImage, Busy or ClientGone."""
        job = {"longest": side, "part": None, "max_pixels": max_pixels, "jpeg": quality}
        return self._run(source, job, gone)[1]

    def close(self) -> None:
        """End the workers; whoever waits for one gets Busy."""
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
            end = time.monotonic() + self.seconds
            header, answer = worker.exchange(FRAME.pack(len(text), len(content)) + text, content, end, gone)
            kept = worker if worker.jobs < _JOBS and not self._closed.is_set() else None
        except _Overran as overran:
            self.killed += 1
            raise Busy if self._closed.is_set() else BadImage(str(overran)) from None
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
                place = self._places.get(timeout=_SLICE / 1000)
                return place or self._started()
        raise Busy

    def _started(self) -> "_Worker":
        """A new worker for the place just taken; Busy, and the place is free again, when none can be started."""
        try:
            worker = _Worker()
        except OSError as error:  # no memory, processes or open files are left
            self._places.put(None)
            _log.warning("no process can be started to decode images: %s", error)
            raise Busy from None
        self._live.add(worker)
        return worker


class _Overran(Exception):
    """What a worker that had to be killed, or died, could not do."""


class _Worker:
    def __init__(self) -> None:
        self.jobs = 0
        # -P: modules come from where this process has its own, never from the folder it was started in.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "insclr.web.decode_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | _ONE_THREAD,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    def exchange(
        self, header: bytes, content: bytes, end: float, gone: threading.Event | None
    ) -> tuple[dict[str, Any], bytes]:
        """Send a job and take its answer; raises _Overran or ClientGone, after which the worker is of no use."""
        self.jobs += 1
        waiting = [memoryview(header), memoryview(content)]
        answer = bytearray()
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        poll.register(self._in, select.POLLOUT)
        while (lengths := _whole(answer)) is None:
            if gone is not None and gone.is_set():
                raise ClientGone
            if time.monotonic() > end:
                raise _Overran("takes too long to decode")
            for file, _ in poll.poll(_SLICE):
                if file == self._out:
                    self._read_into(answer)
                elif not self._send(waiting):
                    poll.unregister(self._in)
        start, body = FRAME.size + lengths[0], lengths[1]
        return json.loads(answer[FRAME.size : start]), bytes(answer[start : start + body])

    def _send(self, waiting: list[memoryview]) -> bool:
        """Write what the pipe takes; False when all is written."""
        try:
            written = os.write(self._in, waiting[0])
        except BlockingIOError:
            return True
        except BrokenPipeError:
            raise _Overran("cannot be decoded") from None
        waiting[0] = waiting[0][written:]
        while waiting and not waiting[0]:
            waiting.pop(0)
        return bool(waiting)

    def _read_into(self, answer: bytearray) -> None:
        with contextlib.suppress(BlockingIOError):
            found = os.read(self._out, 1 << 20)
            if not found:
                raise _Overran("cannot be decoded in the memory allowed for it")
            answer += found

    def end(self) -> None:
        """Kill the process and free its pipes."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        self._process.wait()


def _whole(answer: bytearray) -> tuple[int, int] | None:
    """The lengths of header and bytes once all of both is there."""
    if len(answer) < FRAME.size:
        return None
    header, body = FRAME.unpack_from(answer)
    if body > _MAX_ANSWER:
        raise _Overran("cannot be decoded")
    return (header, body) if len(answer) >= FRAME.size + header + body else None


def _end_all(live: "set[_Worker]") -> None:
    for worker in list(live):
        worker.end()
