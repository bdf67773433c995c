"""The images a run had to leave out, each with its reason."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from insclr.data.images import ImageList
from insclr.data.table import safe_cell, text_of_cell
from insclr.files import whole_file


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
