"""Write groups of photos of the same thing as files: a table, and pages with thumbnails."""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from insclr.data.table import safe_cell
from insclr.errors import UserError
from insclr.feedback.groups import Cluster
from insclr.files import whole_folder
from insclr.progress import progress_bar
from insclr.report.page import Thumbnails, Tile, write_page
from insclr.store import Store

_TABLE, _SHEETS = "clusters.csv", "sheets"
_PER_SHEET = 400  # photos on a page: about 2 MB
_PER_GROUP = 64  # photos shown of one group
_SIDE = 128  # pixels of a thumbnail
_BUDGET = 8_000_000  # characters of all thumbnails of a page: more than so many photos need


@dataclass(frozen=True)
class _Group:
    number: int
    size: int
    tiles: list[Tile]


def write_clusters(
    clusters: Sequence[Cluster], store: Store, out: Path, name_of: Callable[[str], str] = lambda _: ""
) -> None:
    """Write clusters.csv (group, path, thing, and the user's columns) and sheets/0001.html, ... with all groups.

    `name_of` gives the name of an image's thing by the hash of its content.
    """
    if out.exists() and (not out.is_dir() or {one.name for one in out.iterdir()} - {_TABLE, _SHEETS}):
        raise UserError(f"{out} holds other files: give a new folder, its content would be replaced")
    sheets = list(_sheets(clusters))
    with whole_folder(out) as folder, progress_bar("contact sheets", len(clusters)) as bar:
        _write_table(clusters, store, folder / _TABLE, name_of)
        (folder / _SHEETS).mkdir()
        for number, groups in enumerate(sheets, start=1):
            thumbnails = Thumbnails(store.info.root, side=_SIDE, budget=_BUDGET)
            write_page(
                folder / _SHEETS / f"{number:04d}.html",
                "cluster_sheet.html",
                groups=[_group(place, cluster, thumbnails) for place, cluster in groups],
                things=len(clusters),
                photos=sum(len(cluster.rows) for cluster in clusters),
                number=number,
                sheets=len(sheets),
                jpegs=thumbnails.jpegs,
            )
            bar.advance(len(groups))


def _sheets(clusters: Sequence[Cluster]) -> Iterator[list[tuple[int, Cluster]]]:
    """The numbered groups, split where a page has enough photos."""
    sheet: list[tuple[int, Cluster]] = []
    photos = 0
    for number, cluster in enumerate(clusters, start=1):
        shown = min(len(cluster.rows), _PER_GROUP)
        if sheet and photos + shown > _PER_SHEET:
            yield sheet
            sheet, photos = [], 0
        sheet.append((number, cluster))
        photos += shown
    if sheet:
        yield sheet


def _group(number: int, cluster: Cluster, thumbnails: Thumbnails) -> _Group:
    paths = [row.image.path for row in cluster.rows[:_PER_GROUP]]
    tiles = [
        Tile(path, thumbnails.css_class(path), caption=path.rsplit("/", 1)[-1], title=path) for path in paths
    ]
    return _Group(number, len(cluster.rows), tiles)


def _write_table(
    clusters: Sequence[Cluster], store: Store, file: Path, name_of: Callable[[str], str]
) -> None:
    columns = store.columns()
    # File names are bytes: surrogateescape writes back even those that are not UTF-8.
    with file.open("w", newline="", encoding="utf-8", errors="surrogateescape") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(["group", "path", "thing", *map(safe_cell, columns)])
        for number, cluster in enumerate(clusters, start=1):
            for row in cluster.rows:
                values = [row.image.columns.get(name, "") for name in columns]
                name = name_of(row.image.hash)
                table.writerow([number, *map(safe_cell, (row.image.path, name, *values))])
