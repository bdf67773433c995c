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
_SCHEMA = """
CREATE TABLE IF NOT EXISTS points (hash TEXT PRIMARY KEY, kept BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS words (hash TEXT PRIMARY KEY, kept BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS vocabulary (kept BLOB NOT NULL);
"""
# Earlier versions kept other features too. Nothing reads them, but a dropped image leaves their tables as well.
_BY_HASH = ("points", "words", "sift", "learned", "asmk")
_HASHES_AT_ONCE = 500  # in one statement


class LocalFeatureDatabase:
    """The file of one store."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._rows: sqlite3.Connection | None = None

    def hashes(self) -> set[str]:
        """The content hashes of the images whose features are kept."""
        return self._hashes("points") if "points" in self._tables() else set()

    def read(self, hashes: Sequence[str]) -> dict[str, LocalFeatures]:
        """The features of these images; those without are left out."""
        found: dict[str, LocalFeatures] = {}
        for start in range(0, len(hashes), _HASHES_AT_ONCE):
            part = list(hashes[start : start + _HASHES_AT_ONCE])
            where = f"WHERE hash IN ({','.join('?' * len(part))})"
            found |= {one: LocalFeatures.from_bytes(kept) for one, kept in self._read("points", where, part)}
        return found

    def write(self, features: Mapping[str, LocalFeatures]) -> None:
        """Keep the features of these images, in one transaction."""
        self._write("points", {content: one.to_bytes() for content, one in features.items()})

    def words(self) -> dict[str, bytes]:
        """The quantised points of every image that has some."""
        return dict(self._read("words"))

    def write_words(self, words: Mapping[str, bytes]) -> None:
        """Keep the quantised points of these images."""
        self._write("words", words)

    def vocabulary(self) -> bytes | None:
        """What points are quantised with; None before there is one."""
        return next((kept for _, kept in self._read("vocabulary", columns="'', kept")), None)

    def write_vocabulary(self, vocabulary: bytes) -> None:
        """Keep a new vocabulary; the words of the old one go."""
        with self._transaction() as rows:
            rows.execute("DELETE FROM vocabulary")
            rows.execute("DELETE FROM words")
            rows.execute("INSERT INTO vocabulary VALUES (?)", (seal(vocabulary),))

    def _read(
        self, table: str, where: str = "", values: Sequence[object] = (), columns: str = "hash, kept"
    ) -> list[tuple[str, bytes]]:
        """Rows of a table, none where it is missing; UserError where one is damaged."""
        if table not in self._tables():
            return []
        try:
            return [
                (one, unseal(kept))
                for one, kept in self._select(f"SELECT {columns} FROM {table} {where}", values)
            ]
        except ValueError as error:
            raise _report_damage(self.file) from error

    def _write(self, table: str, kept: Mapping[str, bytes]) -> None:
        with self._transaction() as rows:
            values = [(one, seal(content)) for one, content in kept.items()]
            rows.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", values)

    def drop(self, hashes: Iterable[str]) -> None:
        """Delete what is kept of these images."""
        gone = [(one,) for one in hashes]
        if gone and self.file.exists():
            tables = self._tables()
            with self._transaction() as rows:
                for table in tables.intersection(_BY_HASH):
                    rows.executemany(f"DELETE FROM {table} WHERE hash = ?", gone)

    def drop_others(self, hashes: set[str]) -> None:
        """Delete what is kept of all images but these."""
        self.drop(set[str]().union(*map(self._hashes, self._tables().intersection(_BY_HASH))) - hashes)

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

    def _tables(self) -> set[str]:
        return {row[0] for row in self._select("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def _hashes(self, table: str) -> set[str]:
        return {row[0] for row in self._select(f"SELECT hash FROM {table}")}

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _explain_errors(self.file):
            if self._rows is None:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                self._rows = connect(self.file)
            self._rows.executescript(_SCHEMA)
            with self._rows as rows:
                rows.execute("BEGIN IMMEDIATE")
                yield rows


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
