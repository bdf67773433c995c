"""The cache of exported and compiled graphs in the user's cache folder, by the digest of their source."""

import contextlib
import errno
import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from insclr import __version__
from insclr.files import whole_file

logger = logging.getLogger(__name__)

_FORMAT = 1
_OURS = b'{"made by": "insclr '  # how the header of every file begins
MAX_CACHED_FILES = 40  # the longest unused ones go
# What could not be written, for the rest of this process.
_unwritten: dict[Path, "Kept"] = {}


@dataclass(frozen=True)
class Kept:
    """A content and what was written down about it."""

    content: bytes
    about: dict[str, Any]


def cache_folder() -> Path:
    """INSCLR_CACHE, or `insclr` in the user's own cache folder."""
    if own := os.environ.get("INSCLR_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "insclr"
    try:
        return Path.home() / ".cache" / "insclr"
    except RuntimeError:  # a user without a home, as in some containers: nothing can be kept
        return Path(os.devnull) / "insclr"


class EngineCache:
    """Files that can be made again: one of another version of this package, or a damaged one, is not there."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder()

    def read(self, name: str, stamp: str = "") -> Kept | None:
        """What `write` kept under this name with this stamp."""
        file = self.folder / name
        if (unwritten := _unwritten.get(file)) is not None:
            return unwritten
        if not self._is_ours_alone():
            return None
        try:
            first, _, content = file.read_bytes().partition(b"\n")
            header = json.loads(first)
            if header["made by"] != _maker(stamp) or header["sha256"] != _digest(content):
                return None
            about = dict(header["about"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        return Kept(content, about)

    def write(self, name: str, stamp: str, content: bytes, about: dict[str, Any]) -> None:
        """Keep a content; where the folder takes no files it is kept for this process alone, with a warning."""
        file = self.folder / name
        header = {"made by": _maker(stamp), "sha256": _digest(content), "about": about}
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            if not self._is_ours_alone():
                raise PermissionError(errno.EPERM, "other users can write to it: chmod go-w")
            with whole_file(file) as scratch:
                scratch.write_bytes(json.dumps(header).encode() + b"\n" + content)
        except OSError as error:
            if not any(kept.parent == self.folder for kept in _unwritten):
                logger.warning(
                    "%s takes no files (%s): what is prepared for the engine is prepared again next time. "
                    "INSCLR_CACHE names another folder.",
                    *(self.folder, error.strerror),
                )
            _unwritten[file] = Kept(content, about)
        else:
            with contextlib.suppress(OSError):  # another process may be about the same
                self._forget_unused()

    def _is_ours_alone(self) -> bool:
        """Whether no other user could have put a file there: what is read from it is run."""
        try:
            state = self.folder.stat()
        except OSError:
            return False
        return state.st_uid in (os.getuid(), 0) and not state.st_mode & 0o022

    def _forget_unused(self) -> None:
        ours = [file for file in self.folder.iterdir() if file.is_file() and _is_ours(file)]
        for file in sorted(ours, key=lambda file: file.stat().st_mtime)[:-MAX_CACHED_FILES]:
            file.unlink(missing_ok=True)


def _is_ours(file: Path) -> bool:
    """Whether `write` made it: INSCLR_CACHE may name a folder in which other things lie, too."""
    with file.open("rb") as opened:
        return opened.read(len(_OURS)) == _OURS


def _maker(stamp: str) -> str:
    return f"insclr {__version__} {_FORMAT} {stamp}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
