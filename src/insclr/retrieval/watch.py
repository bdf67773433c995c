"""Index what arrives in a folder: the folder is looked at again and again, until somebody stops it."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from insclr.data.formats import on_disk
from insclr.data.images import ImageList, list_images
from insclr.describe.describer import Describer
from insclr.errors import UserError
from insclr.files import is_there
from insclr.retrieval.index import IndexReport, index_images
from insclr.store import open_store

_SHARE = 0.1  # of the time at most is spent on looking


class _State(NamedTuple):
    size: int  # bytes
    mtime: int  # nanoseconds


class Watcher:
    """Brings a store up to date with the files of a folder that have stopped growing.

    Rows of files that vanish stay: they may be on a disk that comes back. `insclr index --prune` drops them.
    """

    def __init__(self, describer: Describer, folder: Path, uri: str | Path) -> None:
        if not is_there(folder) or not folder.is_dir():
            raise UserError(f"{folder} is not a folder: give the folder that photos arrive in.")
        self.describer = describer
        self.folder = Path(os.path.abspath(folder))  # noqa: PTH100 (links stay as the user named them)
        self.uri = uri
        self.added = 0
        self.changed = 0
        self.looked_for = 0.0  # seconds that the last look at the folder took
        self._seen: dict[str, _State] = {}  # at the last look
        self._done: dict[str, _State] = {}  # indexed, or found to be unreadable

    def begin(self) -> int:
        """Take over what an existing store already holds; returns how many photos."""
        store = open_store(self.uri)
        try:
            rows = store.rows_by_path()
        finally:
            store.close()
        for path, row in rows.items():
            file = store.info.root / path
            if file.is_relative_to(self.folder):
                name = file.relative_to(self.folder).as_posix()
                self._done[name] = _State(row.image.size, row.image.mtime)
        return len(rows)

    def look(self) -> IndexReport | None:
        """Index the files that are new or changed and the same as at the last look; None when there are none."""
        now = self._states()
        ready = [name for name, state in now.items() if state.size and self._seen.get(name) == state]
        ready = [name for name in ready if self._done.get(name) != now[name]]
        self._seen = now
        self._done = {name: state for name, state in self._done.items() if name in now}
        if not ready:
            return None
        report = index_images(self.describer, ImageList(self.folder, tuple(ready)), self.uri)
        self._done |= {name: now[name] for name in ready}
        self.added += report.added
        self.changed += report.changed
        return replace(report, vanished=0)  # files that are not among the new ones are not missed

    def _states(self) -> dict[str, _State]:
        began = time.monotonic()
        found: dict[str, _State] = {}
        images = _photos(self.folder)
        for i, name in enumerate(images.paths):
            try:
                state = on_disk(images.file(i)).stat()
            except OSError:
                continue  # gone again, or not ours to read
            found[name] = _State(state.st_size, state.st_mtime_ns)
        self.looked_for = time.monotonic() - began
        return found


def watch(
    watcher: Watcher, every: float = 2.0, wait: Callable[[float], None] = time.sleep
) -> Iterator[IndexReport | UserError]:
    """Look at the folder every so many seconds for ever; yields what was indexed, and what went wrong.

    A mistake (a store that somebody else writes to, a folder that is unmounted, a full disk) ends nothing: it is told
    once, and the files wait for the next look.
    """
    told = ""
    while True:
        try:
            report = watcher.look()
        except (UserError, OSError) as error:
            if str(error) != told:
                yield error if isinstance(error, UserError) else UserError(_disk_trouble(error))
            told = str(error)
        else:
            told = ""
            if report is not None:
                yield report
        wait(max(every, watcher.looked_for / _SHARE))


def _disk_trouble(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}. The photos wait until that has passed."


def _photos(folder: Path) -> ImageList:
    """The photos of a folder, none of an empty one; UserError when it is not there."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not there any more: waiting for it to come back.")
    try:
        return list_images(folder)
    except UserError:
        return ImageList(folder, ())
