"""From what a request brings (uploads, rows, boxes) to query descriptors for a store."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from insclr.arrays import Descriptors
from insclr.data.decode import BadImage, Box, decode, read_header
from insclr.retrieval.store import Row
from insclr.web.served import Refused, Served, ServedStore


@dataclass(frozen=True)
class RowQuery:
    """A row of some store as a query, perhaps only the part of its picture in a box."""

    home: ServedStore
    row: Row
    box: Box | None


@dataclass(frozen=True)
class UploadQuery:
    """An uploaded file as a query, perhaps only the part of its picture in a box."""

    content: bytes
    box: Box | None


def parse_boxes(texts: Sequence[str], count: int) -> list[Box | None]:
    """One box for each of `count` queries from `x1,y1,x2,y2` texts; an empty or missing one means the whole."""
    if len(texts) > count:
        raise Refused(422, f"{len(texts)} boxes for {count} pictures: give at most one each")
    return [_parse_box(text) for text in texts] + [None] * (count - len(texts))


def _parse_box(text: str) -> Box | None:
    if not text.strip():
        return None
    try:
        left, top, right, bottom = (float(part) for part in text.split(","))
    except ValueError:
        raise Refused(422, f"{text[:60]!r} is not a box: give x1,y1,x2,y2") from None
    if not all(math.isfinite(side) and abs(side) < 1e9 for side in (left, top, right, bottom)):
        raise Refused(422, f"{text[:60]!r} is not a box: its numbers are not finite")
    if left >= right or top >= bottom:
        raise Refused(422, f"box {text[:60]} is empty: x1 must be left of x2, y1 above y2")
    return left, top, right, bottom


def parse_row(served: Served, ref: str, box: Box | None) -> RowQuery:
    """The row that `STORE:ID` names."""
    number, _, id_ = ref.partition(":")
    if not (number.isdecimal() and id_.isdecimal() and ref.isascii() and len(ref) <= 22):
        raise Refused(422, f"{ref[:40]!r} names no row: give STORE:ID")
    home = served.store(int(number))
    return RowQuery(home, home.row(int(id_)), box)


def describe_queries(
    store: ServedStore,
    uploads: Sequence[UploadQuery],
    rows: Sequence[RowQuery],
    *,
    fractions: bool,
    max_pixels: int,
) -> Descriptors:
    """The descriptors (queries, dim) of all queries; a row of the same store needs no network."""
    stored = [one.row for one in rows if one.home is store and one.box is None]
    described = [one for one in rows if one.home is not store or one.box is not None]
    longest = store.describer.longest
    decoded = [_decoded_upload(one, longest, max_pixels) for one in uploads]
    decoded += [_decoded_row(one, longest) for one in described]
    parts: list[Descriptors] = []
    try:
        if stored:
            parts.append(store.descriptors_of(stored))
    except KeyError:
        raise Refused(404, "a picture of the query is no longer in the store") from None
    if decoded:
        given = [one.box for one in uploads] + [one.box for one in described]
        boxes = [_box_in_pixels(box, one, fractions) for box, one in zip(given, decoded, strict=True)]
        parts.append(store.describer.images(decoded, boxes))
    return np.concatenate(parts)


def _decoded_upload(query: UploadQuery, longest: int, max_pixels: int) -> Image.Image:
    try:
        header = read_header(io.BytesIO(query.content))
        if header.width * header.height > max_pixels:
            raise Refused(
                413,
                f"the picture has {header.width} x {header.height} pixels, more than the "
                f"{max_pixels / 1e6:g} megapixels that are accepted: make it smaller",
            )
        return decode(io.BytesIO(query.content), None if query.box else longest)
    except BadImage as bad:
        status = 413 if bad.reason.startswith("too large") else 415
        raise Refused(status, f"the upload cannot be used as a picture: {bad.reason}") from bad


def _decoded_row(query: RowQuery, longest: int) -> Image.Image:
    try:
        return decode(query.home.file(query.row), None if query.box else longest)
    except BadImage as bad:
        raise Refused(404, f"{query.row.image.path} cannot be read: {bad.reason}") from bad


def _box_in_pixels(box: Box | None, image: Image.Image, fractions: bool) -> Box | None:
    """The part of the box that lies inside the picture, at least a pixel of it."""
    if box is None:
        return None
    left, top, right, bottom = box
    if fractions:
        left, right = left * image.width, right * image.width
        top, bottom = top * image.height, bottom * image.height
    if right <= 0 or bottom <= 0 or left >= image.width or top >= image.height:
        raise Refused(422, f"the box lies outside of the picture of {image.width} x {image.height} pixels")
    # At least a pixel: a hair's breadth drawn by hand is no reason to fail.
    left, top = min(max(left, 0), image.width - 1), min(max(top, 0), image.height - 1)
    right, bottom = min(max(right, left + 1), image.width), min(max(bottom, top + 1), image.height)
    return left, top, right, bottom
