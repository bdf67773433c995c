"""The feedback of one store, kept in memory by the server: the journal, the gallery, the questions."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from insclr.feedback.feedback import Feedback, KnownPairs, answer_links, read_feedback
from insclr.feedback.names import Gallery, build_gallery, measure_fits
from insclr.store import Entry, Store, StoreUnavailable

if TYPE_CHECKING:
    from insclr.feedback.asking import Asking
    from insclr.feedback.questions import Screen

Made = TypeVar("Made")
_PAUSES = (0.05, 0.2, 0.5)  # seconds
_FRESH = 2.0  # seconds for which the journal is not read again: other programs may write it too


def _repeat(make: Callable[[], Made]) -> Made:
    """The result of reading many rows, read again where another process drops some of them meanwhile."""
    for pause in _PAUSES:
        with suppress(KeyError):
            return make()
        time.sleep(pause)
    try:
        return make()
    except KeyError:
        raise StoreUnavailable("the photos are being indexed just now: try again in a moment") from None


class FeedbackCache:
    """Reads and writes feedback; galleries and questions are made once and kept until something changes.

    They take seconds to make, under a lock of their own: searches, which only ask for names, do not wait for them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reading = threading.Lock()
        self._making = threading.RLock()  # taken first where both are
        self._feedback = Feedback()
        self._read_at = -_FRESH
        self._gallery: tuple[str, Gallery] | None = None
        self._asking: tuple[str, Asking] | None = None
        self._known: tuple[Feedback, KnownPairs] | None = None
        self._fits: tuple[Gallery, dict[int, float]] | None = None

    def read(self) -> Feedback:
        """The feedback as of now."""
        with self._reading:
            if time.monotonic() - self._read_at >= _FRESH:
                self._feedback = read_feedback(self._store)
                self._read_at = time.monotonic()
            return self._feedback

    def known_pairs(self) -> KnownPairs:
        """What people said of pairs of photos, as of now."""
        feedback, kept = self.read(), self._known
        if kept is None or kept[0] is not feedback:
            self._known = kept = feedback, KnownPairs(feedback)
        return kept[1]

    def append(self, entries: Sequence[Entry]) -> None:
        """Write to the journal."""
        self._store.append(entries)
        self.invalidate()

    def invalidate(self) -> None:
        """Read the journal again: it has new entries."""
        with self._reading:
            self._read_at = -_FRESH

    def gallery(self) -> Gallery:
        """The things as of now."""
        with self._making:
            feedback = self.read()
            key = self._key(feedback)
            if self._gallery is None or self._gallery[0] != key:
                self._gallery = key, _repeat(lambda: build_gallery(self._store, feedback))
            return self._gallery[1]

    def fits(self) -> dict[int, float]:
        """How likely each photo shows the thing that it is in (`measure_fits`), as of now."""
        with self._making:
            gallery = self.gallery()
            if self._fits is None or self._fits[0] is not gallery:
                self._fits = gallery, _repeat(lambda: measure_fits(self._store, gallery))
            return self._fits[1]

    def names(self, ids: Sequence[int]) -> dict[int, str]:
        """The names of photos that have one. Photos that joined by their score count once the gallery was made."""
        feedback = self.read()
        if not any(thing.name for thing in feedback.things.values()):
            return {}
        found = {row.id: feedback.name_of(row.image.hash) for row in self._store.rows(ids)}
        kept = self._gallery
        if kept is not None and kept[0] == self._key(feedback):
            joined = kept[1].thing_of
            found |= {id_: joined[id_].name for id_ in ids if id_ in joined}
        return {id_: name for id_, name in found.items() if name}

    def screen(self) -> "tuple[Screen | None, Asking]":
        """The screen to show next."""
        with self._making:
            asking = self._questions()
            return asking.screen(), asking

    def predict(self, query: str, images: Sequence[str]) -> dict[str, float]:
        """The model's probability that each image shows the same thing as the query."""
        with self._making:
            return self._questions().predict(query, images)

    def add_answer(self, entry: Entry) -> None:
        """Write an answered or skipped screen; the questions are updated without being made anew."""
        with self._making:
            asking = self._questions()
            self.append([entry])
            if entry.kind == "skip":
                asking.skip(str(entry.data["query"]))
            else:
                asking.add_answers(answer_links(entry))
            self._asking = self._key(self.read()), asking

    def _questions(self) -> "Asking":
        from insclr.feedback.asking import Asking  # loads torch, which serving searches need not wait for

        feedback = self.read()
        key = self._key(feedback)
        if self._asking is None or self._asking[0] != key:
            self._asking = key, _repeat(lambda: Asking(self._store, feedback))
        return self._asking[1]

    def _key(self, feedback: Feedback) -> str:
        """Changes with the rows and with the feedback."""
        entries = feedback.entries
        return f"{self._store.version()} {len(entries)} {entries[-1].id if entries else ''}"
