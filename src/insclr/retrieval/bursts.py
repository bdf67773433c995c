"""Bursts: photos that one camera took seconds apart, with the best of each suggested by sharpness and exposure."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from insclr.data.decode import BadImage, decode
from insclr.data.formats import is_whole_file
from insclr.progress import progress_bar
from insclr.store import Row, Store

SECONDS = 3.0
_SIDE = 512  # pixels at which photos are compared
_DARK, _BRIGHT = 5, 250  # grey levels at which a pixel holds no detail


class Burst(NamedTuple):
    """Photos of a burst in the order of time, and the suggested one."""

    rows: tuple[Row, ...]
    best: Row


def find_bursts(store: Store, seconds: float = SECONDS) -> list[Burst]:
    """Bursts of two or more photos, the earliest first; photos without a time in their EXIF data are in none."""
    groups = list(_group(store, seconds))
    found = []
    with progress_bar("comparing bursts", len(groups)) as bar:
        for rows in groups:
            quality = [measure_quality(store.info.root / row.image.path) for row in rows]
            found.append(Burst(tuple(rows), rows[int(np.argmax(quality))]))
            bar.advance(1)
    return found


def measure_quality(file: Path) -> float:
    """Sharpness (mean squared Laplacian) times the share of well exposed pixels; 0 for a file that cannot be read."""
    try:
        image = decode(file, longest=_SIDE).convert("L")
    except BadImage:
        return 0.0
    image.thumbnail((_SIDE, _SIDE))
    grey = np.asarray(image, dtype=np.float32)  # (height, width)
    if min(grey.shape) < 3:
        return 0.0
    around = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:]
    sharpness = float(((around - 4 * grey[1:-1, 1:-1]) ** 2).mean())
    return sharpness * float(((grey > _DARK) & (grey < _BRIGHT)).mean())


def _group(store: Store, seconds: float) -> Iterator[list[Row]]:
    """Runs of photos of one camera, each at most so many seconds after the one before."""
    by_camera: dict[str, list[tuple[datetime, Row]]] = defaultdict(list)
    for row in store.rows_by_path().values():
        columns = row.image.columns
        try:
            taken = datetime.fromisoformat(columns.get("taken", ""))
        except ValueError:
            continue
        if is_whole_file(row.image.path):
            by_camera[columns.get("camera", "")].append((taken.replace(tzinfo=None), row))
    runs: list[list[tuple[datetime, Row]]] = []
    for shots in by_camera.values():
        shots.sort(key=lambda one: (one[0], one[1].image.path))
        runs.append(shots[:1])
        for before, shot in pairwise(shots):
            if (shot[0] - before[0]).total_seconds() <= seconds:
                runs[-1].append(shot)
            else:
                runs.append([shot])
    for run in sorted(runs, key=lambda one: one[0][0]):
        if len(run) > 1:
            yield [row for _, row in run]
