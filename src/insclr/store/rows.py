"""The rows of a store, the journal of its feedback, and the protocol of every store engine."""

import json
import re
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from insclr.arrays import Boxes, Descriptors, Ids, Regions, Scores
from insclr.errors import UserError
from insclr.store.where import Condition

MAX_TEXT = 60_000  # bytes of an entry: what Milvus holds in one field, less a margin


@dataclass(frozen=True, order=True)
class Entry:
    """One act of a person. Images in it are named by the hash of their content.

    So it holds for the same image in another place, in a new store, or with another model.
    """

    id: str  # sorts by time: nanoseconds, then random digits
    kind: str = field(compare=False)
    data: Mapping[str, Any] = field(compare=False)

    def text(self) -> str:
        """The entry as a line of JSON."""
        return json.dumps({"kind": self.kind, "data": dict(self.data)}, ensure_ascii=False)


_latest = ""  # the highest id that this process made or read
_making = threading.Lock()


def new_entry(kind: str, data: Mapping[str, Any]) -> Entry:
    """An entry of this moment, after all that were read: a clock that was set back must not change their order."""
    global _latest
    with _making:
        moment = max(time.time_ns(), int(_latest[:20] or 0) + 1)
        _latest = f"{moment:020d}-{secrets.token_hex(4)}"
        entry = Entry(_latest, kind, data)
    if len(entry.text().encode()) > MAX_TEXT:
        raise ValueError(f"an entry of the journal holds at most {MAX_TEXT} bytes")
    return entry


def parse_entry(id_: str, text: str) -> Entry:
    """The entry that `Entry.text` wrote; ValueError when it is damaged."""
    global _latest
    found = json.loads(text)
    if not isinstance(found, dict) or not isinstance(found.get("data"), dict):
        raise ValueError(f"entry {id_} of the journal is damaged")
    if re.fullmatch(r"\d{20}-.*", id_):
        with _making:
            _latest = max(_latest, id_)
    return Entry(id_, str(found.get("kind", "")), found["data"])


class StoreUnavailable(UserError):
    """The store is elsewhere and does not answer just now."""


@dataclass(frozen=True)
class StoreInfo:
    """What a store is about: whose descriptors it holds and which folder its relative paths start from."""

    model: str  # what `resolve_model` takes: run folder, model file or pretrained:NAME
    fingerprint: str
    dim: int
    root: Path
    size: int = 0  # side in pixels at which the images were described; 0: what the model remembers

    def to_json(self) -> str:
        """As a store keeps it."""
        return json.dumps(asdict(self) | {"root": str(self.root)})

    @classmethod
    def from_json(cls, text: str) -> "StoreInfo":
        """What `to_json` gave; ValueError, TypeError or KeyError when it is something else."""
        found = json.loads(text)
        return cls(
            found["model"],
            found["fingerprint"],
            int(found["dim"]),
            Path(found["root"]),
            int(found.get("size", 0)),
        )

    def refuse_other_size(self, size: int, uri: str) -> None:
        """Raise UserError unless images are described at our size."""
        if size != self.size:
            made = f"--size {self.size}" if self.size else "the model's own size"
            raise UserError(f"store {uri} was made with {made}: index with that, or into a new store")

    def refuse_other_model(self, fingerprint: str, uri: str) -> None:
        """Descriptors of two models cannot be compared: raise UserError unless the fingerprint is ours."""
        if fingerprint != self.fingerprint:
            raise UserError(
                f"store {uri} holds descriptors of another model ({self.model}, fingerprint "
                f"{self.fingerprint[:12]}; yours is {fingerprint[:12]}): use that model, "
                "or index into a new store"
            )


@dataclass(frozen=True)
class IndexedImage:
    """One indexed file: where it is, which content was described, and the user's own columns."""

    path: str  # posix, relative to the store's root; absolute when outside of it
    hash: str
    size: int  # bytes
    mtime: int  # nanoseconds
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """An image as the store knows it, without its descriptor."""

    id: int
    image: IndexedImage


