"""The things of a store: groups of photos by similarity, corrected and named by people."""

import secrets
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from insclr.arrays import Descriptors
from insclr.errors import UserError
from insclr.feedback.cluster import cluster
from insclr.feedback.feedback import Feedback, links_to_learn, name_thing, read_feedback
from insclr.retrieval.score import LIKELY, ScoreCurve, score_curve_of
from insclr.store import Entry, Row, Store

_GROUP = "group-"  # before the hash of the most central photo, for a thing that nobody spoke about


@dataclass(frozen=True)
class ShownThing:
    """A thing as the gallery shows it."""

    id: str
    name: str
    rows: tuple[Row, ...]  # the most central first
    said: frozenset[str] = (
        frozenset()
    )  # hashes of photos that people put here; the others joined by their score
    score: float = 1.0  # how likely two of its photos show the same thing, on average
    hidden: bool = False

    @property
    def uncertain(self) -> bool:
        """Whether it may be several things: nobody named it, and its photos are not alike enough."""
        return not self.said and self.score < LIKELY


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
        image = id_.removeprefix(_GROUP) if id_.startswith(_GROUP) else ""
        for thing in self.things:
            if image and any(row.image.hash == image for row in thing.rows):
                return thing
        raise UserError("This thing is not there any more: go back to the gallery.")

    @cached_property
    def thing_of(self) -> dict[int, ShownThing]:
        """The thing of every row that is in one, by the row's id."""
        return {row.id: thing for thing in self.things for row in thing.rows}


def gallery(store: Store, said: Feedback | None = None) -> Gallery:
    """Group the photos of a store; those that people spoke of are where they put them.

    A photo that nobody spoke of is with the thing that most of its group belongs to.
    """
    said = read_feedback(store) if said is None else said
    groups = cluster(store, 1, links=links_to_learn(said))
    apart: dict[str, set[str]] = defaultdict(set)  # image: others that were said to show something else
    for link in said.links:
        if not link.same:
            apart[link.one].add(link.other)
            apart[link.other].add(link.one)
    members: dict[str, list[Row]] = defaultdict(list)
    alone: list[Row] = []
    for group in groups:
        things = Counter(
            said.thing_of[row.image.hash] for row in group.rows if row.image.hash in said.thing_of
        )
        common = things.most_common(1)[0][0] if things else ""
        rest = [row for row in group.rows if row.image.hash not in said.thing_of]
        for row in group.rows:
            if row.image.hash in said.thing_of:
                members[said.thing_of[row.image.hash]].append(row)
        if common:
            thing = said.things[common].images
            members[common] += [row for row in rest if apart[row.image.hash].isdisjoint(thing)]
            rest = [row for row in rest if not apart[row.image.hash].isdisjoint(thing)]
        if len(rest) > 1:
            members[f"{_GROUP}{rest[0].image.hash}"] = rest
        else:
            alone += rest
    curve = score_curve_of(store)
    flat = [row.id for rows in members.values() for row in rows]
    descriptors = iter(np.split(store.descriptors(flat), np.cumsum([len(rows) for rows in members.values()])))
    shown = [_shown(curve, next(descriptors), said, id_, rows) for id_, rows in members.items()]
    shown.sort(key=lambda thing: (-len(thing.rows), not thing.name, thing.name, thing.id))
    return Gallery(tuple(shown), tuple(alone))


def assign_permanent_id(thing: ShownThing) -> tuple[str, list[Entry]]:
    """An id that stays, and the entries that make it so for a group that nobody spoke about."""
    if not thing.id.startswith(_GROUP):
        return thing.id, []
    id_ = f"thing-{secrets.token_hex(8)}"
    return id_, name_thing(id_, "", [row.image.hash for row in thing.rows])


def hashes_of(thing: ShownThing, ids: Sequence[int]) -> list[str]:
    """The hashes of some photos of a thing; UserError when one is not in it."""
    found = {row.id: row.image.hash for row in thing.rows}
    if any(one not in found for one in ids):
        raise UserError("A photo is not in this thing any more: look at it again.")
    return [found[one] for one in ids]


def _shown(
    curve: ScoreCurve, descriptors: Descriptors, said: Feedback, id_: str, rows: list[Row]
) -> ShownThing:
    """A thing of these rows with their descriptors (rows, D)."""
    total = descriptors.sum(0)
    count = len(rows)
    average = (float(total @ total) - count) / (count * (count - 1)) if count > 1 else 1.0
    score = float(curve.score(np.array([average], dtype=np.float32))[0])
    thing = said.things.get(id_)
    central = [rows[i] for i in np.argsort(-(descriptors @ total), kind="stable")]
    if thing is None:
        # Numbered by a photo that the group keeps when others join it.
        return ShownThing(f"{_GROUP}{central[0].image.hash}", "", tuple(central), score=score)
    here = frozenset(thing.images)
    return ShownThing(id_, thing.name, tuple(central), here, score, thing.hidden)
