"""The segments of a local store: its rows in files that are mapped when the store is opened, and never built twice.

The database stays the truth. A segment is a folder that never changes; the database has the list of them and a log of
the rows that were deleted or described anew since. Rows that are in no segment (the tail) are read from the database
and scanned exactly; once there are many of them they become a segment. So adding rows builds nothing large again, and
after a crash there are at worst a few rows more in the tail.
"""

import io
import json
import logging
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from insclr.arrays import Ids
from insclr.errors import UserError
from insclr.files import only_writer, whole_folder
from insclr.store import segment as segment_module
from insclr.store.database import Database, array_bytes, unseal, whole
from insclr.store.segment import (
    DamagedSegment,
    Halves,
    NearestRows,
    Part,
    Segment,
    exact_index,
    open_segment,
    write_segment,
)

_log = logging.getLogger(__name__)

SEGMENT_ROWS = 131_072  # at most: what is packed at once, in memory
_NOTE = "segments"


@dataclass(frozen=True)
class _Kept:
    name: str
    change: int  # the last one that it takes into account


@dataclass(frozen=True)
class _List:
    """The segments as the database names them."""

    last: int = 0  # rows of a higher id are in none of them
    segments: tuple[_Kept, ...] = ()

    @property
    def first_change(self) -> int:
        """Changes up to this one are in all segments."""
        return min((one.change for one in self.segments), default=0)


