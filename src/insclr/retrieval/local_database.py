"""The local features of a store's images and their visual words, in an SQLite file beside the store."""

import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from insclr.data.decode import BadImage, decode, read_image_bytes
from insclr.errors import UserError
from insclr.files import content_hash
from insclr.retrieval.local_features import LONGEST, LocalFeatures, extract_each, extract_features
from insclr.store import Row, Store
from insclr.store.database import DamagedFile, connect, explain_errors, seal, unseal

_log = logging.getLogger(__name__)
# Features of another format are dropped with the first write, and `insclr index` makes them again.
_FORMAT = 3  # PRAGMA user_version
_TABLES = (
    # words before points: a search reads those of every image
    "CREATE TABLE features (hash TEXT PRIMARY KEY, words BLOB, points BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE vocabulary (kept BLOB NOT NULL)",
)
_HASHES_AT_ONCE = 500  # in one statement


class LocalFeatureDatabase:
    """The file of one store."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._rows: sqlite3.Connection | None = None

    def hashes(self) -> set[str]:
        """The content hashes of the images whose features are kept."""
        return {row[0] for row in self._select("SELECT hash FROM features")}

    def read(self, hashes: Sequence[str]) -> dict[str, LocalFeatures]:
        """The features of these images; those without are left out."""
        found: dict[str, LocalFeatures] = {}
        for start in range(0, len(hashes), _HASHES_AT_ONCE):
            part = list(hashes[start : start + _HASHES_AT_ONCE])
            where = f"WHERE hash IN ({','.join('?' * len(part))})"
            kept = self._read(f"SELECT hash, points FROM features {where}", part)
            found |= {one: LocalFeatures.from_bytes(points) for one, points in kept.items()}
        return found

    def write(self, features: Mapping[str, LocalFeatures]) -> None:
        """Keep the features of these images, in one transaction."""
        values = [(content, seal(one.to_bytes())) for content, one in features.items()]
        self._write("INSERT OR REPLACE INTO features (hash, points) VALUES (?, ?)", values)

    def words(self) -> dict[str, bytes]:
        """The quantised points of every image that has some."""
        return self._read("SELECT hash, words FROM features WHERE words IS NOT NULL")

    def write_words(self, words: Mapping[str, bytes]) -> None:
        """Keep the quantised points of these images."""
        values = [(seal(kept), content) for content, kept in words.items()]
        self._write("UPDATE features SET words = ? WHERE hash = ?", values)

    def vocabulary(self) -> bytes | None:
        """What points are quantised with; None before there is one."""
        return self._read("SELECT '', kept FROM vocabulary").get("")

    def write_vocabulary(self, vocabulary: bytes) -> None:
        """Keep a new vocabulary; the words of the old one go."""
        with self._transaction() as rows:
            rows.execute("DELETE FROM vocabulary")
            rows.execute("UPDATE features SET words = NULL")
            rows.execute("INSERT INTO vocabulary VALUES (?)", (seal(vocabulary),))

    def drop(self, hashes: Iterable[str]) -> None:
        """Delete what is kept of these images."""
        self._write("DELETE FROM features WHERE hash = ?", [(one,) for one in hashes])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._rows is not None:
                self._rows.close()
                self._rows = None

    def _read(self, statement: str, values: Sequence[object] = ()) -> dict[str, bytes]:
        """Keys and what is kept for them; UserError where that is damaged."""
        try:
            return {key: unseal(kept) for key, kept in self._select(statement, values)}
        except ValueError as error:
            raise _report_damage(self.file) from error

    def _select(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query; none where the file is missing or of another format."""
        if not self.file.exists():
            return []
        with self._lock, _explain_errors(self.file):
            rows = self._open()
            return rows.execute(statement, values).fetchall() if _format_of(rows) == _FORMAT else []

    def _write(self, statement: str, values: Sequence[tuple[object, ...]]) -> None:
        if values:
            with self._transaction() as rows:
                rows.executemany(statement, values)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _explain_errors(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self._open() as rows:
                rows.execute("BEGIN IMMEDIATE")
                if _format_of(rows) != _FORMAT:
                    for (table,) in rows.execute(
                        "SELECT name FROM sqlite_master WHERE type = 'table'"
                    ).fetchall():
                        rows.execute(f"DROP TABLE {table}")
                    for table in _TABLES:
                        rows.execute(table)
                    rows.execute(f"PRAGMA user_version = {_FORMAT}")
                yield rows

    def _open(self) -> sqlite3.Connection:
        if self._rows is None:
            self._rows = connect(self.file)
        return self._rows


def _format_of(rows: sqlite3.Connection) -> int:
    return int(rows.execute("PRAGMA user_version").fetchone()[0])


def keep_features(store: Store, kept: LocalFeatureDatabase, rows: Iterable[Row]) -> None:
    """Extract the local features of those of these rows that have none.

    A file that has changed since it was indexed, or cannot be read, has none until the next `insclr index`.
    """
    known = kept.hashes()
    wanted = {row.image.hash: row for row in rows if row.image.hash not in known}
    for part in extract_each(list(wanted.values()), lambda row: _extract_unchanged(store, row)):
        kept.write({row.image.hash: one for row, one in part if one is not None})


def _extract_unchanged(store: Store, row: Row) -> LocalFeatures | None:
    """The features of a row's file; None where it no longer holds what was indexed."""
    try:
        content = read_image_bytes(store.info.root / row.image.path)
        if content_hash(content) == row.image.hash:
            return extract_features(decode(content, LONGEST))
    except BadImage as bad:
        _log.debug("%s: %s", row.image.path, bad.reason)
    return None


@contextmanager
def _explain_errors(file: Path) -> Iterator[None]:
    """SQLite's errors in words; nothing in a damaged file cannot be made again."""
    try:
        with explain_errors(file):
            yield
    except DamagedFile as error:
        raise _report_damage(file) from error


def _report_damage(file: Path) -> UserError:
    return UserError(f"{file} is damaged: delete it and run `insclr index` again.")
