"""Open the user's files, write files and folders atomically, and lock a folder for one writer."""

import contextlib
import ctypes
import errno
import glob
import hashlib
import io
import json
import os
import re
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar

from insclr.errors import WHERE_IT_RUNS, UserError

Value = TypeVar("Value")
_PART = ".part"
_BEGAN = time.time()
_NEARLY_FULL = 64_000_000  # bytes
_SYNCS = 16  # files that are written to disk at a time
_WRITE_FAILED = re.compile(r"writ\w+ (file|error|failed)|iostream error|inline_container")  # faiss, torch
_ABANDONED = 24 * 3600.0  # seconds after which nobody can still be writing a scratch file


def open_file(path: Path | str) -> io.BufferedReader:
    """Open a user's file for reading; OSError when it is a folder, a pipe, a device or a socket.

    Those could hold up a run for ever or never end, so they are not even opened. The type is checked
    again after opening, since a file may be replaced in between.
    """
    _require_regular(os.stat(path), path)  # noqa: PTH116 (fstat below has no Path form either)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _require_regular(os.fstat(handle), path)
        return open(handle, "rb")  # noqa: PTH123 (of a handle, and the caller closes it)
    except BaseException:
        os.close(handle)
        raise


def open_text(path: Path | str, encoding: str = "utf-8", newline: str | None = None) -> TextIO:
    """Open a user's text file like `open_file`."""
    return io.TextIOWrapper(open_file(path), encoding=encoding, newline=newline)


def read_bytes(path: Path | str, limit: int) -> bytes:
    """The content of a user's file; OSError (EFBIG) when there are more than `limit` bytes."""
    with open_file(path) as opened:
        size = os.fstat(opened.fileno()).st_size
        content = opened.read(limit + 1) if size <= limit else b""
    if size > limit or len(content) > limit:
        size = max(size, len(content))
        raise OSError(errno.EFBIG, f"too large: {size / 1e6:.0f} MB, limit {limit / 1e6:.0f}", str(path))
    return content


def reserve(file: int, size: int) -> None:
    """Take the disk space of a file that is mapped now: a disk that fills up later would kill the process at once."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


def is_there(path: Path) -> bool:
    """Whether there is something under this name; no for names that the system does not even take."""
    return os.path.exists(path)  # noqa: PTH110 (Path.exists raises where a name is too long)


def read_json(path: Path, read: Callable[[dict[str, Any]], Value]) -> Value:
    """What `read` makes of the object in a JSON file that we wrote; UserError when it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise TypeError("no object")
        return read(found)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{path} is damaged ({error}): restore it, or make the folder that it lies in again."
        ) from error


def content_hash(content: bytes) -> str:
    """The hash by which a file's content is known in a store."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def hash_file(opened: io.BufferedReader) -> str:
    """The same of an open file from where it stands, read in pieces."""
    return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _require_regular(status: os.stat_result, path: Path | str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder, not a file", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


@contextlib.contextmanager
def whole_file(path: Path | str) -> Iterator[Path]:
    """Yield a scratch path beside `path`; on success it is written to disk and renamed to `path`.

    After a crash or a power cut `path` holds the old content or the new one, whole; once the block has ended, the
    new one. On any error the scratch file is removed and what `path` held before is untouched.
    """
    path = Path(path)
    scratch = _prepare_aside(path)
    try:
        with _disk_errors(path):
            yield scratch
        # Some writers make files for the owner alone; ours are as readable as any other of the user's.
        scratch.chmod(0o666 & ~_UMASK)
        _sync(scratch)
        scratch.replace(path)
        _sync(path.parent)
    finally:
        with contextlib.suppress(OSError):  # it must not hide what went wrong before
            scratch.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path | str) -> Iterator[Path]:
    """Yield a scratch folder beside `path`; on success it takes the name `path` at once, replacing an old one.

    The notes of `whole_file` apply here too.
    """
    path = Path(path)
    scratch = _prepare_aside(path)
    try:
        with _disk_errors(path):
            scratch.mkdir()
            yield scratch
        _sync_tree(scratch)
        if not path.exists():
            scratch.rename(path)
        elif not _exchange(scratch, path):
            # This file system cannot swap two folders: for a moment `path` is not there.
            old = _aside(path)
            path.rename(old)
            scratch.rename(path)
            old.rename(scratch)
        _sync(path.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _prepare_aside(path: Path) -> Path:
    """Make the folder of `path`, clear what was forgotten there, and name a scratch file or folder beside `path`."""
    _make_folder(path.parent)
    for scratch in path.parent.glob(f".{glob.escape(path.name)}.*{_PART}"):
        _remove_if_older(scratch, time.time() - _ABANDONED)
    return _aside(path)


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Make an OSError of what libraries say when they cannot write: some have errors of their own for it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            if not error.filename or _PART in str(error.filename):
                error.filename = str(path)
            raise
        text = str(error)
        if (
            named := re.search(r"(?:\(os error|Os \{ code:) (\d+)", text)
        ) is not None:  # safetensors, 0.5 too
            code = int(named[1])
        elif "No space left" in text or re.search(r"\d+ requested and \d+ written", text):  # pyarrow, numpy
            code = errno.ENOSPC
        elif isinstance(error, RuntimeError) and _WRITE_FAILED.search(text):
            code = errno.ENOSPC if shutil.disk_usage(path.parent).free < _NEARLY_FULL else errno.EIO
        else:
            raise
        raise OSError(code, os.strerror(code), str(path)) from error


def system_error(error: BaseException) -> OSError | None:
    """The error of the system behind one that torch or safetensors raise when they read; None for other errors."""
    if type(error) is FileNotFoundError and error.errno is None:  # of safetensors, whatever the reason is
        return OSError(errno.EIO, "cannot be opened", str(error).partition(": ")[2])
    if isinstance(error, OSError):
        return error
    if type(error) is RuntimeError and (named := re.search(r"unable to .*<(.+)>.*\((\d+)\)", str(error))):
        return OSError(int(named[2]), os.strerror(int(named[2])), named[1])
    return None


def remove_leftovers(folder: Path) -> None:
    """Remove the scratch files that a killed process left anywhere in `folder`.

    Call it only while nobody else writes there. What was written since this process began stays: it may belong to
    another rank of the same run.
    """
    for scratch in folder.rglob(f".*{_PART}"):
        _remove_if_older(scratch, _BEGAN)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, and its own name too."""
    _sync(folder)
    _sync(folder.absolute().parent)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot do it for folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(handle)


def _sync_tree(folder: Path) -> None:
    """Everything in a folder, then the folder itself."""
    # Imported here: most commands write no folder, and every one of them starts with this file.
    from concurrent.futures import ThreadPoolExecutor

    # Side by side: the disk puts waiting writes together, and a thousand small files take a second instead of many.
    inside = list(os.walk(folder, topdown=False))
    with ThreadPoolExecutor(_SYNCS, thread_name_prefix="sync") as threads:
        list(threads.map(_sync, [Path(at, name) for at, _, files in inside for name in files]))
        list(threads.map(_sync, [Path(at) for at, _, _ in inside]))


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    at_cwd, exchange = -100, 2
    if rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _remove_if_older(scratch: Path, moment: float) -> None:
    with contextlib.suppress(FileNotFoundError):
        if scratch.lstat().st_mtime >= moment:
            return
        if scratch.is_dir():
            shutil.rmtree(scratch, ignore_errors=True)
        else:
            scratch.unlink()


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# Read once: asking changes it for a moment, which other threads must not see.
_UMASK = _read_umask()


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{_PART}")


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
