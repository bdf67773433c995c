"""Open the SQLite file of a store, for durable writes or read-only, and explain its errors."""

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from insclr.errors import UserError
from insclr.store.checks import Checks
from insclr.store.nearest import SCHEMA as REGIONS_SCHEMA
from insclr.store.segments import SCHEMA as SEGMENTS_SCHEMA

Result = TypeVar("Result")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS pictures (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL UNIQUE,
    hash TEXT NOT NULL,
    size INTEGER NOT NULL,
    mtime INTEGER NOT NULL,
    columns TEXT NOT NULL,  -- JSON, the values as the CSV has them
    numbers TEXT NOT NULL,  -- not used
    vector BLOB NOT NULL    -- half precision
);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS journal (id TEXT PRIMARY KEY, entry TEXT NOT NULL);
INSERT OR IGNORE INTO notes (name, text) VALUES ('version', '0');
"""
UPSERT = """
INSERT INTO pictures (path, hash, size, mtime, columns, numbers, vector) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (path) DO UPDATE SET hash = excluded.hash, size = excluded.size, mtime = excluded.mtime,
    columns = excluded.columns, numbers = excluded.numbers, vector = excluded.vector
"""
# SQLite maps the index of its log, which fails under a limit of memory.
_NO_MEMORY = (sqlite3.SQLITE_IOERR_NOMEM, sqlite3.SQLITE_IOERR_SHMMAP)
_INDEX_BYTES = 32_768


class DamagedFile(UserError):
    """The file is not a readable database of insclr."""


def connect(file: Path) -> sqlite3.Connection:
    """Open the database, or create it; UserError when the file is no database."""
    options: dict[str, Any] = {"timeout": 30, "check_same_thread": False, "isolation_level": None}
    with explain_errors(file):
        if file.exists() and not os.access(file.parent, os.W_OK):
            return _connect_read_only(file, options)
        return repeat(lambda: _connect(file, options))


def _connect(file: Path, options: dict[str, Any]) -> sqlite3.Connection:
    rows: sqlite3.Connection = sqlite3.connect(file, **options)
    try:
        rows.execute("PRAGMA journal_mode = WAL")
        # A batch that was reported as written survives a power cut. One fsync takes milliseconds,
        # describing a batch takes seconds.
        rows.execute("PRAGMA synchronous = FULL")
        rows.text_factory = _read_text
    except BaseException:
        rows.close()
        raise
    return rows


def repeat(work: Callable[[], Result]) -> Result:
    """The result of some reading, which is done again where the disk fails: one failure is no damage."""
    try:
        return work()
    except sqlite3.DatabaseError as error:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        return work()


def _connect_read_only(file: Path, options: dict[str, Any]) -> sqlite3.Connection:
    """Open the database on a read-only disk, where SQLite cannot create its log."""
    log = file.with_name(f"{file.name}-wal")
    if log.exists() and log.stat().st_size:
        raise UserError(
            f"{file.parent} cannot be written, and its last writer did not finish: copy the folder to a disk that "
            "can be written and use the copy."
        )
    rows: sqlite3.Connection = sqlite3.connect(
        f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True, **options
    )
    return rows


def _read_text(content: bytes) -> str:
    return content.decode(errors="replace")  # only damaged text is no UTF-8, and its checksum tells


def open_rows(file: Path) -> tuple[sqlite3.Connection, Checks]:
    """The database of a store; what one of an earlier version lacks is added."""
    with explain_errors(file):
        return repeat(lambda: _open_rows(file))


def _open_rows(file: Path) -> tuple[sqlite3.Connection, Checks]:
    rows = connect(file)
    try:
        checks = Checks(rows, file)
        is_store = rows.execute("SELECT 1 FROM sqlite_master WHERE name = 'pictures'").fetchone()
        if is_store and checks.missing():
            _complete(rows, checks)
    except BaseException:
        rows.close()
        raise
    return rows, checks


def create_tables(file: Path, info: str) -> None:
    """Make what is missing of a store's database."""

    def create() -> None:
        with closing(connect(file)) as rows:
            _complete(rows, Checks(rows, file), info)

    with explain_errors(file):
        repeat(create)


def _complete(rows: sqlite3.Connection, checks: Checks, info: str = "") -> None:
    rows.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {REGIONS_SCHEMA} {SEGMENTS_SCHEMA} COMMIT;")
    rows.execute("BEGIN IMMEDIATE")
    if info:
        rows.execute("INSERT OR IGNORE INTO notes (name, text) VALUES ('info', ?)", (info,))
    checks.add()
    checks.fill("notes", "name = ?", ["info"])
    rows.execute("COMMIT")


@contextmanager
def explain_errors(file: Path) -> Iterator[None]:
    """Convert SQLite's errors into UserErrors, and those of a full or read-only disk into OSErrors."""
    try:
        yield
    except sqlite3.Error as error:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code == sqlite3.SQLITE_NOMEM or getattr(error, "sqlite_errorcode", None) in _NO_MEMORY:
            raise MemoryError(f"{file}: out of memory") from error
        # The index of SQLite's log is a mapped file: where it finds no space, that is an error of the disk.
        is_full = code == sqlite3.SQLITE_IOERR and shutil.disk_usage(file.parent).free < _INDEX_BYTES
        if code == sqlite3.SQLITE_FULL or is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file)) from error
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise OSError(errno.EROFS, f"cannot be written ({error})", str(file)) from error
        if code == sqlite3.SQLITE_BUSY:
            raise UserError(f"{file} is busy with another writer: try again when it has finished.") from error
        if code == sqlite3.SQLITE_IOERR:
            raise OSError(errno.EIO, f"the disk fails ({error})", str(file)) from error
        raise report_damage(file, error) from error


def report_damage(file: Path, error: Exception) -> UserError:
    """The error to raise for a damaged database."""
    return DamagedFile(
        f"{file} is damaged or not a store of insclr ({error}). Copy back the store from a backup; without "
        "one, export its names as far as `insclr names export` can read them, and index again under another name."
    )
