"""From what a request brings (uploads, rows, boxes) to query descriptors for a store."""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from fastapi import File, Form, Request, UploadFile
from PIL import Image

from insclr.arrays import Descriptors
from insclr.data.decode import BadImage, Box, read_header
from insclr.data.decode_limits import MAX_PIXELS
from insclr.describe.describer import CellDescriber
from insclr.retrieval.local.extractor import Extractor
from insclr.retrieval.local.features import LONGEST
from insclr.retrieval.local.ranking import NO_DETAILS, QueryDetails
from insclr.retrieval.local.verification import QueryParts, query_parts
from insclr.retrieval.search import Search
from insclr.store import Row
from insclr.web.decode_pool import DecodedImage, DecodePool, Part
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


@dataclass(frozen=True)
class QuerySet:
    """What a request brings to search for, as yet neither looked up nor decoded."""

    uploads: list[UploadQuery]
    refs: list[str]  # rows, as STORE:ID
    row_boxes: list[Box | None]
    fractions: bool  # boxes are fractions of the image rather than pixels

    def decodes(self, store: int) -> bool:
        """Whether searching this store for it takes decoding: whole rows of the store itself do not."""
        foreign = any(ref.partition(":")[0] != str(store) for ref in self.refs)
        return bool(self.uploads) or foreign or any(self.row_boxes)

    def checked(self, served: Served, gone: threading.Event) -> "tuple[list[RowQuery], QueryImages]":
        """The rows, and what decodes the images; Refused where a row is not there or an upload is too large."""
        limits = served.settings
        rows = [parse_row(served, ref, box) for ref, box in zip(self.refs, self.row_boxes, strict=True)]
        require_few_pixels(self.uploads, limits.max_pixels, limits.max_request_pixels)
        return rows, QueryImages(served.decoders, self.fractions, limits.max_pixels, gone)


async def query_form(
    request: Request,
    pictures: Annotated[list[UploadFile], File(description="photos of the thing")] = [],  # noqa: B006
    boxes: Annotated[list[str], Form(description="a part of each photo: x1,y1,x2,y2 or empty")] = [],  # noqa: B006
    rows: Annotated[list[str], Form(description="indexed pictures of the thing, as STORE:ID")] = [],  # noqa: B006
    row_boxes: Annotated[list[str], Form(description="a part of each row's picture")] = [],  # noqa: B006
    box_unit: Annotated[Literal["pixels", "fraction"], Form()] = "pixels",
) -> QuerySet:
    """The query set of a form; Refused when it is too large or a box makes no sense."""
    served: Served = request.app.state.served
    count, most = len(pictures) + len(rows), served.settings.max_queries
    if not 1 <= count <= most:
        raise Refused(422, f"give 1 to {most} queries (pictures and rows), not {count}")
    upload_boxes = parse_boxes(boxes, len(pictures))
    uploads = [UploadQuery(one.file.read(), box) for one, box in zip(pictures, upload_boxes, strict=True)]
    return QuerySet(uploads, rows, parse_boxes(row_boxes, len(rows)), box_unit == "fraction")


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


def require_few_pixels(uploads: Sequence[UploadQuery], each: int, together: int) -> None:
    """Refuse pictures that are too large, by what their headers say, before any of them is decoded."""
    total = 0
    for query in uploads:
        with _refused(415, "the upload cannot be used as a picture"):
            header = read_header(query.content)
        total += header.width * header.height
        if header.width * header.height > each:
            raise Refused(
                413,
                f"the picture has {header.width} x {header.height} pixels, more than the "
                f"{each / 1e6:g} megapixels that are accepted: make it smaller",
            )
    if total > together:
        raise Refused(
            413,
            f"the pictures have {total / 1e6:.0f} megapixels together, more than the {together / 1e6:g} that "
            "are accepted at once: send fewer or smaller ones",
        )


def describe_queries(
    store: ServedStore,
    uploads: Sequence[UploadQuery],
    rows: Sequence[RowQuery],
    images: "QueryImages",
    *,
    own_size: bool = False,
) -> Descriptors:
    """The descriptors (queries, dim) of all queries; a row of the same store needs no network.

    Pictures are decoded and described one by one, so that a request holds one at a time.
    """
    stored = [one.row for one in rows if one.home is store and one.box is None]
    others = [one for one in rows if one.home is not store or one.box is not None]
    parts: list[Descriptors] = []
    try:
        if stored:
            parts.append(store.descriptors_of(stored))
    except KeyError:
        raise Refused(404, "a picture of the query is no longer in the store") from None
    for image, box in images.each(uploads, others, store.describer.longest):
        parts.append(store.describer.images([image], [box], own_size=own_size))
    return np.concatenate(parts)


