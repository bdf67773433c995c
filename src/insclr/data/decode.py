"""Decode an image file into an upright RGB image, or give a short reason why it cannot be decoded."""

import errno
import functools
import io
import logging
import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps

from insclr.data.decode_limits import (
    MAX_FILE_BYTES,
    BadImage,
    TimedBytes,
    decoding_bytes,
    hold_memory,
    require_few_pixels,
)
from insclr.data.formats import RAW, VIDEOS, split_frame, split_part
from insclr.errors import UserError
from insclr.files import read_bytes

__all__ = [
    "BadImage",
    "Box",
    "Header",
    "crop_box",
    "decode",
    "load_readers",
    "open_image",
    "read_header",
    "read_image_bytes",
    "upright_size",
]

logger = logging.getLogger(__name__)

# Only formats that hold photos: Pillow also reads some that run other programs (EPS) or hold no image.
_FORMATS = ("Jpeg", "Png", "WebP", "Gif", "Bmp", "Tiff", "Ppm", "Avif")
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"GIF8", b"BM", b"II*\0", b"MM\0*")

LARGE_PIXELS = 16_000_000
_BAND_PIXELS = 4_000_000
_BLOCK = 16_384  # bytes handed to a decoder at once: the time limit is checked between two blocks

Box = tuple[float, float, float, float]
# A function that reads an image from a stream, and one that recognises the format by its first bytes.
_Reader = tuple[Callable[..., ImageFile.ImageFile], Callable[[bytes], bool | str] | None]


class Header(NamedTuple):
    """Format and size of an image, read from the header of its file."""

    format: str
    width: int
    height: int


def decode(file: Path | BinaryIO | bytes, longest: int | None = None) -> Image.Image:
    """The image in `file`: RGB, upright by its EXIF orientation, first frame, transparency over white.

    `longest` is the longest side that the caller needs. A JPEG is then decoded at 1/2, 1/4 or 1/8 where at least
    `longest` pixels remain, which saves most of the work on large photos. Any other image above LARGE_PIXELS is
    reduced in the same way. Of a panorama at least half as many pixels remain on the shorter side, because views may
    be squares. The image is never enlarged. BadImage is the only error: the file holds no image, or one
    that exceeds `decode_limits`.
    """
    with open_image(file) as (image, content):
        stored = image.size
        if longest is not None and (scale := _least_scale(stored, longest)) < 1:
            image.draft(None, (math.ceil(image.width * scale), math.ceil(image.height * scale)))
        with hold_memory(decoding_bytes(image, stored, content)):
            image.load()
            if image.format == "PNG":  # now its EXIF data is known, and with it whether it must be turned
                decoding_bytes(image, stored, content)
            made = _reduce(_to_rgb(_upright(image)), longest)
            del image
            return made


def read_header(file: Path | BinaryIO | bytes) -> Header:
    """Format and stored size of the image in `file`; raises BadImage when the header cannot be read."""
    with open_image(file) as (image, _):
        return Header(image.format or "unknown", image.width, image.height)


def read_image_bytes(file: Path) -> bytes:
    """The content of an image file, read once so that the hashed bytes are the decoded bytes.

    A RAW photo gives its preview, a frame of a video gives that frame. Raises BadImage when the file cannot be read.
    """
    with _explain_errors():
        return read_content(file)


def crop_box(image: Image.Image, box: Box) -> Image.Image:
    """The part of `image` inside `box` (left, top, right, bottom in pixels of this image).

    A box that exceeds the image is clipped with a warning; a box outside the image is a UserError.
    Boxes are given in pixels of the file, so decode without `longest` before cropping.
    """
    if not all(math.isfinite(side) for side in box):
        raise UserError(f"box {box} is not four finite numbers: give left, top, right, bottom in pixels.")
    left, top, right, bottom = (round(side) for side in box)
    clipped = (max(left, 0), max(top, 0), min(right, image.width), min(bottom, image.height))
    if clipped[0] >= clipped[2] or clipped[1] >= clipped[3]:
        raise UserError(
            f"box {box} holds no part of the image of {image.width} x {image.height} pixels: "
            "give left, top, right, bottom in pixels."
        )
    if clipped != (left, top, right, bottom):
        logger.warning("box %s sticks out of the image of %d x %d: clipped", box, image.width, image.height)
    return image.crop(clipped)


@contextmanager
def open_image(file: Path | BinaryIO | bytes) -> Iterator[tuple[ImageFile.ImageFile, bytes]]:
    """Read and check the header of an image; yields the image and the file's content. Any error becomes BadImage."""
    with _explain_errors():
        if isinstance(file, Path):
            content = read_content(file)
        elif isinstance(file, bytes):
            content = file
        else:
            file.seek(0)
            content = file.read()
        yield _open(TimedBytes(content)), content


def read_content(path: Path) -> bytes:
    """The bytes of an image file, of the preview in a RAW photo, of a frame of a video or of a part of a photo."""
    photo, box = split_part(path)
    if box is not None:
        return _cut_out(read_content(photo), box)
    file, seconds = split_frame(path)
    suffix = file.suffix.lower()
    if suffix in VIDEOS:
        from insclr.data.camera_formats import video_frame

        return video_frame(file, seconds)
    content = read_bytes(file, MAX_FILE_BYTES)
    if suffix in RAW:
        from insclr.data.camera_formats import raw_preview

        return raw_preview(content)
    return content


def _cut_out(content: bytes, box: Box) -> bytes:
    """The part of an image in a box of fractions, as the bytes of an image without loss."""
    image = decode(content)
    left, top, right, bottom = (
        round(side * length) for side, length in zip(box, image.size * 2, strict=True)
    )
    if left >= image.width or top >= image.height:
        raise BadImage("the box lies outside of the photo")
    part = image.crop(
        (left, top, min(max(right, left + 1), image.width), min(max(bottom, top + 1), image.height))
    )
    written = io.BytesIO()
    part.save(written, "BMP")
    return written.getvalue()


