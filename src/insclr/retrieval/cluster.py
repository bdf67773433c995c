"""Groups of pictures of the same thing: a table and a contact sheet for each."""

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
from insclr.retrieval.score import LIKELY, calibration_of
from insclr.retrieval.store import Row, Store

TOGETHER = 0.2  # pictures of a thing from different sides are less alike than neighbours are
_NEAREST = 20
_TILE, _COLUMNS, _MAX_TILES, _GAP = 160, 8, 64, 6


@dataclass(frozen=True)
class Cluster:
    """Pictures of one thing, the most central first."""

    rows: tuple[Row, ...]


def cluster(
    store: Store, min_size: int = 2, likely: float = LIKELY, together: float = TOGETHER
) -> list[Cluster]:
    """Group the pictures of a store, largest group first; pictures that match nothing are in none.

    Pairs that are among each other's nearest with a score of `likely` or more are joined, the most similar
    first, as long as the pictures of the two groups have the similarity of score `together` on average.
    """
    calibration = calibration_of(store)
    cutoff, average = calibration.similarity_at(likely), calibration.similarity_at(together)
    ids = store.ids()
    vectors = store.vectors(ids)  # (rows, dim)
    place = {int(one): i for i, one in enumerate(ids)}
    groups = Groups(range(len(ids)))
    sums = dict(enumerate(vectors))  # of the members' vectors: two of them give the average similarity
    sizes = dict.fromkeys(range(len(ids)), 1)
    for _, a, b in _mutual_pairs(store, vectors, place, cutoff):
        one, other = groups.root(a), groups.root(b)
        if one == other or float(sums[one] @ sums[other]) < average * sizes[one] * sizes[other]:
            continue
        joint = groups.join(one, other)
        sums[joint] = sums[one] + sums[other]
        sizes[joint] = sizes[one] + sizes[other]
    found = [members for members in groups.sets() if len(members) >= min_size]
    rows = {row.id: row for row in store.pictures().values()}
    clusters = []
    for members in sorted(found, key=lambda one: (-len(one), one)):
        central = np.argsort(-(vectors[members] @ vectors[members].mean(0)), kind="stable")
        clusters.append(Cluster(tuple(rows[int(ids[members[i]])] for i in central)))
    return clusters


def _mutual_pairs(
    store: Store, vectors: Descriptors, place: dict[int, int], cutoff: float
) -> list[tuple[float, int, int]]:
    """Pairs among each other's nearest, at least `cutoff` similar: (-similarity, row, row), best first."""
    similar: dict[tuple[int, int], float] = {}
    with progress_bar("grouping", len(vectors)) as bar:
        for start in range(0, len(vectors), 256):
            found = store.search(vectors[start : start + 256], _NEAREST + 1)
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
                    values = [row.picture.columns.get(name, "") for name in columns]
                    table.writerow([number, row.picture.path, *values])
        (folder / "sheets").mkdir()
        for number, group in enumerate(clusters, start=1):
            sheet = contact_sheet([store.info.root / row.picture.path for row in group.rows])
            with whole_file(folder / "sheets" / f"{number:04d}.jpg") as scratch:
                sheet.save(scratch, "JPEG", quality=85)
            bar.advance()


def contact_sheet(files: Sequence[Path]) -> Image.Image:
    """The pictures side by side, at most the first 64; a file that cannot be read is a grey tile."""
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
