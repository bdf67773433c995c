"""Names go out as a table, folders of links or sidecars, and come in from tables, sidecars, folders or a store."""

import csv
import locale
import os
import re
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TextIO

from insclr.data.decode import Box
from insclr.data.table import read_table, safe_cell, text_of_cell
from insclr.errors import UserError
from insclr.feedback.entries import add_images, check_name, join_acts, name_thing, new_thing_id
from insclr.feedback.feedback import read_feedback, replay
from insclr.feedback.names import named_rows
from insclr.feedback.sidecars import UnclearSidecar, read_sidecar, sidecar
from insclr.files import read_bytes, whole_file
from insclr.store import Entry, Row, Store, is_store, open_store

_SIDECAR = ".xmp"
_MOST_BYTES = 10_000_000  # of a sidecar
_SHOWN = 5


@dataclass
class ImportReport:
    """What an import of names did, in photos."""

    named: int = 0
    unchanged: int = 0  # had this name already
    unknown: list[str] = field(default_factory=list)  # paths that the store does not have
    unclear: list[str] = field(default_factory=list)  # sidecars without a name, or with several

    def summary(self) -> str:
        """For people: what was named, then what was passed over."""
        lines = [f"{self.named} images named" + (f", {self.unchanged} as before" if self.unchanged else "")]
        for paths, what in ((self.unknown, "not in the store"), (self.unclear, "with no name or several")):
            if paths:
                more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
                lines.append(f"{len(paths)} {what}: {', '.join(paths[:_SHOWN])}{more}")
        return "\n".join(lines)


@dataclass
class _Wanted:
    """The name that photos are to have, by the hash of their content, and what else is known of them."""

    names: dict[str, str] = field(default_factory=dict)
    by_score: set[str] = field(default_factory=set)
    boxes: dict[str, Box] = field(default_factory=dict)
    report: ImportReport = field(default_factory=ImportReport)


def export_csv(store: Store, file: Path, *, replace: bool = False) -> int:
    """Write path, name and by whom, as spreadsheets of this locale read it; cells that they would run are quoted.

    Returns the photos written; UserError where the file is there already, unless it is to be replaced.
    """
    if file.exists() and not replace:
        raise UserError(
            f"{file} exists and may hold changes of yours: import it first, name another file, or give --replace."
        )
    with whole_file(file) as scratch, scratch.open("w", encoding="utf-8-sig", newline="") as stream:
        return write_table(store, stream, _delimiter())


def write_table(store: Store, stream: TextIO, delimiter: str = ",") -> int:
    """Write the table of `export_csv`; returns the photos written."""
    rows = named_rows(store)
    table = csv.writer(stream, delimiter=delimiter)
    table.writerow(["path", "name", "by"])
    for name, row, confirmed in rows:
        table.writerow([safe_cell(row.image.path), safe_cell(name), "person" if confirmed else "score"])
    return len(rows)


def _delimiter() -> str:
    """What separates cells where a spreadsheet takes the comma for a decimal point."""
    before = locale.setlocale(locale.LC_NUMERIC)
    try:
        locale.setlocale(locale.LC_NUMERIC, "")
        return ";" if locale.localeconv()["decimal_point"] == "," else ","
    except locale.Error:
        return ","
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)


def export_links(store: Store, folder: Path, *, replace: bool = False) -> int:  # noqa: ARG001
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


def export_xmp(store: Store, folder: Path, *, replace: bool = False) -> int:
    """A sidecar PATH.xmp with the name and its region for every named photo, in folders like those of the photos.

    UserError where one is there already, perhaps of another program, unless they are to be replaced.
    """
    rows, boxes = named_rows(store), read_feedback(store).boxes
    files = []
    for name, row, _ in rows:
        path = PurePosixPath(row.image.path)
        if ".." in path.parts:
            raise UserError(
                f"{row.image.path} lies outside of the store's folder: sidecars cannot mirror it."
            )
        inside = Path(*path.parts[1:]) if path.is_absolute() else Path(path)
        files.append((folder / inside.parent / f"{inside.name}{_SIDECAR}", name, boxes.get(row.image.hash)))
    if not replace and (there := next((file for file, _, _ in files if file.exists()), None)):
        raise UserError(f"{there} exists: name another folder, or give --replace to replace such sidecars.")
    for file, name, box in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as scratch:
            scratch.write_text(sidecar(name, box), encoding="utf-8")
    return len(rows)


def folder_name(name: str) -> str:
    """A name as the name of a folder on any system."""
    plain = re.sub(r'[<>:"/\\|?*\x00-\x1f]', "_", name).strip(" .")
    return plain or "_"


