"""Make queries from a request: uploads, rows, boxes."""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from fastapi import File, Form, Request, UploadFile
from PIL import Image

from insclr.data.decode import BadImage, Box
from insclr.data.decode_limits import MAX_PIXELS
from insclr.files import content_hash
from insclr.retrieval.query import Query
from insclr.store import Row
from insclr.web.decode_pool import DecodedImage, DecodePool, Part
from insclr.web.served import Refused, Served, ServedStore

_UPLOAD = "the upload cannot be used as a picture"


@dataclass(frozen=True)
class QueryForm:
    """What a request brings to search for, neither looked up nor decoded yet."""

    uploads: list[tuple[bytes, Box | None]]
    rows: list[tuple[str, Box | None]]  # as STORE:ID
    fractions: bool  # boxes are fractions of the image rather than pixels
    unlike_rows: list[str] = field(default_factory=list)  # as STORE:ID, of photos that do not show the thing

    def needs_decoding(self, store: int) -> bool:
        """Whether a search of this store decodes an image: whole rows of the store itself need none."""
        rows = [*self.rows, *((ref, None) for ref in self.unlike_rows)]
        return bool(self.uploads) or any(
            box is not None or ref.partition(":")[0] != str(store) for ref, box in rows
        )

    def unlike(self, served: Served) -> list[Query]:
        """The photos that do not show the thing."""
        decoder = QueryDecoder(served.decoders)
        return [row_query(decoder, *find_row(served, ref)) for ref in self.unlike_rows]

    def queries(self, served: Served, gone: threading.Event | None) -> list[Query]:
        """The queries, uploads first; Refused where a row is not there or an upload is too large."""
        decoder = QueryDecoder(served.decoders, self.fractions, served.settings.max_pixels, gone)
        rows = [row_query(decoder, *find_row(served, ref), box) for ref, box in self.rows]
        self._require_few_pixels(served, gone)
        uploads = [
            Query(partial(decoder.decode, content, "", box), "" if box else content_hash(content))
            for content, box in self.uploads
        ]
        return [*uploads, *rows]

    def _require_few_pixels(self, served: Served, gone: threading.Event | None) -> None:
        """Refuse uploads that are too large by their headers, before any of them is decoded.

        A decoder reads the headers: this process parses nothing of an upload.
        """
        each, together = served.settings.max_pixels, served.settings.max_request_pixels
        total = 0
        for content, _ in self.uploads:
            with _refuse_bad_image(415, _UPLOAD):
                width, height = served.decoders.size(content, gone)
            total += width * height
            if width * height > each:
                raise Refused(
                    413,
                    f"the picture has {width} x {height} pixels, more than the "
                    f"{each / 1e6:g} megapixels that are accepted: make it smaller",
                )
        if total > together:
            raise Refused(
                413,
                f"the pictures have {total / 1e6:.0f} megapixels together, more than the {together / 1e6:g} that "
                "are accepted at once: send fewer or smaller ones",
            )


async def query_form(
    request: Request,
    pictures: Annotated[list[UploadFile], File(description="photos of the thing")] = [],  # noqa: B006
    boxes: Annotated[list[str], Form(description="a part of each photo: x1,y1,x2,y2 or empty")] = [],  # noqa: B006
    rows: Annotated[list[str], Form(description="indexed pictures of the thing, as STORE:ID")] = [],  # noqa: B006
    row_boxes: Annotated[list[str], Form(description="a part of each row's picture")] = [],  # noqa: B006
    box_unit: Annotated[Literal["pixels", "fraction"], Form()] = "pixels",
    unlike: Annotated[list[str], Form(description="indexed pictures of another thing, as STORE:ID")] = [],  # noqa: B006
) -> QueryForm:
    """The queries of a form; Refused when they are too many or a box makes no sense."""
    served: Served = request.app.state.served
    count, most = len(pictures) + len(rows), served.settings.max_queries
    if not 1 <= count <= most:
        raise Refused(422, f"give 1 to {most} queries (pictures and rows), not {count}")
    upload_boxes = _parse_boxes(boxes, len(pictures))
    uploads = [(one.file.read(), box) for one, box in zip(pictures, upload_boxes, strict=True)]
    refs = list(zip(rows, _parse_boxes(row_boxes, len(rows)), strict=True))
    if len(unlike) > most:
        raise Refused(422, f"give at most {most} pictures of another thing, not {len(unlike)}")
    return QueryForm(uploads, refs, box_unit == "fraction", unlike)


