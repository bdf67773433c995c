"""What people said about one store, as the server keeps it at hand: the journal, the gallery, the questions."""

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from insclr.feedback.feedback import Feedback, read_feedback
from insclr.feedback.things import Gallery, gallery
from insclr.store import Entry, Store

if TYPE_CHECKING:
    from insclr.feedback.asking import Asking
    from insclr.feedback.links import Link
    from insclr.feedback.questions import Screen

_BELIEVED = 2.0  # seconds for which the journal is not read again: other programs may write it too


class FeedbackCache:
    """Reads and writes what people said; galleries and questions are made once and kept until something changes.

    They take seconds to make, under a lock of their own: searches, which only ask for names, do not wait for them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reading = threading.Lock()
        self._making = threading.RLock()  # taken first where both are
        self._said = Feedback()
        self._read_at = -_BELIEVED
        self._gallery: tuple[str, Gallery] | None = None
        self._asking: tuple[str, Asking] | None = None

    def said(self) -> Feedback:
        """What holds now."""
        with self._reading:
            if time.monotonic() - self._read_at >= _BELIEVED:
                self._said = read_feedback(self._store)
                self._read_at = time.monotonic()
            return self._said

    def append(self, entries: Sequence[Entry]) -> None:
        """Write to the journal."""
        self._store.append(entries)
        self.changed()

    def changed(self) -> None:
        """The journal has new entries."""
        with self._reading:
            self._read_at = -_BELIEVED

    def gallery(self) -> Gallery:
        """The things as they are now."""
        with self._making:
            said = self.said()
            key = self._key(said)
            if self._gallery is None or self._gallery[0] != key:
                self._gallery = key, gallery(self._store, said)
            return self._gallery[1]

    def names(self, ids: Sequence[int]) -> dict[int, str]:
        """The names of photos that have one. Photos that joined by their score count once the gallery was made."""
        said = self.said()
        if not any(thing.name for thing in said.things.values()):
            return {}
        found = {row.id: said.name_of(row.image.hash) for row in self._store.rows(ids)}
        kept = self._gallery
        if kept is not None and kept[0] == self._key(said):
            joined = kept[1].thing_of
            found |= {id_: joined[id_].name for id_ in ids if id_ in joined}
        return {id_: name for id_, name in found.items() if name}

    def screen(self) -> "tuple[Screen | None, Asking]":
        """The screen to show next."""
        with self._making:
            asking = self._questions()
            return asking.screen(), asking

    def expected(self, query: str, images: Sequence[str]) -> dict[str, float]:
        """How likely the model finds each image the same as the query."""
        with self._making:
            return self._questions().expected(query, images)

    def hear(self, entry: Entry, links: "Sequence[Link]") -> None:
        """Keep an answered or skipped screen; the questions follow without being made anew."""
        with self._making:
            asking = self._questions()
            self.append([entry])
            if links:
                asking.hear(links)
            else:
                asking.pass_over(str(entry.data["query"]))
            self._asking = self._key(self.said()), asking

    def _questions(self) -> "Asking":
        from insclr.feedback.asking import Asking  # loads torch, which serving searches need not wait for

        said = self.said()
        key = self._key(said)
        if self._asking is None or self._asking[0] != key:
            self._asking = key, Asking(self._store, said)
        return self._asking[1]

    def _key(self, said: Feedback) -> str:
        """Changes with the rows and with what holds."""
        entries = said.entries
        return f"{self._store.version()} {len(entries)} {entries[-1].id if entries else ''}"
