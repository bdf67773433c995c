"""Boxes in photos as images of their own: read from COCO JSON, MegaDetector JSON or a CSV."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from insclr import progress
from insclr.data.decode import BadImage, Box, upright_size
from insclr.data.formats import part_name
from insclr.data.images import ImageList
from insclr.data.table import read_table
from insclr.errors import UserError
from insclr.files import open_text

_SIDES = ("x1", "y1", "x2", "y2")


@dataclass(frozen=True)
class _PhotoBox:
    photo: str  # as the file names it
    box: Box  # left, top, right, bottom
    size: tuple[
        float, float
    ]  # that the sides are of: (1, 1) for fractions, (0, 0) for the photo's own pixels
    columns: dict[str, str]
    confidence: float = 1.0


def list_boxes(file: Path, images: ImageList, confidence: float = 0.0) -> ImageList:
    """The boxes of a file in these images, as a list of parts; photos without a box are left out.

    Columns of the photos go to their boxes, with `photo` and what the file holds (`label`, `confidence`).
    Boxes below `confidence` are left out. UserError where the file is not understood or fits none of the images.
    """
    place = {path: i for i, path in enumerate(images.paths)}
    names = Counter(path.rpartition("/")[2] for path in images.paths)
    by_name = {path.rpartition("/")[2]: i for path, i in place.items()}
    sizes: dict[int, tuple[float, float]] = {}
    parts: dict[str, tuple[int, dict[str, str]]] = {}
    counts = Counter[str]()
    for one in _read(file):
        name = one.photo.replace("\\", "/").removeprefix("./").rpartition("/")[2]
        i = place.get(one.photo, by_name[name] if names[name] == 1 else None)
        if one.confidence < confidence:
            counts[f"below a confidence of {confidence:g}"] += 1
        elif i is None:
            counts["in photos that are not listed"] += 1
        elif (box := _as_fractions(one, i, images, sizes)) is None:
            counts["outside of their photo, empty or in a photo that cannot be read"] += 1
        else:
            parts[part_name(images.paths[i], box)] = i, {"photo": images.paths[i], **one.columns}
    for reason, count in counts.items():
        progress.say(f"{count} boxes {reason}: left out")
    if not parts:
        raise UserError(f"{file} holds no usable box in a photo of {images.root}: compare the paths in both.")
    chosen = dict(sorted(parts.items(), key=lambda part: part[1][0]))  # boxes of a photo one after the other
    found = list(chosen.values())
    columns = {name: tuple(values[i] for i, _ in found) for name, values in images.columns.items()}
    for name in dict.fromkeys(name for _, own in found for name in own):
        columns.setdefault(name, tuple(own.get(name, "") for _, own in found))
    return ImageList(images.root, tuple(chosen), columns)


def _as_fractions(
    one: _PhotoBox, i: int, images: ImageList, sizes: dict[int, tuple[float, float]]
) -> Box | None:
    width, height = one.size
    if not width:
        if i not in sizes:
            try:
                sizes[i] = upright_size(images.file(i))
            except BadImage:
                sizes[i] = 0, 0
        width, height = sizes[i]
    if width <= 0 or height <= 0 or not all(math.isfinite(side) for side in one.box):
        return None
    left, right = (min(1.0, max(0.0, side / width)) for side in one.box[::2])
    top, bottom = (min(1.0, max(0.0, side / height)) for side in one.box[1::2])
    return (left, top, right, bottom) if left < right and top < bottom else None


def _read(file: Path) -> Iterator[_PhotoBox]:
    if file.suffix.lower() == ".csv":
        yield from _read_csv(file)
        return
    try:
        with open_text(file) as text:
            content = json.load(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{file} cannot be read as JSON ({error}): give COCO or MegaDetector JSON, or a .csv."
        ) from error
    try:
        if "annotations" in content:
            yield from _read_coco(content)
        else:
            yield from _read_megadetector(content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UserError(
            f"{file} is neither COCO nor MegaDetector JSON ({type(error).__name__}: {error}): "
            "the first has images and annotations with bbox, the second images with file and detections."
        ) from error


def _read_csv(file: Path) -> Iterator[_PhotoBox]:
    rows = []
    for line, cells in read_table(file, ("path", *_SIDES)):
        try:
            sides = tuple(float(cells[name]) for name in _SIDES)
        except ValueError:
            raise UserError(f"{file}, line {line}: x1, y1, x2, y2 must be numbers.") from None
        rows.append((cells, (sides[0], sides[1], sides[2], sides[3])))
    # Fractions where no side of any box is above 1.
    size = (1.0, 1.0) if all(max(box) <= 1 for _, box in rows) else (0.0, 0.0)
    for cells, box in rows:
        columns = {name: text for name, text in cells.items() if name not in ("path", *_SIDES)}
        try:
            confidence = float(cells.get("confidence") or 1)
        except ValueError:
            confidence = 1.0
        yield _PhotoBox(cells["path"].strip(), box, size, columns, confidence)


def _read_coco(content: Any) -> Iterator[_PhotoBox]:
    labels = {one["id"]: str(one["name"]) for one in content.get("categories", ())}
    photos = {one["id"]: one for one in content["images"]}
    for one in content["annotations"]:
        photo = photos[one["image_id"]]
        left, top, width, height = map(float, one["bbox"])
        size = float(photo.get("width") or 0), float(photo.get("height") or 0)
        columns = {"label": labels.get(one.get("category_id"), "")}
        confidence = float(one.get("score", 1))
        if "score" in one:
            columns["confidence"] = f"{confidence:g}"
        box = left, top, left + width, top + height
        yield _PhotoBox(str(photo["file_name"]), box, size if all(size) else (0.0, 0.0), columns, confidence)


def _read_megadetector(content: Any) -> Iterator[_PhotoBox]:
    labels = {str(key): str(name) for key, name in content.get("detection_categories", {}).items()}
    for photo in content["images"]:
        for one in photo.get("detections") or ():
            left, top, width, height = map(float, one["bbox"])
            columns = {"label": labels.get(str(one["category"]), ""), "confidence": f"{float(one['conf']):g}"}
            box = left, top, left + width, top + height
            yield _PhotoBox(str(photo["file"]), box, (1.0, 1.0), columns, float(one["conf"]))
