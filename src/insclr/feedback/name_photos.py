"""Entries that put single photos into things, or take them out; each is one act."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from insclr.errors import UserError
from insclr.feedback.entries import (
    add_images,
    check_name,
    join_acts,
    name_thing,
    new_thing_id,
    remove_images,
)
from insclr.feedback.names import Gallery, assign_permanent_id
from insclr.store import Entry, Row


@dataclass(frozen=True)
class PhotoAct:
    """What is to be written, and what it does, in words."""

    thing: str  # the id that the thing has then; empty where there are several
    message: str
    entries: list[Entry]


def name_photos(gallery: Gallery, rows: Sequence[Row], name: str, thing: str = "") -> PhotoAct:
    """Put photos into the thing of this id, else into the one of this name, else into a new one."""
    images, name = [row.image.hash for row in rows], check_name(name)
    known = gallery.thing(thing) if thing else gallery.find_named(name)
    if known is None:
        id_ = new_thing_id()
        entries = name_thing(id_, name, images)
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
    for thing, images in taken.items():
        id_, made = assign_permanent_id(gallery.thing(thing))
        entries += [*made, *remove_images(id_, images)]
    return PhotoAct("", f"{sum(map(len, taken.values()))} taken out", join_acts(entries))
