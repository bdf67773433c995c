"""The button "learn from my answers": `insclr learn` in a process of its own, then the page shows its store."""

import logging
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from insclr.errors import UserError
from insclr.web.served import Refused, Served

_log = logging.getLogger(__name__)
_RECIPE = "fast"
_LEARNED = "-learned-"


@dataclass(frozen=True)
class LearningState:
    """Where the learning is."""

    state: str = "idle"  # idle, running, done or failed
    seconds: float = 0.0
    message: str = ""


class Learning:
    """At most one learning process; what it makes is served beside what it started from."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._state = LearningState()

    def state(self) -> LearningState:
        """How far it is."""
        with self._lock:
            if self._state.state == "running":
                return LearningState("running", time.monotonic() - self._began)
            return self._state

    def start(self, recipe: str = _RECIPE) -> None:
        """Begin to learn from what was said about the first store; Refused when that is not possible now."""
        home = self._served.stores[0]
        folder = home.store.folder
        if folder is None:
            raise Refused(
                409,
                f"this store is elsewhere: run `insclr learn {home.store.uri} --out FOLDER` and serve its store",
            )
        if not home.feedback.read().links and not home.feedback.read().things:
            raise Refused(
                409, "nobody has said anything yet: answer some questions or name some things first"
            )
        with self._lock:
            if self._state.state == "running":
                raise Refused(409, "it is learning already")
            out = _free_folder(folder)
            log = tempfile.TemporaryFile()  # noqa: SIM115 (read when the process has ended)
            command = [
                sys.executable,
                "-P",  # modules never come from the folder that the server was started in
                "-m",
                "insclr",
                "learn",
                home.store.uri,
                "--out",
                str(out),
                "--recipe",
                recipe,
            ]
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
            self._began = time.monotonic()
            self._state = LearningState("running")
        threading.Thread(target=self._wait, args=(self._process, out, log), daemon=True).start()

    def stop(self) -> None:
        """End a process that is still learning."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()

    def _wait(
        self, process: "subprocess.Popen[bytes]", out: Path, log: "tempfile._TemporaryFileWrapper[bytes]"
    ) -> None:
        status = process.wait()
        took = time.monotonic() - self._began
        state = LearningState("failed", took, "it ended unexpectedly: see the server's log")
        try:
            if status:
                log.seek(0)
                told = log.read().decode(errors="replace").strip().splitlines()
                raise UserError(told[-1] if told else f"the process ended with status {status}")
            self._show(out)
            state = LearningState("done", took, f"learned in {took:.0f} s")
        except (UserError, OSError) as error:
            _log.warning("learning failed: %s", error)
            state = LearningState("failed", took, str(error))
        finally:
            log.close()
            with self._lock:
                self._state = state

    def _show(self, out: Path) -> None:
        """Serve the new store, and the one it came from as "before"."""
        from insclr.web.server import open_served

        old = self._served.stores[0]
        new = open_served([out / "store"])[0]
        new.store.append(old.store.journal())  # what was said while it was learning
        new.title, old.title = "After", "Before"
        self._served.stores = (new, old)


def _free_folder(store: Path) -> Path:
    """A folder beside the store that does not exist yet; what a learned store learns is beside the first one."""
    store = store.absolute()
    if store.name == "store" and _LEARNED in store.parent.name:
        store = store.parent.with_name(store.parent.name.rpartition(_LEARNED)[0])
    number = 1
    while (found := store.with_name(f"{store.name}{_LEARNED}{number}")).exists():
        number += 1
    return found
