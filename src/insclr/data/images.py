"""Read the IMAGES argument of every command: a folder, a list or a table; keep the list of skipped images."""

import csv
import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from insclr.data.formats import NOT_UTF8, PICTURES, VIDEOS, is_text, kind_of, not_read_lines, on_disk, what_is
from insclr.data.table import read_table, require_columns, safe_cell, text_of_cell
from insclr.errors import UserError
from insclr.files import is_there, open_file, open_text, whole_file
from insclr.progress import working

logger = logging.getLogger(__name__)

# A list whose first 100 paths do not exist has the wrong base folder.
_PROBED = 100

_VISIBLE_SAMPLE = 100  # files checked to decide whether the images of a list are on this machine


@dataclass(frozen=True)
class ImageList:
    """Images in a fixed order; the id of an image is its position in `paths`.

    Paths are posix and relative to `root`, or absolute for an image outside it; a frame of a video is
    VIDEO#t=SECONDS. `columns` are the other columns of a CSV or Parquet list, one text per image. `not_read` counts
    the other files by kind.
    """

    root: Path
    paths: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    not_read: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, i: int) -> Path:
        """The file of image `i`."""
        return self.root / self.paths[i]

    def stamp(self, i: int) -> tuple[int, int]:
        """Size in bytes and modification time in nanoseconds of a file; -1 for both where there is no such file."""
        try:
            status = on_disk(self.file(i)).stat()
        except OSError:
            return -1, -1
        return status.st_size, status.st_mtime_ns

    def digest(self) -> str:
        """The digest of all paths, sizes and times."""
        found = hashlib.sha256()
        for i, path in enumerate(self.paths):
            found.update(path.encode())
            size, time = self.stamp(i)
            found.update(f"{size} {time}".encode() if size >= 0 else b"")
        return found.hexdigest()

    def subset(self, ids: Iterable[int]) -> "ImageList":
        """The images `ids`, in that order, numbered anew from 0."""
        ids = list(ids)
        columns = {name: tuple(values[i] for i in ids) for name, values in self.columns.items()}
        return ImageList(self.root, tuple(self.paths[i] for i in ids), columns, self.not_read)


def require_listed(source: str | Path) -> Path:
    """The path of the images or their list; UserError when it does not exist."""
    source = Path(source).expanduser()
    if not is_text(str(source)):
        raise UserError(f"{source}: this name is not UTF-8 text. Rename it.")
    if str(source).startswith("pretrained:"):
        raise UserError(f"{source} is a model, not a folder of images: the model comes before the images.")
    if not is_there(source):
        raise UserError(
            f"{source} does not exist: give a folder of images, or a .txt, .csv or .parquet list."
        )
    if (kind := what_is(source)) in ("a store", "a run folder", "a model file"):
        raise UserError(
            f"{source} is {kind}, not a folder of images: name the folder that your photos are in."
        )
    return source


def list_images(source: str | Path) -> ImageList:
    """List the images of a folder (recursively, in natural order), or of a .txt, .csv or .parquet list.

    Paths in a list are relative to the folder of the list. A missing or malformed source, or one without
    images, is a UserError.
    """
    source = require_listed(source)
    if source.is_dir():
        with working("listing the photos"):
            return _scan(source)
    readers = {".txt": _read_text, ".csv": _read_csv, ".parquet": _read_parquet}
    if (reader := readers.get(source.suffix.lower())) is None:
        raise UserError(
            f"{source} is neither a folder nor a list: give a folder of images, a .txt file with one path a "
            "line, or a .csv or .parquet file with a `path` column."
        )
    images = reader(source)
    if not images.paths:
        raise UserError(f"{source} lists no images: add at least two.")
    if not any(is_there(on_disk(images.file(i))) for i in range(min(len(images), _PROBED))):
        raise UserError(
            f"{source}: {images.file(0)} does not exist, nor do the paths after it. "
            f"Paths are relative to the folder of the list, {images.root}."
        )
    return images


def require_usable(usable: int, source: str | Path) -> None:
    """Raise a UserError unless `source` has the two readable images that any comparison needs."""
    if usable < 2:
        raise UserError(
            f"{source} has {usable} usable image{'' if usable == 1 else 's'}; at least 2 are needed. "
            f"`insclr check {source}` lists the files that cannot be read and why."
        )


def natural_key(path: str) -> tuple[tuple[tuple[str | int, ...], ...], str]:
    """Sort key with img2 before img10, folder by folder."""
    # Splitting at a group gives text, number, text, ...: equal positions always have equal types.
    parts = (re.split(r"(\d+)", part) for part in path.casefold().split("/"))
    return tuple(tuple(int(t) if k % 2 else t for k, t in enumerate(part)) for part in parts), path


def _scan(root: Path) -> ImageList:
    suffixes: Counter[str] = Counter()
    not_read: Counter[str] = Counter()
    paths: list[str] = []
    for file in _walk(root):
        path, suffix = file.relative_to(root).as_posix(), file.suffix.lower()
        if kind := kind_of(suffix):
            suffixes[suffix or "no suffix"] += 1
            not_read[kind] += 1
        elif not is_text(path):
            not_read[NOT_UTF8] += 1
        elif suffix in VIDEOS:
            from insclr.data.camera_formats import frame_names

            paths += frame_names(file, path)
        else:
            paths.append(path)
    if not paths:
        found = ", ".join(f"{n} {suffix}" for suffix, n in suffixes.most_common(3))
        found = found or ("names that are not UTF-8" if not_read else "no files at all")
        hint = "".join(f" {line}." for line in not_read_lines(not_read))
        known = " ".join(sorted(PICTURES))
        raise UserError(f"{root} holds no images (found: {found}).{hint} Known image files: {known}.")
    return ImageList(root, tuple(sorted(paths, key=natural_key)), not_read=not_read)


