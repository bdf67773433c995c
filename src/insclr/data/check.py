"""Check a collection: what it holds, and which files cannot be used. The work of `insclr check`."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from insclr.data.decode import BadImage, decode, read_header, read_image_bytes
from insclr.data.formats import OTHER, RAW_PHOTO, VIDEO, not_read_lines, source_kind
from insclr.data.images import ImageList
from insclr.data.table import one_line
from insclr.data.workers import in_threads
from insclr.files import content_hash
from insclr.progress import progress_bar

_HEADERS = 64  # files read for the typical size of the photos
_FORMAT_OF_KIND = {RAW_PHOTO: "RAW", VIDEO: "video frames"}


class SideStats(NamedTuple):
    """Longest sides of the readable images, in pixels."""

    smallest: int
    median: int
    largest: int


@dataclass(frozen=True)
class CheckReport:
    """The result of looking at every image of a collection."""

    total: int
    formats: Counter[str]  # of the readable images
    sides: SideStats | None  # None when no image is readable
    unreadable: tuple[tuple[str, str], ...]  # (path, reason), in the collection's order
    duplicates: tuple[tuple[str, ...], ...]  # groups of readable images with the same bytes
    not_read: Mapping[str, int] = field(default_factory=dict)  # other files by kind

    @property
    def usable(self) -> int:
        """How many images are readable."""
        return self.total - len(self.unreadable)

    @property
    def surplus(self) -> int:
        """How many images are copies of another one."""
        return sum(len(group) - 1 for group in self.duplicates)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The text for a person: totals first, then one line for every unreadable image and every group."""
        found = [f"{self.total} images: {self.usable} usable, {len(self.unreadable)} unreadable"]
        if self.sides is not None:
            formats = ", ".join(f"{count} {name}" for name, count in self.formats.most_common())
            found.append(f"formats: {formats}")
            smallest, median, largest = self.sides
            found.append(f"longest side: {smallest} to {largest} px, median {median}")
        groups = f" in {len(self.duplicates)} groups" if self.duplicates else ""
        found.append(f"exact duplicates: {self.surplus}{groups}")
        found += not_read_lines(self.not_read)
        if others := self.not_read.get(OTHER):
            found.append(f"{others} other file{'s' if others > 1 else ''}")
        found += [f"unreadable: {path}: {reason}" for path, reason in self.unreadable]
        found += [f"duplicates: {' = '.join(group)}" for group in self.duplicates]
        return [one_line(line) for line in found]


def check_images(images: ImageList, workers: int = 2) -> CheckReport:
    """Decode every image once, with `workers` threads, and report what is there and what is unreadable."""
    formats: Counter[str] = Counter()
    sides: list[int] = []
    unreadable: list[tuple[str, str]] = []
    copies: dict[str, list[str]] = defaultdict(list)
    files = (images.file(i) for i in range(len(images)))
    with progress_bar("checking", len(images)) as bar:
        for i, seen in enumerate(in_threads(_inspect, files, workers)):
            if isinstance(seen, str):
                unreadable.append((images.paths[i], seen))
            else:
                kind, side, content = seen
                formats[kind] += 1
                sides.append(side)
                copies[content].append(images.paths[i])
            bar.advance(unreadable=len(unreadable))
    stats = SideStats(min(sides), int(statistics.median(sides)), max(sides)) if sides else None
    duplicates = tuple(tuple(paths) for paths in copies.values() if len(paths) > 1)
    return CheckReport(len(images), formats, stats, tuple(unreadable), duplicates, images.not_read)


def _inspect(file: Path) -> tuple[str, int, str] | str:
    """Format, longest side and hash of the content of a readable file, or the reason why it is not."""
    try:
        content = read_image_bytes(file)
        header = read_header(content)
        decode(content, longest=1)  # all of the file is read, whatever the size of the image made of it
        kind = _FORMAT_OF_KIND.get(source_kind(file), header.format)
        return kind, max(header.width, header.height), content_hash(content)
    except BadImage as bad:
        return bad.reason


def usual_side(images: ImageList) -> float:
    """The longest side of the usual photo (the median of some) in pixels; 0 if none is readable."""
    some = range(0, len(images), max(1, len(images) // _HEADERS))
    sides = []
    for number in some:
        with suppress(BadImage):
            header = read_header(images.file(number))
            sides.append(max(header.width, header.height))
    return statistics.median(sides) if sides else 0.0