def upright_size(file: Path) -> tuple[int, int]:
    """Width and height of the upright image in a file, by its header; raises BadImage."""
    with open_image(file) as (image, _):
        turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8) if image.format == "JPEG" else False
        return (image.height, image.width) if turned else (image.width, image.height)


@contextmanager
def _explain_errors() -> Iterator[None]:
    try:
        yield
    except BadImage:
        raise
    # Broken files make Pillow's parsers raise many kinds of errors (struct.error, KeyError, zlib.error, ...).
    # No broken file may stop a run.
    except Exception as error:
        raise BadImage(_reason(error)) from error


def _open(stream: TimedBytes) -> ImageFile.ImageFile:
    prefix = stream.read(16)
    if not prefix:
        raise BadImage("empty file (0 bytes)")
    boxed = prefix[4:8] == b"ftyp"
    for factory, accept in (*_readers(), *([_heif_reader()] if boxed else [])):
        if accept is not None and accept(prefix) is not True:
            continue
        stream.seek(0)
        try:
            image = factory(stream, "")
        except (SyntaxError, IndexError, TypeError, KeyError, struct.error):
            continue
        require_few_pixels(image.width, image.height)
        image.decodermaxblock = _BLOCK
        return image
    if prefix.startswith(_MAGIC) or boxed:
        raise BadImage("corrupt: the header cannot be read")
    raise BadImage("not an image (or of an unknown format)")


def load_readers() -> None:
    """Import the readers of all formats now; a process calls this before it limits its own memory."""
    _readers()
    _heif_reader()


@functools.cache
def _readers() -> list[_Reader]:
    """Pillow's readers for our formats only: importing all of them takes as long as decoding a photo.

    We call them directly instead of Image.open. Image.open checks the size against a limit of the whole process,
    which any other library may change.
    """
    for name in _FORMATS:
        import_module(f"PIL.{name}ImagePlugin")
    return [Image.OPEN[name.upper()] for name in _FORMATS if name.upper() in Image.OPEN]


@functools.cache
def _heif_reader() -> _Reader:
    import pillow_heif  # imported late: every command imports this module

    pillow_heif.register_heif_opener()
    # Several workers already decode images in parallel.
    pillow_heif.options.DECODE_THREADS = 1
    return Image.OPEN["HEIF"]


def _upright(image: Image.Image) -> Image.Image:
    # An image with damaged EXIF data is used as if it were upright.
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, struct.error):
        logger.debug("EXIF data cannot be read: the image is used as upright")
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):
        return _deep_to_rgb(image)
    if image.has_transparency_data:
        return _over_white(image)
    made = image.convert("RGB") if image.mode != "RGB" else image._new(image.im)
    made.info = {}  # keep the pixels only: no metadata, and no open file (`_new`)
    return made


def _over_white(image: Image.Image) -> Image.Image:
    made = Image.new("RGB", image.size)
    for box, band in _bands(image):
        layer = band.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        made.paste(Image.alpha_composite(white, layer).convert("RGB"), box)
    return made


def _deep_to_rgb(image: Image.Image) -> Image.Image:
    """Convert deep greyscale to 8 bits; Pillow's own conversion clips all values above 255."""
    peak = max(float(_values(band).max()) for _, band in _bands(image))
    # Integers span 0..65535 (Pillow reads 16-bit PNM as mode I too). Floats usually span 0..1, but some
    # programs write 8- or 16-bit values as floats. For larger values the brightest pixel becomes white.
    customary = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
    white = next((top for top in customary if peak <= top), peak)
    made = Image.new("RGB", image.size)
    for box, band in _bands(image):
        grey = np.rint(_values(band).clip(0, white) * (255.0 / white)).astype(np.uint8)
        made.paste(Image.fromarray(grey).convert("RGB"), box)
    return made


def _values(band: Image.Image) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.nan_to_num(np.asarray(band, dtype=np.float32))  # (H, W)


def _bands(image: Image.Image) -> Iterator[tuple[tuple[int, int], Image.Image]]:
    """Horizontal strips of the image with their positions, so that a conversion needs little extra memory."""
    rows = max(1, _BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield (0, top), image.crop((0, top, image.width, min(top + rows, image.height)))


def _reduce(image: Image.Image, longest: int | None) -> Image.Image:
    """Reduce a very large image to 1/2, 1/4 or 1/8, as a JPEG is, where at least `longest` pixels remain."""
    if longest is None or image.width * image.height <= LARGE_PIXELS:
        return image
    scale = _least_scale(image.size, longest)
    factor = max(f for f in (1, 2, 4, 8) if f * scale <= 1 or f == 1)
    return image.reduce(factor) if factor > 1 else image


def _least_scale(size: tuple[int, int], longest: int) -> float:
    """The least scale that leaves an image `longest` pixels on its longest side, and half as many on the other."""
    return max(longest / max(size), longest / 2 / min(size))


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "file not found (moved or deleted)"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, IsADirectoryError):
        return "a folder, not an image"
    if isinstance(error, OSError) and error.errno in (errno.EINVAL, errno.EFBIG):
        return str(error.strerror)  # the sentence that `insclr.files` wrote
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot be read: {error.strerror or errno.errorcode.get(error.errno, error.errno)}"
    text = " ".join(str(error).split())
    if isinstance(error, EOFError) or "truncated" in text.lower():
        return "truncated: the file ends before the image does"
    return f"corrupt: {text or type(error).__name__}"
