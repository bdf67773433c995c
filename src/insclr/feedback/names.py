"""Export names of a store as CSV, folders of links or XMP sidecars; import them from folders, a CSV or a store."""

import csv
import os
import re
from collections import defaultdict
from contextlib import closing
from pathlib import Path, PurePosixPath
from xml.sax.saxutils import escape

from insclr.data.table import read_table, safe_cell, text_of_cell
from insclr.errors import UserError
from insclr.feedback.entries import add_images, check_name, name_thing, new_thing_id
from insclr.feedback.feedback import read_feedback, replay
from insclr.feedback.things import build_gallery
from insclr.files import whole_file
from insclr.store import Entry, Row, Store, open_store

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