class Neighbours(NamedTuple):
    """The most similar rows of every query, best first; -1 fills up where there are fewer than asked."""

    ids: Ids  # (queries, top)
    similarities: Scores  # (queries, top) cosine


class NearestRegions(NamedTuple):
    """The most similar regions of every query, best first; a row stands there once for each of its regions."""

    ids: Ids  # (queries, top) rows; -1 fills up
    similarities: Scores  # (queries, top) cosine
    boxes: Boxes  # (queries, top, 4)


class Store(Protocol):
    """Durable rows with a descriptor each, and the search for the nearest ones.

    Every write is one transaction: after a crash a batch is there as a whole or not at all. A path has one
    row.
    """

    uri: str
    info: StoreInfo
    cache: Path  # a folder for what can be made again (thumbnails)
    parts: Path  # the file of local features and the like, by the images' content

    @property
    def folder(self) -> Path | None:
        """Where its files are; None on a server, to which several processes may write at once."""

    def writing(self, wait: float = 30.0) -> AbstractContextManager[None]:
        """Be the only writer; UserError when another one is still busy after `wait` seconds."""

    def upsert(
        self,
        images: Sequence[IndexedImage],
        descriptors: Descriptors,
        regions: Sequence[Regions] | None = None,
    ) -> None:
        """Add rows (unit descriptors), or replace those of the same paths, keeping their ids.

        The regions that a replaced row had are gone; `regions` are the new ones, one entry a row.
        """

    def update(self, images: Sequence[IndexedImage]) -> None:
        """Change everything but the descriptor of rows that exist."""

    def delete(self, paths: Sequence[str]) -> None:
        """Remove the rows of these paths; paths that have none are ignored."""

    def rows_by_path(self) -> dict[str, Row]:
        """Every row by its path."""

    def rows(self, ids: Sequence[int]) -> list[Row]:
        """The rows of these ids in this order; ids that are gone are left out."""

    def ids(self) -> Ids:
        """Every id, ascending."""

    def descriptors(self, ids: Sequence[int] | Ids) -> Descriptors:
        """The descriptors of these ids in this order; KeyError when one is gone."""

    def count(self) -> int:
        """How many rows there are."""

    def columns(self) -> list[str]:
        """The names of the user's own columns, sorted."""

    def search(self, queries: Descriptors, top: int, where: Condition | None = None) -> Neighbours:
        """The `top` nearest rows of every query, among those that meet `where`."""

    def has_regions(self) -> bool:
        """Whether any row has regions."""

    def region_ids(self) -> Ids:
        """The ids of the rows that have regions, ascending; empty in a store made without them."""

    def regions(self, ids: Sequence[int] | Ids) -> list[Regions]:
        """The regions of these ids in this order; empty for a row that has none."""

    def search_regions(
        self, queries: Descriptors, top: int, where: Condition | None = None
    ) -> NearestRegions:
        """The `top` nearest regions of every query, among those of rows that meet `where`."""

    def note(self, name: str) -> str | None:
        """A text kept with the rows (the calibration, for one)."""

    def set_note(self, name: str, text: str) -> None:
        """Keep a text under this name."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries to the journal, all or none; those that it holds already are left as they are."""

    def journal(self) -> list[Entry]:
        """What people said, in the order of time."""

    def version(self) -> str:
        """Changes whenever the rows change."""

    def settle(self) -> None:
        """After many writes: have searches find all there is as well as they ever will."""

    def close(self) -> None:
        """Let go of files and connections."""


def check_descriptors(descriptors: Descriptors, count: int, dim: int) -> Descriptors:
    """The rows' descriptors as float32, after checking that they are `count` unit descriptors of `dim` numbers."""
    descriptors = np.ascontiguousarray(descriptors, dtype=np.float32)
    if descriptors.shape != (count, dim):
        raise ValueError(
            f"{count} descriptors of {dim} numbers expected, got an array of {descriptors.shape}"
        )
    if not np.allclose(np.linalg.norm(descriptors, axis=1), 1.0, atol=1e-2):
        raise ValueError("descriptors of unit length expected")
    return descriptors