def _parse_boxes(texts: Sequence[str], count: int) -> list[Box | None]:
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


def find_row(served: Served, ref: str) -> tuple[ServedStore, Row]:
    """The row that `STORE:ID` names, and its store."""
    number, _, id_ = ref.partition(":")
    if not (number.isdecimal() and id_.isdecimal() and ref.isascii() and len(ref) <= 22):
        raise Refused(422, f"{ref[:40]!r} names no row: give STORE:ID")
    home = served.store(int(number))
    return home, home.row(int(id_))


@dataclass(frozen=True)
class QueryDecoder:
    """Decodes the images of queries in the processes of a pool."""

    pool: DecodePool
    fractions: bool = False  # boxes are fractions of the image rather than pixels
    max_pixels: int = MAX_PIXELS  # of an upload
    gone: threading.Event | None = None

    def decode(
        self, source: bytes | Path, path: str, box: Box | None, longest: int
    ) -> tuple[Image.Image, Box | None]:
        """An upload, or the file of the row of this path, of which `longest` is wanted, and the box in its pixels.

        Refused (415 or 413 for an upload, 404 for a row) where it is no image.
        """
        is_upload = isinstance(source, bytes)
        limit = self.max_pixels if is_upload else MAX_PIXELS
        part = None if box is None else Part(box[2] - box[0], box[3] - box[1], self.fractions)
        with _refuse_bad_image(*((415, _UPLOAD) if is_upload else (404, f"{path} cannot be read"))):
            found = self.pool.pixels(source, longest, part=part, max_pixels=limit, gone=self.gone)
        return found.image, None if box is None else _box_in_pixels(box, found, self.fractions)


def row_query(decoder: QueryDecoder, home: ServedStore, row: Row, box: Box | None = None) -> Query:
    """A row of a served store, or a part of its image, as a query."""
    decode = partial(decoder.decode, home.file(row), row.image.path, box)
    if box:
        return Query(decode, part_of=(home.store, row))
    return Query(decode, row.image.hash, (home.store, row))


@contextmanager
def _refuse_bad_image(status: int, what: str) -> Iterator[None]:
    try:
        yield
    except BadImage as bad:
        large = status == 415 and bad.reason.startswith("too large")
        raise Refused(413 if large else status, f"{what}: {bad.reason}") from bad


def _box_in_pixels(box: Box, found: DecodedImage, fractions: bool) -> Box:
    """The part of the box that lies inside the image, in pixels of the reduced image, at least one of them."""
    left, top, right, bottom = box
    width, height = found.whole
    if fractions:
        left, right = left * width, right * width
        top, bottom = top * height, bottom * height
    if right <= 0 or bottom <= 0 or left >= width or top >= height:
        raise Refused(422, f"the box lies outside of the picture of {width} x {height} pixels")
    whole = _clip((left, top, right, bottom), (width, height))
    return _clip([side / found.factor for side in whole], found.image.size)


def _clip(box: Sequence[float], size: tuple[int, int]) -> Box:
    """The box inside an image of this size, at least a pixel: a hair's breadth drawn by hand is no reason to fail."""
    left, top = (min(max(side, 0), most - 1) for side, most in zip(box[:2], size, strict=True))
    right, bottom = (
        min(max(side, low + 1), most) for side, low, most in zip(box[2:], (left, top), size, strict=True)
    )
    return left, top, right, bottom
