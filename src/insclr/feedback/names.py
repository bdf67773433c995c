"""The things of a store (groups of photos, corrected and named by people); export and import of their names."""

import csv
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from xml.sax.saxutils import escape

import numpy as np

from insclr.data.table import read_table, safe_cell, text_of_cell
from insclr.errors import UserError
from insclr.feedback.entries import add_images, check_name, name_thing, new_thing_id
from insclr.feedback.feedback import Feedback, Thing, build_links, read_feedback, replay
from insclr.feedback.groups import cluster
from insclr.files import whole_file
from insclr.retrieval.score import LIKELY, score_curve_of
from insclr.store import Entry, Row, Store, open_store

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


_XMP = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/">
   <dc:subject><rdf:Bag><rdf:li>{name}</rdf:li></rdf:Bag></dc:subject>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


def named_rows(store: Store) -> list[tuple[str, Row, bool]]:
    """The name of every photo that has one, its row, and whether a person put it there; by name and path."""
    found = [
        (thing.name, row, row.image.hash in thing.confirmed)
        for thing in build_gallery(store).things
        for row in thing.rows
        if thing.name
    ]
    return sorted(found, key=lambda one: (one[0], one[1].image.path))


def export_csv(store: Store, file: Path) -> int:
    """Write path, name and by whom; cells that a spreadsheet would run are quoted. Returns the photos written."""
    rows = named_rows(store)
    with whole_file(file) as scratch, scratch.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["path", "name", "by"])
        for name, row, confirmed in rows:
            table.writerow([safe_cell(row.image.path), safe_cell(name), "person" if confirmed else "score"])
    return len(rows)


def export_links(store: Store, folder: Path) -> int:
    """A folder for every name with links to its photos; links that are there already are left."""
    rows = named_rows(store)
    for name, row, _ in rows:
        home = folder / folder_name(name)
        home.mkdir(parents=True, exist_ok=True)
        source = Path(os.path.abspath(store.info.root / row.image.path))  # noqa: PTH100
        link = home / f"{row.image.hash[:8]}-{source.name}"
        if not link.is_symlink() and not link.exists():
            link.symlink_to(source)
    return len(rows)


def export_xmp(store: Store, folder: Path) -> int:
    """A sidecar PATH.xmp with the name as a keyword for every named photo, in folders like those of the photos."""
    rows = named_rows(store)
    for name, row, _ in rows:
        path = PurePosixPath(row.image.path)
        inside = Path(*path.parts[1:]) if path.is_absolute() else Path(path)
        file = folder / inside.parent / f"{inside.name}.xmp"
        if ".." in inside.parts:
            raise UserError(
                f"{row.image.path} lies outside of the store's folder: sidecars cannot mirror it."
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as scratch:
            scratch.write_text(_XMP.format(name=escape(name)), encoding="utf-8")
    return len(rows)


def folder_name(name: str) -> str:
    """A name as the name of a folder on any system."""
    plain = re.sub(r'[<>:"/\\|?*\x00-\x1f]', "_", name).strip(" .")
    return plain or "_"


def import_names(store: Store, source: str) -> int:
    """Import names from a CSV (path, name), another store, or, as `folders`, the folders the photos are in.

    Returns how many photos were named. A store brings all of its feedback, answers too.
    """
    if source == "folders":
        wanted = _from_folders(store)
    elif source.lower().endswith(".csv"):
        wanted = _from_csv(store, Path(source))
    else:
        return _from_store(store, source)
    things = {thing.name: thing.id for thing in read_feedback(store).things.values() if thing.name}
    entries: list[Entry] = []
    for name, images in sorted(wanted.items()):
        id_ = things.get(name) or new_thing_id()
        if name not in things:
            entries += name_thing(id_, name, [])
        entries += add_images(id_, images)
    store.append(entries)
    return sum(map(len, wanted.values()))


def _from_store(store: Store, source: str) -> int:
    with closing(open_store(source)) as other:
        entries = other.journal()
    store.append(entries)
    here = {row.image.hash for row in store.rows_by_path().values()}
    return sum(image in here for image in replay(entries).thing_of)


def _from_folders(store: Store) -> dict[str, list[str]]:
    wanted: dict[str, list[str]] = defaultdict(list)
    for path, row in sorted(store.rows_by_path().items()):
        name = PurePosixPath(path).parent.name
        if name:
            wanted[check_name(name)].append(row.image.hash)
    if not wanted:
        raise UserError(
            "The photos of this store are in no folders of their own: give a CSV (path, name) instead."
        )
    return wanted


def _from_csv(store: Store, file: Path) -> dict[str, list[str]]:
    rows = store.rows_by_path()
    wanted: dict[str, list[str]] = defaultdict(list)
    for line, cells in read_table(file, ("path", "name")):
        path, name = text_of_cell(cells["path"]), text_of_cell(cells["name"])
        if path not in rows:
            raise UserError(f"{file}, line {line}: there is no photo {path} in the store.")
        if check_name(name):
            wanted[check_name(name)].append(rows[path].image.hash)
    return wanted
