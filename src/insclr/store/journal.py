"""The journal of a local store: what people said, in the database of its first model."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from insclr.store.checks import Checks
from insclr.store.database import explain_errors, open_rows, report_damage
from insclr.store.rows import Entry, parse_entry


class Journal:
    """The entries, written all or none."""

    def __init__(self, file: Path, opened: tuple[sqlite3.Connection, Checks] | None = None) -> None:
        """`opened` is the database of this file where it is open already."""
        self._file = file
        self._rows, self._checks = opened or open_rows(file)

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries; those that are there already are left as they are."""
        with explain_errors(self._file), self._rows:
            self._rows.execute("BEGIN IMMEDIATE")
            self._rows.executemany(
                "INSERT OR IGNORE INTO journal (id, entry) VALUES (?, ?)",
                [(one.id, one.text()) for one in entries],
            )
            self._checks.fill("journal", "id = ? AND checksum IS NULL", [one.id for one in entries])

    def entries(self) -> list[Entry]:
        """Every entry in the order of time, the damaged ones left out."""
        with explain_errors(self._file):
            statement = f"SELECT id, entry, {self._checks.whole('journal')} FROM journal ORDER BY id"
            found = self._rows.execute(statement).fetchall()
        try:
            return [parse_entry(*row) for row in self._checks.keep_whole("names or answers", found)]
        except (ValueError, TypeError) as error:
            raise report_damage(self._file, error) from error

    def damage(self) -> list[str]:
        """The damaged entries."""
        with explain_errors(self._file):
            return [f"feedback {one}" for one in self._checks.damaged_keys("journal")]

    def close(self) -> None:
        """Let go of the file."""
        self._rows.close()
