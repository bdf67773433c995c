"""Groups of images of the same instance: a table and a contact sheet for each."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from insclr.arrays import Descriptors
from insclr.data.decode import BadImage, decode
from insclr.errors import UserError
from insclr.files import whole_file, whole_folder
from insclr.progress import progress_bar
from insclr.retrieval.duplicates import Groups
from insclr.retrieval.score import LIKELY, score_curve_of
from insclr.retrieval.store import Row, Store

TOGETHER = 0.2  # images of an instance from different sides are less alike than neighbours are
_NEAREST = 20
_TILE, _COLUMNS, _MAX_TILES, _GAP = 160, 8, 64, 6


@dataclass(frozen=True)
class Cluster:
    """Images of one instance, the most central first."""

    rows: tuple[Row, ...]


def cluster(
    store: Store, min_size: int = 2, likely: float = LIKELY, together: float = TOGETHER
) -> list[Cluster]:
    """Group the images of a store, largest group first; images that match nothing are in none.

    Pairs that are among each other's nearest with a score of `likely` or more are joined, the most similar
    first, as long as the images of the two groups have the similarity of score `together` on average.
    """
    curve = score_curve_of(store)
    cutoff, average = curve.similarity_at(likely), curve.similarity_at(together)
    ids = store.ids()
    descriptors = store.descriptors(ids)  # (rows, dim)
    place = {int(one): i for i, one in enumerate(ids)}
    groups = Groups(range(len(ids)))
    # Of the members' descriptors: two such sums give the average similarity of two groups.
    sums = dict(enumerate(descriptors))
    sizes = dict.fromkeys(range(len(ids)), 1)
    for _, a, b in _mutual_pairs(store, descriptors, place, cutoff):
        one, other = groups.root(a), groups.root(b)
        if one == other or float(sums[one] @ sums[other]) < average * sizes[one] * sizes[other]:
            continue
        joint = groups.join(one, other)
        sums[joint] = sums[one] + sums[other]
        sizes[joint] = sizes[one] + sizes[other]
    found = [members for members in groups.sets() if len(members) >= min_size]
    rows = {row.id: row for row in store.rows_by_path().values()}
    clusters = []
    for members in sorted(found, key=lambda one: (-len(one), one)):
        central = np.argsort(-(descriptors[members] @ descriptors[members].mean(0)), kind="stable")
        clusters.append(Cluster(tuple(rows[int(ids[members[i]])] for i in central)))
    return clusters


def _mutual_pairs(
    store: Store, descriptors: Descriptors, place: dict[int, int], cutoff: float
) -> list[tuple[float, int, int]]:
    """Pairs among each other's nearest, at least `cutoff` similar: (-similarity, row, row), best first."""
    similar: dict[tuple[int, int], float] = {}
    with progress_bar("grouping", len(descriptors)) as bar:
        for start in range(0, len(descriptors), 256):
            found = store.search(descriptors[start : start + 256], _NEAREST + 1)
            for i, near in enumerate(found.ids.tolist(), start=start):
                for one, cosine in zip(near, found.similarities[i - start].tolist(), strict=True):
                    if one in place and place[one] != i and cosine >= cutoff:
                        similar[i, place[one]] = cosine
            bar.advance(len(found.ids))
    return sorted((-cosine, a, b) for (a, b), cosine in similar.items() if a < b and (b, a) in similar)


def write_clusters(clusters: Sequence[Cluster], store: Store, out: Path) -> None:
    """Write `clusters.csv` (group, path, and the user's columns) and a contact sheet of every group."""
    if out.exists() and (
        not out.is_dir() or {one.name for one in out.iterdir()} - {"clusters.csv", "sheets"}
    ):
        raise UserError(f"{out} holds other files: give a new folder, its content would be replaced")
    columns = store.columns()
    with whole_folder(out) as folder, progress_bar("contact sheets", len(clusters)) as bar:
        with (folder / "clusters.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["group", "path", *columns])
            for number, group in enumerate(clusters, start=1):
                for row in group.rows:
                    values = [row.image.columns.get(name, "") for name in columns]
                    table.writerow([number, row.image.path, *values])
        (folder / "sheets").mkdir()
        for number, group in enumerate(clusters, start=1):
            sheet = contact_sheet([store.info.root / row.image.path for row in group.rows])
            with whole_file(folder / "sheets" / f"{number:04d}.jpg") as scratch:
                sheet.save(scratch, "JPEG", quality=85)
            bar.advance()


def contact_sheet(files: Sequence[Path]) -> Image.Image:
    """The images side by side, at most the first 64; a file that cannot be read is a grey tile."""
    shown = list(files[:_MAX_TILES])
    columns = min(_COLUMNS, max(1, len(shown)))
    step = _TILE + _GAP
    size = (columns * step + _GAP, -(-len(shown) // columns) * step + _GAP)
    sheet = Image.new("RGB", size, "white")
    for i, file in enumerate(shown):
        try:
            tile = ImageOps.fit(decode(file, longest=2 * _TILE), (_TILE, _TILE))
        except BadImage:
            tile = Image.new("RGB", (_TILE, _TILE), "#cccccc")
        sheet.paste(tile, (_GAP + i % columns * step, _GAP + i // columns * step))
    return sheet
