"""The journal of a store: feedback about its images, one entry after the other, never changed."""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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


def new_entry(kind: str, data: Mapping[str, Any]) -> Entry:
    """An entry of this moment."""
    entry = Entry(f"{time.time_ns():020d}-{secrets.token_hex(4)}", kind, data)
    if len(entry.text().encode()) > MAX_TEXT:
        raise ValueError(f"an entry of the journal holds at most {MAX_TEXT} bytes")
    return entry


def parse_entry(id_: str, text: str) -> Entry:
    """The entry that `Entry.text` wrote; ValueError when it is damaged."""
    found = json.loads(text)
    if not isinstance(found, dict) or not isinstance(found.get("data"), dict):
        raise ValueError(f"entry {id_} of the journal is damaged")
    return Entry(id_, str(found.get("kind", "")), found["data"])
