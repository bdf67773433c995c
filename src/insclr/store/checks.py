"""Checksums of what a store keeps on disk: a flipped bit is found, and never becomes part of an answer."""

import io
import logging
import sqlite3
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from insclr.errors import UserError

_log = logging.getLogger(__name__)

FORMAT = 1  # PRAGMA user_version of the database; 0: without checksums
_COVERED = {  # the columns that each checksum is of, by table
    "pictures": {"row_check": "id, path, hash, size, mtime, columns, numbers", "vector_check": "id, vector"},
    "regions": {"checksum": "picture, boxes, vectors"},
    "notes": {"checksum": "name, text"},
    "journal": {"checksum": "id, entry"},
}
_SMALL = 16_000_000  # bytes of a database whose structure is checked whenever it is opened


def checksum(*values: object) -> int:
    """CRC-32 of values as SQLite casts them to bytes."""
    found = 0
    for value in values:
        content = value if isinstance(value, bytes) else str(value).encode()
        found = zlib.crc32(content, found ^ len(content))
    return found


SEAL = 4  # bytes that `seal` adds


def seal(content: bytes) -> bytes:
    """The content of a file of the cache, followed by its checksum."""
    return content + checksum(content).to_bytes(SEAL, "little")


def unseal(content: bytes) -> bytes:
    """What `seal` was given; ValueError when it is damaged or something else."""
    if seal(content[:-SEAL]) != content:
        raise ValueError("a checksum does not match")
    return content[:-SEAL]


def array_bytes(array: NDArray[np.generic]) -> bytes:
    """An array as a sealed .npy file."""
    written = io.BytesIO()
    np.save(written, array)
    return seal(written.getvalue())


class Checks:
    """The checksums in a store's database."""

    def __init__(self, rows: sqlite3.Connection, file: Path) -> None:
        """UserError when a newer version wrote the database."""
        self._rows = rows
        self._file = file
        self._reported: set[object] = set()  # what a warning has named
        rows.create_function("crc", -1, checksum, deterministic=True)
        if self._version() > FORMAT:
            raise UserError(
                f"{file.parent} was written by a newer version of insclr: update insclr to use it."
            )

    def warn_of_structure(self) -> None:
        """Warn of a damaged structure where reading the whole database takes a moment only."""
        small = self._file.stat().st_size <= _SMALL
        # Twice: one failed read is no damage.
        if small and self.structure() and (found := self.structure()):
            folder = self._file.parent
            _log.warning(
                "%s is damaged (%s): `insclr check %s` lists all damage", self._file, found[0], folder
            )

    def missing(self) -> bool:
        """Whether an earlier version wrote the database, without checksums."""
        return self._version() < FORMAT

    def _version(self) -> int:
        return int(self._rows.execute("PRAGMA user_version").fetchone()[0])

    def structure(self, *, whole: bool = False) -> list[str]:
        """What SQLite finds wrong with its own structure; with `whole` its indexes are compared too."""
        found = self._rows.execute(f"PRAGMA {'integrity' if whole else 'quick'}_check(20)").fetchall()
        return [str(row[0]) for row in found if row[0] != "ok"]

    def add(self) -> None:
        """Give every row of every table its checksums, within the transaction at hand."""
        if not self.missing():
            return  # another process has done it
        for table, columns in _COVERED.items():
            for column in columns:
                self._rows.execute(f"ALTER TABLE {table} ADD COLUMN {column} INTEGER")
            self._rows.execute(f"UPDATE {table} SET {_values(table)}")
        self._rows.execute(f"PRAGMA user_version = {FORMAT}")

    def fill(self, table: str, where: str, values: Sequence[object], *, only: str = "") -> None:
        """Compute the checksums (or `only` one of them) of the rows that were just written, one for each value."""
        self._rows.executemany(
            f"UPDATE {table} SET {_values(table, only)} WHERE {where}", [(one,) for one in values]
        )

    def whole(self, table: str, column: str = "checksum") -> str:
        """An SQL expression: whether a row of the table is as it was written."""
        return f"coalesce({column} = {_crc(_COVERED[table][column])}, 1)"

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

    def drop_damaged(self) -> None:
        """Delete damaged rows and regions, within the transaction at hand: the next `insclr index` describes them."""
        rows, regions = self._damaged_rows(), self.damaged_keys("regions")
        if rows or regions:
            names = ", ".join(path for _, path in rows[:5])
            _log.warning("%d damaged rows are described again: %s", len(rows), names or "their regions")
            self._rows.executemany("DELETE FROM pictures WHERE id = ?", [(id_,) for id_, _ in rows])
            self._rows.executemany("DELETE FROM regions WHERE picture = ?", [(one,) for one in regions])

    def find_damage(self) -> list[str]:
        """Read everything, and name what is damaged."""
        found = [f"structure of the database: {one}" for one in self.structure(whole=True)]
        found += [f"row of {path}" for _, path in self._damaged_rows()]
        for table, what in (("regions", "regions of the row"), ("notes", "note")):
            found += [f"{what} {key}" for key in self.damaged_keys(table)]
        return found

    def _damaged_rows(self) -> list[tuple[int, str]]:
        both = " AND ".join(self.whole("pictures", column) for column in _COVERED["pictures"])
        return self._rows.execute(f"SELECT id, path FROM pictures WHERE NOT ({both})").fetchall()

    def damaged_keys(self, table: str) -> list[str]:
        """The key of every damaged row of a table."""
        key = _COVERED[table]["checksum"].partition(",")[0]
        return [
            str(row[0])
            for row in self._rows.execute(f"SELECT {key} FROM {table} WHERE NOT {self.whole(table)}")
        ]


def _values(table: str, only: str = "") -> str:
    return ", ".join(
        f"{column} = {_crc(covered)}" for column, covered in _COVERED[table].items() if only in ("", column)
    )


def _crc(covered: str) -> str:
    # As bytes: damaged text need not be UTF-8.
    return f"crc({', '.join(f'CAST({name} AS BLOB)' for name in covered.split(', '))})"
