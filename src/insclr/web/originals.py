"""Serve the indexed files themselves, byte by byte."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from fastapi.responses import StreamingResponse

from insclr.data.formats import split_frame
from insclr.files import open_file
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


def original_response(file: Path, *, download: bool) -> StreamingResponse:
    """The file as it is; shown by the browser where it can, unless `download` asks for a copy.

    Refused (404) when the file is gone or its first bytes are not those of a photo: whatever took its place is
    not given away. A frame of a video has no file of its own.
    """
    if split_frame(file)[1] is not None:
        raise Refused(404, f"{file.name}: a frame of a video has no file of its own")
    try:
        opened = open_file(file)
    except OSError as error:
        raise Refused(404, f"{file.name}: {error.strerror or 'cannot be read'}") from error
    kind = media_type(opened.read(16))
    if not kind:
        opened.close()
        raise Refused(404, f"{file.name}: no longer a photo")
    size = os.fstat(opened.fileno()).st_size
    opened.seek(0)
    way = "inline" if kind.startswith("image/") and not download else "attachment"
    headers = {
        "content-length": str(size),
        "content-disposition": f"{way}; filename*=UTF-8''{quote(file.name, safe='')}",
        "cache-control": "private, no-cache",
    }
    return StreamingResponse(_chunks(opened, size), media_type=kind, headers=headers)


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
