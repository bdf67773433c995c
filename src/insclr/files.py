"""Files and folders that appear under their final name only when they are whole."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path | str) -> Iterator[Path]:
    """Yield a scratch path beside `path`; on success it is flushed to disk and renamed to `path`.

    On any error the scratch file is removed and what `path` held before is untouched.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = _aside(path)
    try:
        yield scratch
        with scratch.open("rb") as written:
            os.fsync(written.fileno())
        # Some writers make files for the owner alone; ours are as readable as any other of the user's.
        scratch.chmod(0o666 & ~_UMASK)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path | str) -> Iterator[Path]:
    """Yield a scratch folder beside `path`; on success it takes the name `path`, replacing an old one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = _aside(path)
    scratch.mkdir()
    try:
        yield scratch
        if path.exists():
            # A folder cannot be renamed over a full one: move the old one away first.
            old = _aside(path)
            path.rename(old)
            scratch.rename(path)
            shutil.rmtree(old)
        else:
            scratch.rename(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# Read once: asking changes it for a moment, which other threads must not see.
_UMASK = _read_umask()


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
