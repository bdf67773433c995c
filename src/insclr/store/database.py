"""The SQLite file of a store: tables, durable writes, notes, the journal, and a checksum of every row.

A flipped bit is found, and never becomes part of an answer.
"""

import errno
import io
import logging
import os
import shutil
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from insclr.errors import UserError
from insclr.store.rows import Entry, parse_entry

Result = TypeVar("Result")
_log = logging.getLogger(__name__)

# The triggers see to it that nobody who writes rows has to know of regions and segments: the regions of a row go with
# it, and those of a row that was described anew go too. `outdated` is the log of such rows.
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
CREATE TABLE IF NOT EXISTS regions (
    picture INTEGER PRIMARY KEY,
    boxes BLOB NOT NULL,   -- (regions, 4) float32, fractions of the picture
    vectors BLOB NOT NULL  -- (regions, dim) half precision
);
CREATE TRIGGER IF NOT EXISTS regions_deleted AFTER DELETE ON pictures
    BEGIN DELETE FROM regions WHERE picture = OLD.id; END;
CREATE TRIGGER IF NOT EXISTS regions_stale AFTER UPDATE OF vector ON pictures
    BEGIN DELETE FROM regions WHERE picture = OLD.id; END;
CREATE TABLE IF NOT EXISTS outdated (change INTEGER PRIMARY KEY AUTOINCREMENT, picture INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS outdated_deleted AFTER DELETE ON pictures
    BEGIN INSERT INTO outdated (picture) VALUES (OLD.id); END;
CREATE TRIGGER IF NOT EXISTS outdated_changed AFTER UPDATE OF vector ON pictures
    BEGIN INSERT INTO outdated (picture) VALUES (OLD.id); END;
"""
UPSERT = """
INSERT INTO pictures (path, hash, size, mtime, columns, numbers, vector) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (path) DO UPDATE SET hash = excluded.hash, size = excluded.size, mtime = excluded.mtime,
    columns = excluded.columns, numbers = excluded.numbers, vector = excluded.vector
"""

FORMAT = 1  # PRAGMA user_version of the database; 0: without checksums
_COVERED = {  # the columns that each checksum is of, by table
    "pictures": {"row_check": "id, path, hash, size, mtime, columns, numbers", "vector_check": "id, vector"},
    "regions": {"checksum": "picture, boxes, vectors"},
    "notes": {"checksum": "name, text"},
    "journal": {"checksum": "id, entry"},
}
_SMALL = 16_000_000  # bytes of a database whose structure is checked whenever it is opened
_SEAL = 4  # bytes that `seal` adds
# SQLite maps the index of its log, which fails under a limit of memory.
_NO_MEMORY = (sqlite3.SQLITE_IOERR_NOMEM, sqlite3.SQLITE_IOERR_SHMMAP)
_INDEX_BYTES = 32_768


class DamagedFile(UserError):
    """The file is not a readable database of insclr."""


def checksum(*values: object) -> int:
    """CRC-32 of values as SQLite casts them to bytes."""
    found = 0
    for value in values:
        content = value if isinstance(value, bytes) else str(value).encode()
        found = zlib.crc32(content, found ^ len(content))
    return found


def seal(content: bytes) -> bytes:
    """The content of a file of the cache, followed by its checksum."""
    return content + checksum(content).to_bytes(_SEAL, "little")


def unseal(content: bytes) -> bytes:
    """What `seal` was given; ValueError when it is damaged or something else."""
    if seal(content[:-_SEAL]) != content:
        raise ValueError("a checksum does not match")
    return content[:-_SEAL]


def array_bytes(array: NDArray[np.generic]) -> bytes:
    """An array as a sealed .npy file."""
    written = io.BytesIO()
    np.save(written, array)
    return seal(written.getvalue())


class Database:
    """The open database of a store or of one of its models; safe to share by threads."""

    def __init__(self, file: Path, info: str = "") -> None:
        """Open it; with `info` make it where it is not there. What one of an earlier version lacks is added.

        UserError when a newer version wrote it.
        """
        self.file = file
        self.lock = threading.RLock()
        self._reported: set[object] = set()  # what a warning has named
        with explain_errors(file):
            self.rows = _repeat(lambda: self._open(info))

    def _open(self, info: str) -> sqlite3.Connection:
        rows = connect(self.file)
        try:
            rows.create_function("crc", -1, checksum, deterministic=True)
            if (version := _version(rows)) > FORMAT:
                raise UserError(
                    f"{self.file.parent} was written by a newer version of insclr: update insclr to use it."
                )
            is_store = rows.execute("SELECT 1 FROM sqlite_master WHERE name = 'pictures'").fetchone()
            if info or (is_store and version < FORMAT):
                _complete(rows, info)
        except BaseException:
            rows.close()
            raise
        return rows

    def close(self) -> None:
        """Let go of the file."""
        with self.lock:
            self.rows.close()

    def select(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        with self.lock, explain_errors(self.file):
            return _repeat(lambda: self.rows.execute(statement, values).fetchall())

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written in the block is there afterwards, or nothing of it."""
        with self.lock, explain_errors(self.file), self.rows:
            self.rows.execute("BEGIN IMMEDIATE")
            yield self.rows

    def note(self, name: str) -> str | None:
        """The text under this name; None where there is none or it is damaged."""
        statement = f"SELECT name, text, {whole('notes')} FROM notes WHERE name = ?"
        kept = self.keep_whole("notes", self.select(statement, [name]))
        return str(kept[0][1]) if kept else None

    def set_note(self, name: str, text: str) -> None:
        """Keep a text under this name."""
        with self.transaction():
            self.write_note(name, text)

    def write_note(self, name: str, text: str) -> None:
        """Keep a text under this name, within the transaction at hand."""
        self.rows.execute("INSERT OR REPLACE INTO notes (name, text) VALUES (?, ?)", (name, text))
        self.fill("notes", "name = ?", [name])

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries to the journal, all or none; those that are there already are left as they are."""
        with self.transaction() as rows:
            rows.executemany(
                "INSERT OR IGNORE INTO journal (id, entry) VALUES (?, ?)",
                [(one.id, one.text()) for one in entries],
            )
            self.fill("journal", "id = ? AND checksum IS NULL", [one.id for one in entries])

    def journal(self) -> list[Entry]:
        """Every entry in the order of time, the damaged ones left out."""
        found = self.select(f"SELECT id, entry, {whole('journal')} FROM journal ORDER BY id")
        try:
            return [parse_entry(*row) for row in self.keep_whole("names or answers", found)]
        except (ValueError, TypeError) as error:
            raise report_damage(self.file, error) from error

    def fill(self, table: str, where: str, values: Sequence[object], *, only: str = "") -> None:
        """Compute the checksums (or `only` one of them) of the rows that were just written, one for each value."""
        self.rows.executemany(
            f"UPDATE {table} SET {_values(table, only)} WHERE {where}", [(one,) for one in values]
        )

    def keep_whole(self, what: str, found: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """The rows of a result whose last column is true for whole ones, without it; warns of the others once."""
        damaged = {row[0] for row in found if not row[-1]} - self._reported
        if damaged:
            self._reported |= damaged
            _log.warning(
                "%d damaged %s of the store are left out, the first %s: `insclr check STORE` lists all damage",
                *(len(damaged), what, min(map(str, damaged))),
            )
        return [tuple(row[:-1]) for row in found if row[-1]]

    def warn_of_structure(self) -> None:
        """Warn of a damaged structure where reading the whole database takes a moment only."""
        small = self.file.stat().st_size <= _SMALL
        # Twice: one failed read is no damage.
        if small and self._structure("quick") and (found := self._structure("quick")):
            folder = self.file.parent
            _log.warning(
                "%s is damaged (%s): `insclr check %s` lists all damage", self.file, found[0], folder
            )

    def drop_damaged(self) -> None:
        """Delete damaged rows and regions: the next `insclr index` describes them."""
        with self.transaction() as database:
            rows, regions = self._damaged_rows(), self._damaged_keys("regions")
            if rows or regions:
                names = ", ".join(path for _, path in rows[:5])
                _log.warning("%d damaged rows are described again: %s", len(rows), names or "their regions")
                database.executemany("DELETE FROM pictures WHERE id = ?", [(id_,) for id_, _ in rows])
                database.executemany("DELETE FROM regions WHERE picture = ?", [(one,) for one in regions])

    def find_damage(self) -> list[str]:
        """Read everything but the journal, and name what is damaged."""
        found = [f"structure of the database: {one}" for one in self._structure("integrity")]
        found += [f"row of {path}" for _, path in self._damaged_rows()]
        for table, what in (("regions", "regions of the row"), ("notes", "note")):
            found += [f"{what} {key}" for key in self._damaged_keys(table)]
        return found

    def find_journal_damage(self) -> list[str]:
        """The damaged entries of the journal."""
        return [f"feedback {one}" for one in self._damaged_keys("journal")]

    def _structure(self, check: str) -> list[str]:
        """What SQLite finds wrong with its own structure; by "integrity" its indexes are compared too."""
        found = self.select(f"PRAGMA {check}_check(20)")
        return [str(row[0]) for row in found if row[0] != "ok"]

    def _damaged_rows(self) -> list[tuple[Any, ...]]:
        both = " AND ".join(whole("pictures", column) for column in _COVERED["pictures"])
        return self.select(f"SELECT id, path FROM pictures WHERE NOT ({both})")

    def _damaged_keys(self, table: str) -> list[str]:
        """The key of every damaged row of a table."""
        key = _COVERED[table]["checksum"].partition(",")[0]
        return [str(row[0]) for row in self.select(f"SELECT {key} FROM {table} WHERE NOT {whole(table)}")]


def whole(table: str, column: str = "checksum") -> str:
    """An SQL expression: whether a row of the table is as it was written."""
    return f"coalesce({column} = {_crc(_COVERED[table][column])}, 1)"


def _version(rows: sqlite3.Connection) -> int:
    return int(rows.execute("PRAGMA user_version").fetchone()[0])


def _complete(rows: sqlite3.Connection, info: str) -> None:
    """Add what is missing: tables, the note `info` if there is one, and checksums."""
    rows.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    rows.execute("BEGIN IMMEDIATE")
    if info:
        rows.execute("INSERT OR IGNORE INTO notes (name, text) VALUES ('info', ?)", (info,))
    if _version(rows) < FORMAT:  # else another process has done it
        for table, columns in _COVERED.items():
            for column in columns:
                rows.execute(f"ALTER TABLE {table} ADD COLUMN {column} INTEGER")
            rows.execute(f"UPDATE {table} SET {_values(table)}")
        rows.execute(f"PRAGMA user_version = {FORMAT}")
    rows.execute(f"UPDATE notes SET {_values('notes')} WHERE name = 'info'")
    rows.execute("COMMIT")


def _values(table: str, only: str = "") -> str:
    return ", ".join(
        f"{column} = {_crc(covered)}" for column, covered in _COVERED[table].items() if only in ("", column)
    )


def _crc(covered: str) -> str:
    # As bytes: damaged text need not be UTF-8.
    return f"crc({', '.join(f'CAST({name} AS BLOB)' for name in covered.split(', '))})"


def connect(file: Path) -> sqlite3.Connection:
    """Open a database, or create it; UserError when the file is none."""
    options: dict[str, Any] = {"timeout": 30, "check_same_thread": False, "isolation_level": None}
    with explain_errors(file):
        if file.exists() and not os.access(file.parent, os.W_OK):
            return _connect_read_only(file, options)
        return _repeat(lambda: _connect(file, options))


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


def _repeat(work: Callable[[], Result]) -> Result:
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
