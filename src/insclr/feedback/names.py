"""The things of a store (groups of photos, corrected and named by people); export and import of their names."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from insclr.arrays import Descriptors
from insclr.errors import UserError
from insclr.feedback.entries import (
    add_images,
    check_name,
    join_acts,
    name_thing,
    new_thing_id,
    remove_images,
)
from insclr.feedback.feedback import Feedback, Thing, build_links, read_feedback
from insclr.feedback.groups import cluster
from insclr.feedback.joining import find_joins, find_split, score_fit
from insclr.retrieval.score import DISPLAY_THRESHOLD, ScoreCurve, score_curve_of
from insclr.store import Entry, Row, Store

_GROUP = "group-"  # before the hash of the most central photo, for a thing without feedback


@dataclass(frozen=True)
class ShownThing:
    """A thing as the gallery shows it."""

    id: str
    name: str
    rows: tuple[Row, ...]  # the most central first
    # Hashes of photos that people put here one by one; the others were named as a group or joined by score.
    confirmed: frozenset[str] = frozenset()
    hidden: bool = False
    # Photos that look like it and wait for a person, each with its score, the likeliest first.
    proposed: tuple[tuple[Row, float], ...] = ()
    split: tuple[Row, ...] = ()  # those of its rows that are probably another thing

    @property
    def has_feedback(self) -> bool:
        """Whether a person named it or changed it."""
        return not self.id.startswith(_GROUP)

    @property
    def uncertain(self) -> bool:
        """Whether it may be several things."""
        return bool(self.split)


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

    def find_named(self, name: str, other_than: str = "") -> ShownThing | None:
        """The thing of this name but of another id, upper and lower case being equal; None for an empty name."""
        wanted = name.casefold()
        found = (one for one in self.things if one.id != other_than and one.name.casefold() == wanted)
        return next(found, None) if wanted else None

    @cached_property
    def thing_of(self) -> dict[int, ShownThing]:
        """The thing of every row that is in one, by the row's id."""
        return {row.id: thing for thing in self.things for row in thing.rows}


def build_gallery(store: Store, feedback: Feedback | None = None) -> Gallery:
    """Group the photos of a store; those that people put into a thing are there.

    A photo without feedback whose group is mostly of such a thing joins it where that is hardly ever wrong
    (`find_joins`); else it waits for a person, in a group with the others or alone.
    """
    feedback = read_feedback(store) if feedback is None else feedback
    apart: dict[str, set[str]] = defaultdict(set)  # image: images of other things
    for link in feedback.links:
        if not link.same:
            apart[link.one].add(link.other)
            apart[link.other].add(link.one)
    members: dict[str, list[Row]] = defaultdict(list)
    groups: list[list[Row]] = []  # without feedback
    like: dict[int, str] = {}  # row: the thing that it is grouped with
    for group in cluster(store, 1, links=build_links(feedback)):
        things: Counter[str] = Counter()
        rest: list[Row] = []
        for row in group.rows:
            if thing := feedback.thing_of.get(row.image.hash):
                things[thing] += 1
                members[thing].append(row)
            else:
                rest.append(row)
        groups.append(rest)
        if things:
            common = things.most_common(1)[0][0]
            images = feedback.things[common].images
            like |= {row.id: common for row in rest if apart[row.image.hash].isdisjoint(images)}
    known = {thing: [row.id for row in rows] for thing, rows in members.items()}
    joins = find_joins(store, like, known, sum(map(len, groups)))
    proposed: dict[str, list[Row]] = defaultdict(list)
    alone: list[Row] = []
    for rows in groups:
        for row in rows:
            if row.id in like:
                (members if row.id in joins else proposed)[like[row.id]].append(row)
        rest = [row for row in rows if row.id not in joins]
        if len(rest) > 1:
            members[f"{_GROUP}{rest[0].image.hash}"] = rest
        else:
            alone += rest
    shown = _show_things(store, feedback, members, proposed)
    return Gallery(tuple(sorted(shown, key=lambda t: (-len(t.rows), not t.name, t.name, t.id))), tuple(alone))


def assign_permanent_id(thing: ShownThing) -> tuple[str, list[Entry]]:
    """The thing's id; for a group without feedback a new one, and the entries that assign it."""
    if not thing.id.startswith(_GROUP):
        return thing.id, []
    id_ = new_thing_id()
    return id_, name_thing(id_, "", [row.image.hash for row in thing.rows], grouped=True)