class Segments:
    """What of a store's rows is searched: opened segments and the tail."""

    def __init__(self, folder: Path, dim: int, database: Database) -> None:
        self._folder = folder
        self._dim = dim
        self._database = database
        self._open: dict[str, tuple[Segment, Ids]] = {}
        self._damaged: set[str] = set()  # segments of which a row turned out to be damaged

    def load(self) -> NearestRows:
        """Everything as it is now, packed first where the tail has grown long; ValueError for damaged rows."""
        parts, ids, halves, due = self._current()
        if due:
            self.pack()
            listed, parts = self._parts()
            ids, halves = self._tail(listed, parts)
        return NearestRows([*parts, Part(Segment(exact_index(halves)), ids)], self._dim)

    def pack(self) -> None:
        """Move the tail into segments where it has grown long, if that is possible just now.

        What a pack that was killed has left is removed.
        """
        if not (self._current()[-1] or self._left_over(self._list())):
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with only_writer(self._folder / "writer.lock", 0.0):
                while self._pack_unless_damaged():
                    pass
                self._clear(self._list())
        except UserError:
            pass  # another process is at it
        except OSError as error:
            _log.warning("%s cannot be written (%s): searching stays slower", self._folder, error)

    def _current(self) -> tuple[list[Part], Ids, Halves, bool]:
        """The segments and the tail, or its beginning where it is long; and whether packing is due."""
        listed, parts = self._parts()
        ids, halves = self._tail(listed, parts, segment_module.EXACT_UP_TO + 1)
        return parts, ids, halves, len(ids) > segment_module.EXACT_UP_TO or _sparse(parts)

    def _parts(self) -> tuple[_List, list[Part]]:
        """The list of segments, and they themselves opened; none where one of them is gone or damaged."""
        listed = self._list()
        if self._described_anew(listed) > SEGMENT_ROWS:
            listed = _List()  # more than is packed at once: begin again
        for attempt in range(3):
            try:
                opened = {one.name: self._open_segment(one.name) for one in listed.segments}
            except (OSError, ValueError) as error:
                again = self._list()
                if again == listed or attempt == 2:
                    _log.warning("the segments of the store are made again (%s)", error)
                    return _List(), []
                listed = again  # another process has packed them meanwhile
                continue
            self._open = opened
            break
        changes = self._changes(listed)
        parts = []
        for one in listed.segments:
            segment, ids = opened[one.name]
            alive = ~np.isin(ids, changes[changes[:, 0] > one.change, 1])
            parts.append(Part(segment, ids, None if alive.all() else alive))
        return listed, parts

    def _open_segment(self, name: str) -> tuple[Segment, Ids]:
        if name in self._damaged:
            raise ValueError(f"rows of {name} are damaged")
        if name not in self._open:
            ids = np.load(io.BytesIO(unseal((self._folder / name / "ids.npy").read_bytes())))
            segment = open_segment(self._folder / name, self._dim, ids)
            if ids.shape != (len(segment),):
                raise ValueError(f"{name} is damaged")
            self._open[name] = segment, ids
        return self._open[name]

    def drop_damaged(self) -> list[str]:
        """Leave out the open segments of which a row is known to be damaged: they are made again."""
        found = [name for name, (segment, _) in self._open.items() if segment.damaged]
        self._damaged |= set(found)
        for name in found:
            del self._open[name]
            shutil.rmtree(self._folder / name, ignore_errors=True)
        return found

    def read_all(self) -> list[str]:
        """Read every row of every segment; gives the names of damaged segments, which are made again."""
        for part in self._parts()[1]:
            with suppress(DamagedSegment):
                part.segment.verify(np.arange(len(part.ids)))
        return self.drop_damaged()

    def _tail(self, listed: _List, parts: list[Part], limit: int = -1) -> tuple[Ids, Halves]:
        """The rows that are alive in no segment; of the new ones among them `limit`, the oldest."""
        # Not np.unique: its first call loads numpy.ma, 25 ms of every search from the shell.
        changed = np.array(sorted(set(self._changes(listed)[:, 1].tolist())), dtype=np.int64)
        changed = changed[changed <= listed.last]
        for part in parts:
            changed = changed[~np.isin(changed, part.ids[part.places])]
        ids, halves = self.read_rows(*select_by_id("WHERE id", changed, " ORDER BY id"))
        new_ids, new_halves = self.read_rows("WHERE id > ? ORDER BY id LIMIT ?", [listed.last, limit])
        return np.concatenate([ids, new_ids]), np.concatenate([halves, new_halves])

    def _pack_unless_damaged(self) -> bool:
        try:
            return self._pack()
        except DamagedSegment:
            return bool(self.drop_damaged())

    def _pack(self) -> bool:
        """Write one more segment; False when there is nothing left to do."""
        change = self._last_change()  # read before the rows: what changes meanwhile is outdated at once
        listed, parts = self._parts()
        ids, halves = self._tail(listed, parts, SEGMENT_ROWS)
        if len(ids) <= segment_module.EXACT_UP_TO and not _sparse(parts):
            return False
        absorbed = _choose_absorbed(parts, len(ids))
        last = max(listed.last, int(ids[-1]) if len(ids) else 0)
        ids = np.concatenate([ids, *(part.ids[part.places] for part in absorbed)])
        halves = np.concatenate([halves, *(part.segment.read(part.places) for part in absorbed)])
        kept = [one for one, part in zip(listed.segments, parts, strict=True) if part not in absorbed]
        if len(ids):
            kept.append(_Kept(self._write(ids, halves), change))
        self.write_list(_List(last, tuple(kept)))
        return True

    def _write(self, ids: Ids, halves: Halves) -> str:
        name = uuid.uuid4().hex
        order = np.argsort(ids)
        with whole_folder(self._folder / name) as scratch:
            (scratch / "ids.npy").write_bytes(array_bytes(ids[order]))
            write_segment(scratch, halves[order], ids[order])
        return name

    def write_list(self, listed: _List) -> None:
        """Make this the list, and forget what only earlier ones needed."""
        self._database.set_note(_NOTE, json.dumps(asdict(listed)))
        self._database.select("DELETE FROM outdated WHERE change <= ?", [listed.first_change])
        self._clear(listed)

    def _left_over(self, listed: _List) -> list[Path]:
        """The folders that the list does not name."""
        names = {one.name for one in listed.segments}
        there = self._folder.iterdir() if self._folder.exists() else ()
        return [folder for folder in there if folder.is_dir() and folder.name not in names]

    def _clear(self, listed: _List) -> None:
        for folder in self._left_over(listed):
            shutil.rmtree(folder, ignore_errors=True)  # who has it open keeps its content

    def _list(self) -> _List:
        try:
            values = json.loads(self._database.note(_NOTE) or '{"last": 0, "segments": []}')
            return _List(int(values["last"]), tuple(_Kept(**one) for one in values["segments"]))
        except (ValueError, TypeError, KeyError) as error:
            _log.warning("the segments of the store are made again (%s)", error)
            return _List()

    def _described_anew(self, listed: _List) -> int:
        found = self._database.select(
            "SELECT count(*) FROM pictures WHERE id IN "
            "(SELECT picture FROM outdated WHERE change > ? AND picture <= ?)",
            [listed.first_change, listed.last],
        )
        return int(found[0][0])

    def _last_change(self) -> int:
        found = self._database.select("SELECT seq FROM sqlite_sequence WHERE name = 'outdated'")
        return int(found[0][0]) if found else 0

    def _changes(self, listed: _List) -> Ids:
        """Changes that not all segments know of, (changes, 2): number and row."""
        found = self._database.select(
            "SELECT change, picture FROM outdated WHERE change > ? AND picture <= ?",
            [listed.first_change, listed.last],
        )
        return np.array(found, dtype=np.int64).reshape(-1, 2)

    def read_rows(self, which: str, values: Sequence[object]) -> tuple[Ids, Halves]:
        """Ids and descriptors of the rows that an SQL condition selects, the damaged ones left out."""
        statement = f"SELECT id, vector, {whole('pictures', 'vector_check')} FROM pictures {which}"
        found = self._database.keep_whole("vectors", self._database.select(statement, values))
        ids = np.array([row[0] for row in found], dtype=np.int64)
        halves = np.frombuffer(b"".join(row[1] for row in found), dtype="<f2")
        if halves.size != len(ids) * self._dim:
            raise ValueError("descriptors of another length")
        return ids, halves.reshape(len(ids), self._dim)


def select_by_id(statement: str, ids: Sequence[int] | Ids, order: str = "") -> tuple[str, list[object]]:
    """A statement that ends with the name of a column, limited to rows of these ids, and its values."""
    return f"{statement} IN (SELECT value FROM json_each(?)){order}", [json.dumps([int(one) for one in ids])]


def _sparse(parts: list[Part]) -> bool:
    """Whether there is a segment of which most rows are outdated."""
    return any(2 * len(part.places) < len(part.ids) for part in parts)


def _choose_absorbed(parts: list[Part], rows: int) -> list[Part]:
    """The small segments that fit into a new one beside so many rows: each row is moved only a few times."""
    chosen = []
    for part in sorted(parts, key=lambda part: len(part.places)):
        size = len(part.places)
        if 2 * size <= SEGMENT_ROWS and rows + size <= SEGMENT_ROWS:
            chosen.append(part)
            rows += size
    return chosen
