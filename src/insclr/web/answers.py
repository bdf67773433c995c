"""The JSON answers of the API, from which the OpenAPI description is made, and the indexed files byte by byte."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal
from urllib.parse import quote

from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from insclr.data.formats import is_raw, is_whole_file, split_part
from insclr.files import hash_file, open_file
from insclr.retrieval.search import Match
from insclr.store import Row
from insclr.web.served import Refused

_CHUNK = 256 * 1024  # bytes
# First bytes of what browsers can show.
_SHOWN = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF8", "image/gif"),
)
# First bytes of what they cannot: TIFF (and RAW photos that are built like it), BigTIFF, RAW photos of single makers.
_DOWNLOADED = (
    *(b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    *(b"II\x1a\0\0\0HEAPCCDR", b"FUJIFILM", b"\0MRM", b"IIRO", b"IIRS", b"MMOR", b"IIU\0", b"FOVb"),
)
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1", b"crx ")


class _FileResponse(StreamingResponse):
    """Streams an open file, and closes it when the client has left too."""

    def __init__(self, opened: BinaryIO, size: int, kind: str, headers: dict[str, str]) -> None:
        super().__init__(_chunks(opened, size), media_type=kind, headers=headers)
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._opened.close()


def original_response(file: Path, hash_: str, *, download: bool) -> StreamingResponse:
    """The file as it is; shown by the browser where it can, unless `download` asks for a copy.

    Refused (404) as by `open_original`.
    """
    opened, kind = open_original(file, hash_)
    size = os.fstat(opened.fileno()).st_size
    way = "inline" if kind.startswith("image/") and not download else "attachment"
    headers = {
        "content-length": str(size),
        "content-disposition": f"{way}; filename*=UTF-8''{quote(file.name, safe='')}",
        "cache-control": "private, no-cache",
    }
    return _FileResponse(opened, size, kind, headers)


def open_original(file: Path, hash_: str) -> tuple[BinaryIO, str]:
    """The opened file and its media type.

    Refused (404) when the file is gone or its content is not the indexed one (of this hash): whatever took its place
    is not given away. A frame of a video and a part of a photo have no file of their own.
    """
    if not is_whole_file(file):
        raise Refused(404, f"{file.name}: a frame of a video or a part of a photo has no file of its own")
    try:
        opened = open_file(file)
    except OSError as error:
        raise Refused(404, f"{file.name}: {error.strerror or 'cannot be read'}") from error
    kind = media_type(opened.read(16))
    if not kind:
        opened.close()
        raise Refused(404, f"{file.name}: no longer a photo")
    opened.seek(0)
    # The hash of a RAW photo is that of its preview, which this process does not extract: there the link decides.
    is_same = not file.is_symlink() if is_raw(file) else hash_file(opened) == hash_
    if not is_same:
        opened.close()
        raise Refused(404, f"{file.name}: changed since it was indexed; index the folder again")
    opened.seek(0)
    return opened, kind


def media_type(head: bytes) -> str:
    """The media type that the first 16 bytes of a photo stand for; empty when they are not of a photo."""
    for magic, kind in _SHOWN:
        if head.startswith(magic):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head[4:12] in (b"ftypavif", b"ftypavis"):
        return "image/avif"
    if head[:2] == b"BM" and head[6:10] == bytes(4):
        return "image/bmp"
    portable = head[:2] in (b"P2", b"P3", b"P5", b"P6") and head[2:3].isspace()  # PPM and PGM
    known = portable or head.startswith(_DOWNLOADED) or (head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS)
    return "application/octet-stream" if known else ""


def _chunks(opened: BinaryIO, size: int) -> Iterator[bytes]:
    """The announced number of bytes: a file that grows meanwhile does not break the answer."""
    with opened:
        while size and (chunk := opened.read(min(_CHUNK, size))):
            size -= len(chunk)
            yield chunk


class Problem(BaseModel):
    """What went wrong, for people."""

    detail: str


class Limits(BaseModel):
    """What one request may hold."""

    bytes: int
    pixels: int = Field(description="of one uploaded picture")
    request_pixels: int = Field(description="of all pictures of one request")
    queries: int = Field(description="pictures and rows together")
    top: int


class StoreAnswer(BaseModel):
    """A store that can be searched."""

    number: int = Field(description="what other calls take as `store`")
    title: str
    name: str
    pictures: int
    model: str
    fingerprint: str = Field(description="of the model: feedback about its rows carries it")
    cutoff: float = Field(description="cosine of the line, a score of 0.25")
    columns: list[str] = Field(description="what a filter can use besides `path`")
    folder: str = Field(
        description="which folder relative paths start from; empty unless only this machine is served"
    )


class ColumnAnswer(BaseModel):
    """A column that a filter can use."""

    name: str
    kind: Literal["number", "choice", "text"]
    values: list[str] = Field(
        description="all values of a choice, frequent ones of a text, the folders of `path`"
    )
    low: float | None = Field(description="the least number")
    high: float | None = Field(description="the largest number")


class AboutAnswer(BaseModel):
    """What the server has to offer."""

    stores: list[StoreAnswer]
    rerankers: list[str]
    limits: Limits
    originals: bool = Field(description="whether the files themselves are given")


class Shown(BaseModel):
    """Shows rows of a store, or gives feedback about them."""

    fingerprint: str = Field(
        max_length=128,
        description="of the store's model: an answer that carries another one is refused (409), since the rows "
        "of a new model's store are others",
    )


class PictureAnswer(BaseModel):
    """An indexed picture."""

    ref: str = Field(description="names the row in a search: STORE:ID")
    path: str = Field(description="as indexed; shown, never taken")
    columns: dict[str, str]
    thumbnail: str
    picture: str
    original: str = Field(
        description="the file itself; empty for a frame of a video or a part of a photo, which have none"
    )
    thing: str = Field("", description="what people call the thing it shows; empty where nobody said")
    part: list[float] | None = Field(
        None, description="of a photo, where the row is a box in it: x1, y1, x2, y2 as fractions of the photo"
    )


class MatchAnswer(PictureAnswer):
    """A picture that was found."""

    similarity: float = Field(description="cosine")
    score: float = Field(description="calibrated: how likely it shows the same thing, 0 to 1")
    likely: bool = Field(description="more likely right than wrong")
    band: Literal["sure", "maybe", "other"] = Field(description="what the score means")
    is_query: bool = Field(description="the photo that was searched for: no answer, and not counted")
    copies: list[str] = Field(description="paths of further results that show the same photo")
    box: list[float] | None = Field(
        None, description="where the thing is, if that is known: x1, y1, x2, y2 as fractions of the picture"
    )
    inliers: int | None = Field(default=None, description="matched points that prove it; null: not verified")


class SearchAnswer(BaseModel):
    """Matches, best first."""

    store: int
    fingerprint: str = Field(description="of the model whose rows these are")
    cutoff: float
    likely: int = Field(description="how many matches are more likely right than wrong")
    reranked: bool
    milliseconds: float
    matches: list[MatchAnswer]


def picture_answer(store: int, row: Row, root: str = "", thing: str = "") -> PictureAnswer:
    """A row as the API shows it, `root` being the path before all of ours."""
    return PictureAnswer(
        **_address(store, row.id, row.image.path, root),
        path=row.image.path,
        columns=dict(row.image.columns),
        thing=thing,
        part=_part(row.image.path),
    )


def match_answer(store: int, match: Match, root: str = "", thing: str = "") -> MatchAnswer:
    """A match as the API shows it."""
    return MatchAnswer(
        **_address(store, match.id, match.path, root),
        path=match.path,
        columns=dict(match.columns),
        similarity=round(match.similarity, 4),
        score=round(match.score, 4),
        likely=match.likely,
        band=match.band,
        is_query=match.is_query,
        copies=list(match.copies),
        box=None if match.box is None else [round(side, 4) for side in match.box],
        inliers=match.inliers,
        thing=thing,
        part=_part(match.path),
    )


def _part(path: str) -> list[float] | None:
    box = split_part(path)[1]
    return None if box is None else [round(side, 5) for side in box]


def _address(store: int, id_: int, path: str, root: str) -> dict[str, str]:
    base = f"{root}/api/stores/{store}/rows/{id_}"
    found = {"ref": f"{store}:{id_}"} | {kind: f"{base}/{kind}" for kind in ("thumbnail", "picture")}
    return found | {"original": f"{base}/original" if is_whole_file(path) else ""}