def query_details(
    home: ServedStore,
    asked: Search,
    uploads: Sequence[UploadQuery],
    rows: Sequence[RowQuery],
    images: "QueryImages",
) -> QueryDetails:
    """What the ranking and the verifier need of the queries besides their descriptors."""
    found = NO_DETAILS
    if asked.verifier == "geometric":
        found = replace(found, parts=local_queries(home.extractor(), uploads, rows, images))
    if asked.ranking == "asmk":
        describer = home.describer
        if not isinstance(describer, CellDescriber):
            raise Refused(400, "this server cannot rank by asmk")
        each = images.each(uploads, rows, describer.cells_longest)
        found = replace(found, cells=[describer.cells([image], [box])[0] for image, box in each])
    return found


def local_queries(
    extractor: Extractor, uploads: Sequence[UploadQuery], rows: Sequence[RowQuery], images: "QueryImages"
) -> list[QueryParts]:
    """The local features of all queries; those kept of a whole row need no decoding."""
    parts = [query_parts(image, box, extractor) for image, box in images.each(uploads, [], LONGEST)]
    for row in rows:
        kept = row.home.local_features(row.row, extractor) if row.box is None else None
        if kept is not None:
            parts.append(QueryParts(kept, extractor=extractor))
        else:
            parts += [query_parts(image, box, extractor) for image, box in images.each([], [row], LONGEST)]
    return parts


@dataclass(frozen=True)
class QueryImages:
    """Decodes the images of queries, one at a time."""

    decoders: DecodePool
    fractions: bool  # boxes are fractions of the image rather than pixels
    max_pixels: int  # of an upload
    gone: threading.Event | None = None

    def each(
        self, uploads: Sequence[UploadQuery], rows: Sequence[RowQuery], longest: int
    ) -> Iterator[tuple[Image.Image, Box | None]]:
        """Every query's image, of which `longest` is wanted, and its box in pixels of that."""
        for upload in uploads:
            with _refused(415, "the upload cannot be used as a picture"):
                yield self._decoded(upload.content, upload.box, longest, self.max_pixels)
        for row in rows:
            with _refused(404, f"{row.row.image.path} cannot be read"):
                yield self._decoded(row.home.file(row.row), row.box, longest, MAX_PIXELS)

    def _decoded(
        self, source: bytes | Path, box: Box | None, longest: int, limit: int
    ) -> tuple[Image.Image, Box | None]:
        part = None if box is None else Part(box[2] - box[0], box[3] - box[1], self.fractions)
        found = self.decoders.pixels(source, longest, part=part, max_pixels=limit, gone=self.gone)
        inside = _box_in_pixels(box, found.whole, self.fractions)
        return found.image, None if inside is None else _scaled(inside, found)


@contextmanager
def _refused(status: int, what: str) -> Iterator[None]:
    try:
        yield
    except BadImage as bad:
        large = status == 415 and bad.reason.startswith("too large")
        raise Refused(413 if large else status, f"{what}: {bad.reason}") from bad


def _scaled(box: Box, found: DecodedImage) -> Box:
    """The box in pixels of the reduced picture, at least one of them."""
    left, top, right, bottom = (side / found.factor for side in box)
    width, height = found.image.size
    left, top = min(left, width - 1), min(top, height - 1)
    return left, top, min(max(right, left + 1), width), min(max(bottom, top + 1), height)


def _box_in_pixels(box: Box | None, size: tuple[int, int], fractions: bool) -> Box | None:
    """The part of the box that lies inside the picture, at least a pixel of it."""
    if box is None:
        return None
    left, top, right, bottom = box
    width, height = size
    if fractions:
        left, right = left * width, right * width
        top, bottom = top * height, bottom * height
    if right <= 0 or bottom <= 0 or left >= width or top >= height:
        raise Refused(422, f"the box lies outside of the picture of {width} x {height} pixels")
    # At least a pixel: a hair's breadth drawn by hand is no reason to fail.
    left, top = min(max(left, 0), width - 1), min(max(top, 0), height - 1)
    right, bottom = min(max(right, left + 1), width), min(max(bottom, top + 1), height)
    return left, top, right, bottom
