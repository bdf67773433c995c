"""Tell the report how precise search is: `insclr answers proof` in a process of its own, for it loads torch."""

import logging
import subprocess
import sys
import threading

from insclr.feedback.proof import ENOUGH
from insclr.web.served import Served

_log = logging.getLogger(__name__)
_EVERY = 10  # further judged results until the report is written again


class Proving:
    """At most one process at a time writes the report of the model that is served first."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._told = ("", 0)  # the store and the judged results that its report tells of

    def judged(self, count: int) -> None:
        """So many results were judged for every store: write the report if it is time."""
        stores = [one.store for one in self._served.stores]
        uris = [store.uri for store in stores]
        with self._lock:
            store, told = self._told
            told = told if store == uris[0] else 0
            busy = self._process is not None and self._process.poll() is None
            on_server = any(store.folder is None for store in stores)
            if busy or count < ENOUGH or count < told + _EVERY or on_server:
                return
            # -P: modules never come from the folder that the server was started in.
            command = [sys.executable, "-P", "-m", "insclr", "answers", "proof", uris[0]]
            command += ["--before", uris[1]] if len(uris) > 1 else []
            _log.info("the report is told about %d judged results", count)
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            self._told = (uris[0], count)

    def stop(self) -> None:
        """Wait for a report that is being written: it takes seconds."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.wait()
