"""The things of a store: groups of photos by similarity, corrected and named by people."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from insclr.errors import UserError
from insclr.feedback.cluster import cluster
from insclr.feedback.entries import name_thing, new_thing_id
from insclr.feedback.feedback import Feedback, Thing, build_links, read_feedback
from insclr.retrieval.score import LIKELY, score_curve_of
from insclr.store import Entry, Row, Store

_GROUP = "group-"  # before the hash of the most central photo, for a thing without feedback


@dataclass(frozen=True)
class ShownThing:
    """A thing as the gallery shows it."""

    id: str
    name: str
    rows: tuple[Row, ...]  # the most central first
    confirmed: frozenset[str] = (
        frozenset()
    )  # hashes of photos that people put here; the others joined by score
    score: float = 1.0  # how likely two of its photos show the same thing, on average
    hidden: bool = False

    @property
    def uncertain(self) -> bool:
        """Whether it may be several things: it has no feedback, and its photos are not alike enough."""
        return not self.confirmed and self.score < LIKELY


@dataclass(frozen=True)
class Gallery:
    """The things of a store, the largest first, and the photos that match nothing."""

    things: tuple[ShownThing, ...]
    alone: tuple[Row, ...]

    def thing(self, id_: str) -> ShownThing:
        """The thing of this id, or the one that a group's photo is in by now; UserError when there is none."""
        for thing in self.things:
            if thing.id == id_:
                return thing
        image = id_.removeprefix(_GROUP)
        for thing in self.things:
            if image != id_ and any(row.image.hash == image for row in thing.rows):
                return thing
        raise UserError("This thing is not there any more: go back to the gallery.")

    @cached_property
    def thing_of(self) -> dict[int, ShownThing]:
        """The thing of every row that is in one, by the row's id."""
        return {row.id: thing for thing in self.things for row in thing.rows}


def build_gallery(store: Store, feedback: Feedback | None = None) -> Gallery:
    """Group the photos of a store; those that people put into a thing are there.

    A photo without feedback is with the thing that most of its group belongs to, unless it was told from that thing.
    """
    feedback = read_feedback(store) if feedback is None else feedback
    apart: dict[str, set[str]] = defaultdict(set)  # image: images of other things
    for link in feedback.links:
        if not link.same:
            apart[link.one].add(link.other)
            apart[link.other].add(link.one)
    members: dict[str, list[Row]] = defaultdict(list)
    alone: list[Row] = []
    for group in cluster(store, 1, links=build_links(feedback)):
        things: Counter[str] = Counter()
        rest: list[Row] = []
        for row in group.rows:
            if thing := feedback.thing_of.get(row.image.hash):
                things[thing] += 1
                members[thing].append(row)
            else:
                rest.append(row)
        if things:
            common = things.most_common(1)[0][0]
            images = feedback.things[common].images
            members[common] += [row for row in rest if apart[row.image.hash].isdisjoint(images)]
            rest = [row for row in rest if not apart[row.image.hash].isdisjoint(images)]
        if len(rest) > 1:
            members[f"{_GROUP}{rest[0].image.hash}"] = rest
        else:
            alone += rest
    shown = _show_things(store, feedback, members)
    return Gallery(tuple(sorted(shown, key=lambda t: (-len(t.rows), not t.name, t.name, t.id))), tuple(alone))


def assign_permanent_id(thing: ShownThing) -> tuple[str, list[Entry]]:
    """The thing's id; for a group without feedback a new one, and the entries that assign it."""
    if not thing.id.startswith(_GROUP):
        return thing.id, []
    id_ = new_thing_id()
    return id_, name_thing(id_, "", [row.image.hash for row in thing.rows])


def hashes_of(thing: ShownThing, ids: Sequence[int]) -> list[str]:
    """The hashes of some photos of a thing; UserError when one is not in it."""
    found = {row.id: row.image.hash for row in thing.rows}
    if any(one not in found for one in ids):
        raise UserError("A photo is not in this thing any more: look at it again.")
    return [found[one] for one in ids]


def _show_things(store: Store, feedback: Feedback, members: dict[str, list[Row]]) -> list[ShownThing]:
    curve = score_curve_of(store)
    flat = store.descriptors([row.id for rows in members.values() for row in rows])
    by_thing = np.split(flat, np.cumsum([len(rows) for rows in members.values()])[:-1]) if members else []
    found = []
    for (id_, rows), descriptors in zip(members.items(), by_thing, strict=True):
        total, count = descriptors.sum(0), len(rows)
        average = (float(total @ total) - count) / (count * (count - 1)) if count > 1 else 1.0
        score = float(curve.score(np.array([average], dtype=np.float32))[0])
        central = tuple(rows[i] for i in np.argsort(-(descriptors @ total), kind="stable"))
        # A group is numbered by a photo that it keeps when others join it.
        thing = feedback.things.get(id_) or Thing(f"{_GROUP}{central[0].image.hash}")
        found.append(ShownThing(thing.id, thing.name, central, frozenset(thing.images), score, thing.hidden))
    return found