def _walk(root: Path) -> Iterator[Path]:
    """Every visible file under `root`; each real folder once, under its own name and not the name of a link."""
    folders, linked = [root], list[Path]()
    seen: set[tuple[int, int]] = set()
    while folders or linked:
        folder = folders.pop() if folders else linked.pop(0)
        try:
            identity = folder.stat()
            if (key := (identity.st_dev, identity.st_ino)) in seen:
                continue
            seen.add(key)
            with os.scandir(folder) as entries:
                found = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
        except OSError as error:
            logger.warning("folder %s cannot be read (%s): left out", folder, error.strerror)
            continue
        for entry in found:
            if not _is_folder(entry):
                yield Path(entry.path)
            elif entry.is_symlink():
                linked.append(Path(entry.path))
            else:
                folders.append(Path(entry.path))


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: decoding reports the error
        return False


def _read_text(source: Path) -> ImageList:
    try:
        with open_text(source, encoding="utf-8-sig") as text:
            lines = text.read().split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
    except OSError as error:
        raise UserError(f"{source} cannot be read: {error.strerror}.") from error
    rows = [(number, line.strip()) for number, line in enumerate(lines, start=1)]
    kept = [(number, line) for number, line in rows if line and not line.startswith("#")]
    return ImageList(source.parent, _unique_paths(source, kept, "line"))


def _read_csv(source: Path) -> ImageList:
    rows = list(read_table(source, ("path",)))
    paths = _unique_paths(source, [(line, row["path"].strip()) for line, row in rows], "line")
    names = [name for name in (rows[0][1] if rows else ()) if name != "path"]
    return ImageList(source.parent, paths, {name: tuple(row[name] for _, row in rows) for name in names})


def _read_parquet(source: Path) -> ImageList:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_file(source) as opened:
            table = pq.read_table(opened)
        columns = {name: table[name].to_pylist() for name in table.column_names}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{source} is not a readable Parquet file ({str(error).splitlines()[0]}).") from error
    require_columns(source, table.column_names, ("path",))
    texts = {
        name: tuple("" if value is None else str(value) for value in values)
        for name, values in columns.items()
    }
    paths = _unique_paths(source, list(enumerate(texts.pop("path"), start=1)), "row")
    return ImageList(source.parent, paths, texts)


def _unique_paths(source: Path, rows: list[tuple[int, str]], unit: str) -> tuple[str, ...]:
    """Paths relative to the folder of the list; an empty or repeated path is an error that names the line."""
    root = os.path.abspath(source.parent)  # noqa: PTH100 (links stay unresolved: keep the names that the user wrote)
    first_seen: dict[str, int] = {}
    for number, text in rows:
        if not text:
            raise UserError(f"{source}, {unit} {number}: the path is empty.")
        whole = os.path.normpath(os.path.join(root, text))  # noqa: PTH118
        path = Path(whole).relative_to(root).as_posix() if whole.startswith(root + os.sep) else whole
        if (first := first_seen.setdefault(path, number)) != number:
            raise UserError(
                f"{source}, {unit} {number}: {text} is listed already in {unit} {first}. Remove one."
            )
    return tuple(first_seen)


def require_visible(images: ImageList) -> None:
    """Refuse a list whose files are not on this machine: a process on another machine made it."""
    step = max(1, len(images) // _VISIBLE_SAMPLE)
    if not any(on_disk(images.file(i)).exists() for i in range(0, len(images), step)):
        raise UserError(
            f"This rank sees none of the images in {images.root}: mount them under the same path on every node."
        )


class Skipped:
    """Collects (path, reason) of unreadable images, once per path: the first reason stays."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def add(self, path: str | Path, reason: str) -> None:
        """Note that `path` was left out."""
        self._reasons.setdefault(str(path), reason)

    def add_others(self, images: ImageList, usable: Iterable[int]) -> None:
        """Note every image that is not among the `usable` ids: the reason may have been lost in a kill."""
        kept = set(usable)
        for i, path in enumerate(images.paths):
            if i not in kept:
                self.add(path, "could not be read")

    def __len__(self) -> int:
        return len(self._reasons)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._reasons.items())

    def __contains__(self, path: object) -> bool:
        return str(path) in self._reasons

    def read(self, path: Path) -> None:
        """Take in what `write` wrote, where it is there; what is noted already stays."""
        if not path.exists():
            return
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            for row in csv.DictReader(file):
                if row.get("path"):
                    self.add(text_of_cell(row["path"]), text_of_cell(row.get("reason") or ""))

    def write(self, path: str | Path) -> None:
        """Write skipped.csv with the columns path, reason; with nothing skipped it holds the header alone."""
        # File names are bytes: surrogateescape writes back even those that are not UTF-8.
        with (
            whole_file(path) as scratch,
            scratch.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
        ):
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["path", "reason"])
            rows.writerows((safe_cell(path), safe_cell(reason)) for path, reason in self)
