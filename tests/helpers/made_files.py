"""Pictures and file contents that the tests of the data room make."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth random picture: it survives JPEG compression with little change."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def jpeg_bytes(image: Image.Image, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", **{"quality": 95} | options)
    return stream.getvalue()


def repeated_scans(image: Image.Image, times: int) -> bytes:
    """A progressive JPEG whose last scan comes `times` times more: small, and slow to decode."""
    content = jpeg_bytes(image, progressive=True, quality=30)
    last = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + times * last + content[-2:]


def png_claiming(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG of a few dozen bytes whose header claims a picture of the given size (colour 2 = RGB, 6 = RGBA)."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data
