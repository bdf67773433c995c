"""Drawing the demo collection into a folder."""

import csv
import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from insclr.errors import UserError
from insclr.files import whole_folder
from insclr.progress import progress_bar
from insclr_demo.catalogue import Thing, catalogue, distractors
from insclr_demo.clutter import PixelBox, busy_photo
from insclr_demo.scene import photograph
from insclr_demo.solids import FLAT_KINDS, Solid, build

_CARD = "collection.json"  # records what the folder holds, so that a second run leaves it alone
_EDITION = 1  # raised when the drawing changes, so that an older collection is not taken for this one
QUERIES = 5  # photos of each thing by itself in a collection with clutter
_PLAIN, _BUSY, _QUERY = 4, 5, 6  # streams of random numbers


@dataclass(frozen=True)
class _Plan:
    """Everything the bytes of a collection depend on."""

    things: int
    views: int
    size: int
    seed: int
    edition: int = _EDITION
    clutter: bool = False

    def kinds(self) -> list[tuple[str, int, int]]:
        """Folder, photos of each thing, and stream of random numbers of every kind of photo."""
        if not self.clutter:
            return [("images", self.views, _PLAIN)]
        return [("images", self.views, _BUSY), ("queries", QUERIES, _QUERY)]

    def card(self) -> dict[str, int | bool]:
        """The content of the folder's card; that of a plain collection has no entry for clutter."""
        return {name: value for name, value in asdict(self).items() if name != "clutter" or value}


def draw_collection(
    out: Path | str,
    *,
    things: int = 60,
    views: int = 25,
    size: int = 224,
    seed: int = 0,
    workers: int | None = None,
    clutter: bool = False,
) -> Path:
    """Draw `things` look-alike products, `views` JPEG photos of each, with `labels.csv` (path, instance).

    With `clutter` each of the `views` is a busy photo of twice the size with the thing at 15 to 40 % of its side,
    and QUERIES photos of the thing by itself are added; `labels.csv` gives the role of each and where the
    thing is (x1, y1, x2, y2 in pixels).

    The same arguments give the same bytes on one machine, with any number of worker processes (None: one per
    core). A folder that already holds this very collection is left alone; one that holds anything else is refused.
    """
    plan, out = _Plan(things, views, size, seed, clutter=clutter), Path(out)
    if min(things, views) < 1 or size < 32 or (workers is not None and workers < 1):
        raise UserError(
            f"cannot draw {things} things, {views} views of {size} pixels, with {workers} workers: "
            "ask for at least 1 thing, 1 view, 32 pixels and 1 worker"
        )
    if _already_drawn(out, plan):
        return out
    with whole_folder(out) as folder:
        with progress_bar("Drawing", things) as bar:
            boxes: dict[str, PixelBox] = {}
            for found in _draw_instances(folder, plan, workers or os.cpu_count() or 1):
                boxes |= found
                bar.advance()
        _write_labels(folder / "labels.csv", plan, boxes)
        (folder / _CARD).write_text(json.dumps(plan.card()) + "\n")
    return out


def _already_drawn(out: Path, plan: _Plan) -> bool:
    """Whether `out` holds this collection; UserError if it holds anything else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        card = json.loads((out / _CARD).read_text())
    except (OSError, ValueError):
        raise UserError(
            f"{out} exists and is not a demo collection: nothing was drawn; name a new folder"
        ) from None
    if card != plan.card():
        raise UserError(
            f"{out} holds another demo collection ({card}): nothing was drawn; delete it or name a new folder"
        )
    return all((out / path).is_file() for path, _, _ in _labels(plan))


def _draw_instances(folder: Path, plan: _Plan, workers: int) -> Iterator[dict[str, PixelBox]]:
    """Draw every thing, in this process or in several; gives its boxes as each is done."""
    numbers = range(plan.things)
    if workers == 1:
        for number in numbers:
            yield _draw_thing(folder, number, plan)
        return
    with ProcessPoolExecutor(min(workers, plan.things)) as pool:
        yield from pool.map(_draw_thing, [folder] * plan.things, numbers, [plan] * plan.things)


def _draw_thing(folder: Path, number: int, plan: _Plan) -> dict[str, PixelBox]:
    """All photos of one thing, and where it is in the busy ones.

    A photo depends on the plan's seed and its own place alone.
    """
    thing = catalogue(plan.things, plan.seed)[number]
    solid = build(thing)
    boxes: dict[str, PixelBox] = {}

    def distractor(flat: bool, rng: np.random.Generator) -> Solid:
        chosen = [other for other in _distractors(plan.seed) if (other.kind in FLAT_KINDS) == flat]
        return _distractor(chosen[int(rng.integers(len(chosen)))])

    for kind, count, stream in plan.kinds():
        place = folder / kind / thing.name
        place.mkdir(parents=True)
        for view in range(count):
            rng = np.random.default_rng([plan.seed, stream, number, view])
            if stream == _BUSY:
                photo, box = busy_photo(solid, distractor, 2 * plan.size, rng)
                boxes[f"{kind}/{thing.name}/{view:02d}.jpg"] = box
            else:
                photo = photograph(solid, distractor, plan.size, rng)
            photo.save(place / f"{view:02d}.jpg", quality=int(rng.integers(45, 93)))
    return boxes


@lru_cache(maxsize=1)
def _distractors(seed: int) -> list[Thing]:
    return distractors(seed)


@lru_cache(maxsize=128)
def _distractor(thing: Thing) -> Solid:
    return build(thing)


def _labels(plan: _Plan) -> Iterator[tuple[str, str, str]]:
    """Path, instance and role of every photo."""
    for thing in catalogue(plan.things, plan.seed):
        for kind, count, stream in plan.kinds():
            for view in range(count):
                yield (
                    f"{kind}/{thing.name}/{view:02d}.jpg",
                    thing.name,
                    "query" if stream == _QUERY else "index",
                )


def _write_labels(path: Path, plan: _Plan, boxes: dict[str, PixelBox]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not plan.clutter:
            writer.writerow(("path", "instance"))
            writer.writerows((image, instance) for image, instance, _ in _labels(plan))
            return
        writer.writerow(("path", "instance", "role", "x1", "y1", "x2", "y2"))
        for image, instance, role in _labels(plan):
            writer.writerow((image, instance, role, *boxes.get(image, ("",) * 4)))
