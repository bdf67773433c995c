"""The process that the page starts for its button: `insclr learn`."""

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Any

from insclr.errors import UserError
from insclr.web.served import Refused, Served

_log = logging.getLogger(__name__)
# The steps of learning in words, and how the stages of each begin in the log.
_STEPS = (
    ("describing the photos", ("starting", "listing", "loading", "extracting", "describing")),
    ("training", ("measuring", "round", "candidate", "finishing")),
    ("writing the report", ("writing",)),
    ("indexing the photos with the new model", ("indexing", "building", "calibrating", "local")),
)
_TAIL = 8192  # bytes of the log that hold its last lines


@dataclass(frozen=True)
class LearningState:
    """Where the learning is."""

    state: str = "idle"  # idle, running, done or failed
    seconds: float = 0.0
    message: str = ""
    step: int = 0  # at hand, from 1
    steps: int = len(_STEPS)
    doing: str = ""  # the step in words
    left: float | None = None  # seconds until it is trained; in the last step, until all is done


class Learning:
    """At most one learning process; its store is served beside the one that it started from."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._log: IO[bytes] | None = None
        self._stopped = False
        self._state = LearningState()

    def state(self) -> LearningState:
        """The present state."""
        with self._lock:
            if self._state.state == "running" and self._log is not None:
                return replace(read_step(self._log), state="running", seconds=self._seconds())
            return self._state

    def start(self, recipe: str = "fast") -> None:
        """Begin to learn from the feedback of the first store; Refused when that is not possible now."""
        home = self._served.stores[0]
        if home.store.folder is None:
            raise Refused(
                409,
                f"this store is elsewhere: run `insclr learn {home.store.uri} --out FOLDER` and serve its store",
            )
        feedback = home.feedback.read()
        if not feedback.links and not feedback.things:
            raise Refused(
                409, "there are no names or answers yet: answer some questions or name some things first"
            )
        with self._lock:
            if self._state.state == "running":
                raise Refused(409, "it is learning already")
            log = tempfile.TemporaryFile()  # noqa: SIM115 (read when the process has ended)
            # -P: modules never come from the folder that the server was started in.
            command = [sys.executable, "-P", "-m", "insclr", "--log", "json", "learn", home.store.uri]
            self._process = subprocess.Popen(
                [*command, "--recipe", recipe], stdout=subprocess.DEVNULL, stderr=log
            )
            self._log, self._stopped = log, False
            self._began = time.monotonic()
            self._state = LearningState("running")
        threading.Thread(target=self._wait, args=(self._process, log), daemon=True).start()

    def stop(self) -> None:
        """End a process that is still learning; what is done stays, and the next start continues there."""
        with self._lock:
            process, self._process = self._process, None
            self._stopped = True
        if process is not None and process.poll() is None:
            process.terminate()

    def _seconds(self) -> float:
        return round(time.monotonic() - self._began, 1)

    def _wait(self, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
        status = process.wait()
        took = self._seconds()
        state = LearningState("failed", took, "it ended unexpectedly: see the server's log")
        try:
            if status and self._stopped:
                state = LearningState(
                    "idle", took, "stopped: the old model stays, and Learn continues from here"
                )
            elif status:
                lines = _read_log(log)
                message = lines[-1].get("message") if lines else None
                raise UserError(str(message or f"the process ended with status {status}"))
            else:
                self._serve()
                state = LearningState("done", took, f"learned in {took:.0f} s")
        except (UserError, OSError) as error:
            _log.warning("learning failed: %s", error)
            state = LearningState("failed", took, str(error))
        finally:
            with self._lock:
                self._state, self._log = state, None
            log.close()

    def _serve(self) -> None:
        """Serve the new model of the store, and the one it came from as "before"."""
        from insclr.web.server import open_served

        found = tuple(open_served([self._served.stores[0].store.uri]))
        for one in found:
            if not self._served.settings.originals:
                one.hide_camera_data()
        self._served.stores = found


def read_step(log: IO[bytes]) -> LearningState:
    """The step that the log of a learning process has come to."""
    for line in reversed(_read_log(log)):
        for stage in line.get("stages") or ():
            for step, (doing, stages) in enumerate(_STEPS, start=1):
                if str(stage.get("stage", "")).startswith(stages):
                    return LearningState(step=step, doing=doing, left=line.get("left"))
    return LearningState(step=1, doing=_STEPS[0][0])


def _read_log(log: IO[bytes]) -> list[dict[str, Any]]:
    """The last lines of a log, without moving the place at which another process writes."""
    size = os.fstat(log.fileno()).st_size
    text = os.pread(log.fileno(), _TAIL, max(0, size - _TAIL)).decode(errors="replace")
    found = []
    for line in text.splitlines():
        with suppress(ValueError):  # the first one may be cut
            if isinstance(value := json.loads(line), dict):
                found.append(value)
    return found