def _show_things(
    store: Store, feedback: Feedback, members: dict[str, list[Row]], proposed: dict[str, list[Row]]
) -> list[ShownThing]:
    curve = score_curve_of(store)
    flat = store.descriptors([row.id for rows in members.values() for row in rows])
    by_thing = np.split(flat, np.cumsum([len(rows) for rows in members.values()])[:-1]) if members else []
    found = []
    for (id_, rows), descriptors in zip(members.items(), by_thing, strict=True):
        order = np.argsort(-(descriptors @ descriptors.sum(0)), kind="stable")
        central = tuple(rows[i] for i in order)
        # A group is numbered by a photo that it keeps when others join it.
        thing = feedback.things.get(id_) or Thing(f"{_GROUP}{central[0].image.hash}")
        confirmed = frozenset(thing.images) - thing.grouped
        split = () if confirmed else tuple(central[i] for i in find_split(descriptors[order], curve))
        waiting = _score_proposed(store, proposed.get(id_, []), descriptors, curve)
        found.append(ShownThing(thing.id, thing.name, central, confirmed, thing.hidden, waiting, split))
    return found


def _score_proposed(
    store: Store, rows: Sequence[Row], members: Descriptors, curve: ScoreCurve
) -> tuple[tuple[Row, float], ...]:
    if not rows:
        return ()
    scores = score_fit(store.descriptors([row.id for row in rows]), members, curve)
    order = np.argsort(-scores, kind="stable")
    return tuple((rows[i], float(scores[i])) for i in order if scores[i] >= DISPLAY_THRESHOLD)


def measure_fits(store: Store, gallery: Gallery) -> dict[int, float]:
    """How likely each row that is in a thing shows it; 1 where a person put it there."""
    curve, found = score_curve_of(store), {}
    for thing in gallery.things:
        ids = [row.id for row in thing.rows]
        descriptors = store.descriptors(ids)
        scores = score_fit(descriptors, descriptors, curve)
        for row, score in zip(thing.rows, scores, strict=True):
            found[row.id] = 1.0 if row.image.hash in thing.confirmed else round(float(score), 4)
    return found


@dataclass(frozen=True)
class PhotoAct:
    """What is to be written, and what it does, in words."""

    thing: str  # the id that the thing has then; empty where there are several
    message: str
    entries: list[Entry]


def name_photos(gallery: Gallery, rows: Sequence[Row], name: str, thing: str = "") -> PhotoAct:
    """Put photos into the thing of this id, else into the one of this name, else into a new one.

    A new one without a name is split from the thing that they are in, whose other photos show something else.
    """
    images, name = [row.image.hash for row in rows], check_name(name)
    known = gallery.thing(thing) if thing else gallery.find_named(name)
    if known is None:
        id_, split_from = new_thing_id(), ""
        made: list[Entry] = []
        homes = {found.id: found for row in rows if (found := gallery.thing_of.get(row.id))}
        if not name and len(homes) == 1:
            split_from, made = assign_permanent_id(*homes.values())
        entries = [*made, *name_thing(id_, name, images, split_from)]
    else:
        id_, made = assign_permanent_id(known)
        entries = [*made, *add_images(id_, images)]
    shown = (known.name if known else name) or "one thing"
    return PhotoAct(id_, f"{len(images)} {'added to' if known else 'named'} {shown}", join_acts(entries))


def take_out_photos(gallery: Gallery, rows: Sequence[Row]) -> PhotoAct:
    """Take photos out of the things that they are in; UserError where they are in none."""
    taken: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.id in gallery.thing_of:
            taken[gallery.thing_of[row.id].id].append(row.image.hash)
    if not taken:
        raise UserError("These photos are in no thing.")
    entries: list[Entry] = []
    id_ = ""
    for thing, images in taken.items():
        id_, made = assign_permanent_id(gallery.thing(thing))
        entries += [*made, *remove_images(id_, images)]
    count = sum(map(len, taken.values()))
    return PhotoAct(id_ if len(taken) == 1 else "", f"{count} taken out", join_acts(entries))


def named_rows(store: Store) -> list[tuple[str, Row, bool]]:
    """The name of every photo that has one, its row, and whether a person put it there; by name and path."""
    found = [
        (thing.name, row, row.image.hash in thing.confirmed)
        for thing in build_gallery(store).things
        for row in thing.rows
        if thing.name
    ]
    return sorted(found, key=lambda one: (one[0], one[1].image.path))