def import_names(store: Store, source: str) -> ImportReport:
    """Import names from a CSV (path, name), a folder of sidecars, another store, or the `folders` of the photos.

    Photos that the store does not have are reported, and the others named. One undo takes all of them back. A store
    brings all of its feedback. Names by `score` in a table stay so; one that was changed in it is a person's.
    """
    if source == "folders":
        wanted = _from_folders(store)
    elif source.lower().endswith(".csv"):
        wanted = _from_csv(store, Path(source))
    elif Path(source).is_dir() and not is_store(source):
        wanted = _from_sidecars(store, Path(source))
    else:
        return _from_store(store, source)
    report = wanted.report
    if not wanted.names and (report.unknown or report.unclear):
        raise UserError(f"Nothing of {source} could be used. {report.summary().partition(chr(10))[2]}.")
    _drop_known(store, wanted)
    # Upper and lower case are equal in names, as on the page.
    things = {one.name.casefold(): one.id for one in read_feedback(store).things.values() if one.name}
    groups: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for image, name in wanted.names.items():
        groups[name, image in wanted.by_score].append(image)
    entries: list[Entry] = []
    for (name, by_score), images in sorted(groups.items()):
        if (thing := things.get(name.casefold())) is None:
            thing = things[name.casefold()] = new_thing_id()
            entries += name_thing(thing, name, [])
        entries += add_images(thing, images, grouped=by_score, boxes=wanted.boxes)
    store.append(join_acts(entries))
    report.named = len(wanted.names)
    return report


def _drop_known(store: Store, wanted: _Wanted) -> None:
    """Leave what people said as it is, and photos that have their name by score."""
    boxes = read_feedback(store).boxes
    for name, row, confirmed in named_rows(store):
        image = row.image.hash
        box = wanted.boxes.get(image)
        if wanted.names.get(image, "").casefold() != name.casefold():
            wanted.by_score.discard(image)  # the name was changed in the table: by a person
        elif (confirmed or image in wanted.by_score) and box in (None, boxes.get(image)):
            del wanted.names[image]
            wanted.report.unchanged += 1


def _from_store(store: Store, source: str) -> ImportReport:
    with closing(open_store(source)) as other:
        entries = other.journal()
    store.append(entries)
    here = {row.image.hash for row in store.rows_by_path().values()}
    return ImportReport(sum(image in here for image in replay(entries).thing_of))


def _from_folders(store: Store) -> _Wanted:
    wanted = _Wanted()
    for path, row in sorted(store.rows_by_path().items()):
        name = PurePosixPath(path).parent.name
        if name:
            wanted.names[row.image.hash] = check_name(name)
    if not wanted.names:
        raise UserError(
            "The photos of this store are in no folders of their own: give a CSV (path, name) instead."
        )
    return wanted


def _from_csv(store: Store, file: Path) -> _Wanted:
    rows, wanted = store.rows_by_path(), _Wanted()
    for _, cells in read_table(file, ("path", "name")):
        path, name = text_of_cell(cells["path"]), check_name(text_of_cell(cells["name"]))
        if path not in rows:
            wanted.report.unknown.append(path)
        elif name:
            wanted.names[rows[path].image.hash] = name
            if cells.get("by", "").strip().lower() == "score":
                wanted.by_score.add(rows[path].image.hash)
    return wanted


def _from_sidecars(store: Store, folder: Path) -> _Wanted:
    """The names in PHOTO.jpg.xmp, or PHOTO.xmp where only one photo is called so."""
    wanted = _Wanted()
    rows = store.rows_by_path()
    known: dict[str, list[Row]] = defaultdict(list)
    for path, row in rows.items():
        for text in {path.lstrip("/"), str(PurePosixPath(path.lstrip("/")).with_suffix(""))}:
            known[text].append(row)
    files = sorted(one for one in folder.rglob("*") if one.suffix.lower() == _SIDECAR and one.is_file())
    if not files:
        raise UserError(f"{folder} is neither a store nor a folder with sidecars (PHOTO{_SIDECAR}).")
    for file in files:
        path = file.relative_to(folder).with_suffix("").as_posix()
        if len(known.get(path, ())) != 1:
            wanted.report.unknown.append(path)
            continue
        image = known[path][0].image.hash
        try:
            name, box = read_sidecar(read_bytes(file, _MOST_BYTES))
        except (UnclearSidecar, OSError):
            wanted.report.unclear.append(path)
            continue
        wanted.names[image] = check_name(name)
        if box is not None:
            wanted.boxes[image] = box
    return wanted
