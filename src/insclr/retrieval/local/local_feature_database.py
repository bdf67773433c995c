"""The SQLite file of local features beside a store, by the hash of an image's content.

Nothing in it is needed to search by descriptors, and all of it can be made again by `insclr index`.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from insclr.errors import UserError
from insclr.store.database import DamagedFile, connect, explain_errors

TABLES = ("sift", "learned", "asmk")
_SCHEMA = "".join(
    f"CREATE TABLE IF NOT EXISTS {table} (hash TEXT PRIMARY KEY, kept BLOB NOT NULL) WITHOUT ROWID;"
    for table in (*TABLES, "notes")
)
_PART = 500  # hashes in one statement


class LocalFeatureDatabase:
    """The file of one store: `sift` or `learned` (local features) and `asmk` (aggregated descriptors) of images."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._rows: sqlite3.Connection | None = None

    def hashes(self, table: str) -> set[str]:
        """The content hashes of the images that something is kept of."""
        return {row[0] for row in self._select(f"SELECT hash FROM {table}")} if self._has(table) else set()

    def read(self, table: str, hashes: Sequence[str]) -> dict[str, bytes]:
        """What is kept of these images; those without are left out."""
        found: dict[str, bytes] = {}
        for start in range(0, len(hashes) if self._has(table) else 0, _PART):
            part = list(hashes[start : start + _PART])
            places = ",".join("?" * len(part))
            statement = f"SELECT hash, kept FROM {table} WHERE hash IN ({places})"
            found |= dict(self._select(statement, part))
        return found

    def every(self, table: str) -> Iterator[tuple[str, bytes]]:
        """All that is kept, by hash."""
        yield from self._select(f"SELECT hash, kept FROM {_check_table(table)} ORDER BY hash")

    def write(self, table: str, kept: Mapping[str, bytes]) -> None:
        """Keep these, in one transaction."""
        with self._lock, _explain_errors(self.file), self._writable() as rows:
            rows.execute("BEGIN IMMEDIATE")
            rows.executemany(f"INSERT OR REPLACE INTO {_check_table(table)} VALUES (?, ?)", kept.items())

    def clear(self, table: str) -> None:
        """Forget all of a table."""
        with self._lock, _explain_errors(self.file), self._writable() as rows:
            rows.execute(f"DELETE FROM {_check_table(table)}")

    def restart(self, tables: Sequence[str], name: str, note: bytes) -> None:
        """Forget all of these tables, and keep a note on what comes into them now; an empty one is none."""
        with self._lock, _explain_errors(self.file), self._writable() as rows:
            rows.execute("BEGIN IMMEDIATE")
            for table in tables:
                rows.execute(f"DELETE FROM {_check_table(table)}")
            rows.execute("DELETE FROM notes WHERE hash = ?", (name,))
            if note:
                rows.execute("INSERT INTO notes VALUES (?, ?)", (name, note))

    def drop(self, hashes: Iterable[str]) -> None:
        """Forget these images."""
        gone = [(one,) for one in hashes]
        if not gone or not self.file.exists():
            return
        with self._lock, _explain_errors(self.file), self._writable() as rows:
            rows.execute("BEGIN IMMEDIATE")
            for table in TABLES:
                rows.executemany(f"DELETE FROM {table} WHERE hash = ?", gone)

    def note(self, name: str) -> bytes | None:
        """Something kept for all images, such as a codebook."""
        found = self._select("SELECT kept FROM notes WHERE hash = ?", [name])
        return bytes(found[0][0]) if found else None

    def set_note(self, name: str, kept: bytes) -> None:
        """Keep something for all images."""
        with self._lock, _explain_errors(self.file), self._writable() as rows:
            rows.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, kept))

    def report_damage(self) -> UserError:
        """The error to raise for unreadable content."""
        return _report_damage(self.file)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._rows is not None:
                self._rows.close()
                self._rows = None

    def _select(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if not self.file.exists():
            return []
        with self._lock, _explain_errors(self.file):
            if self._rows is None:
                self._rows = connect(self.file)
            return self._rows.execute(statement, values).fetchall()

    def _has(self, table: str) -> bool:
        """Whether the file has a table; one of an earlier version has fewer."""
        return bool(self._select("SELECT 1 FROM sqlite_master WHERE name = ?", [_check_table(table)]))

    def _writable(self) -> sqlite3.Connection:
        if self._rows is None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._rows = connect(self.file)
        self._rows.executescript(_SCHEMA)
        return self._rows


@contextmanager
def _explain_errors(file: Path) -> Iterator[None]:
    """SQLite's errors in words; nothing in a damaged file cannot be made again."""
    try:
        with explain_errors(file):
            yield
    except DamagedFile as error:
        raise _report_damage(file) from error


def _report_damage(file: Path) -> UserError:
    return UserError(f"{file} is damaged: delete it and run `insclr index` with --local or --asmk again.")


def _check_table(table: str) -> str:
    if table not in TABLES:
        raise ValueError(f"no table {table}")
    return table
