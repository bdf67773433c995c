"""From a file to an upright RGB image, or to a short reason why there is none."""

import errno
import functools
import io
import logging
import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps

from insclr.errors import UserError

logger = logging.getLogger(__name__)

# Above the largest phone photos (200 megapixels), and 0.75 GB as RGB. It is checked against the header, so a
# file of a few bytes that claims a giant image costs nothing.
MAX_PIXELS = 250_000_000

# Only formats that hold photos: Pillow also knows some that run other programs (EPS) or hold no image.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"GIF8", b"BM", b"II*\0", b"MM\0*")

Box = tuple[float, float, float, float]


class BadImage(Exception):
    """A file that gives no image; `reason` says why in a few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Header(NamedTuple):
    """What a file says about its image before it is decoded."""

    format: str
    width: int
    height: int


def decode(file: Path | BinaryIO, longest: int | None = None) -> Image.Image:
    """The image in `file`: RGB, upright by its EXIF orientation, first frame, transparency over white.

    `longest` is the largest longest side anybody will ask of the image: a JPEG is then decoded at 1/2, 1/4
    or 1/8 where that leaves at least so much, which saves most of the work on large photos. The result is
    never enlarged, and smaller than the file says only by that. Raises BadImage, and nothing else, when the
    file gives no image.
    """
    with _opened(file) as image:
        if longest is not None and max(image.size) > longest:
            scale = longest / max(image.size)
            image.draft(None, (math.ceil(image.width * scale), math.ceil(image.height * scale)))
        image.load()
        return _to_rgb(_upright(image))


def read_header(file: Path | BinaryIO) -> Header:
    """Format and stored size of the image in `file`; raises BadImage where not even these can be read."""
    with _opened(file) as image:
        return Header(image.format or "unknown", image.width, image.height)


def crop_box(image: Image.Image, box: Box) -> Image.Image:
    """The part of `image` inside `box` (left, top, right, bottom in pixels of this image).

    A box that sticks out is clipped with a warning; one that holds nothing of the image is a UserError.
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
def _opened(file: Path | BinaryIO) -> Iterator[ImageFile.ImageFile]:
    """The file with its header read and judged; whatever goes wrong inside the block becomes BadImage."""
    try:
        if isinstance(file, Path):
            # A named pipe would hold up the run for ever: look before opening.
            if not file.is_file() and file.exists():
                raise BadImage("a folder, not an image" if file.is_dir() else "not a regular file")
            with file.open("rb") as stream:
                yield _open(stream)
        else:
            yield _open(file if file.seekable() else io.BytesIO(file.read()))
    except BadImage:
        raise
    # Broken files make Pillow's parsers raise nearly anything (struct.error, KeyError, zlib.error, ...), and
    # no broken file may stop a run.
    except Exception as error:
        raise BadImage(_reason(error)) from error


def _open(stream: BinaryIO) -> ImageFile.ImageFile:
    stream.seek(0)
    prefix = stream.read(16)
    if not prefix:
        raise BadImage("empty file (0 bytes)")
    for factory, accept in _openers():
        if accept is not None and accept(prefix) is not True:
            continue
        stream.seek(0)
        try:
            image = factory(stream, "")
        except (SyntaxError, IndexError, TypeError, KeyError, struct.error):
            continue
        if (pixels := image.width * image.height) > MAX_PIXELS:
            raise BadImage(
                f"too large: {image.width} x {image.height} = {pixels / 1e6:.0f} megapixels, "
                f"limit {MAX_PIXELS / 1e6:.0f}"
            )
        return image
    if prefix.startswith(_MAGIC):
        raise BadImage("corrupt: the header cannot be read")
    raise BadImage("not an image (or of an unknown format)")


@functools.cache
def _openers() -> list[tuple[Callable[..., ImageFile.ImageFile], Callable[[bytes], bool | str] | None]]:
    """Pillow's readers for our formats.

    They are called one by one instead of through Image.open, which judges the size by a limit and a warning
    that belong to the whole process and may be changed by anyone.
    """
    Image.init()
    return [Image.OPEN[name] for name in _FORMATS if name in Image.OPEN]


def _upright(image: Image.Image) -> Image.Image:
    # Damaged EXIF data is no reason to lose a good image: it then counts as upright.
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, struct.error):
        logger.debug("EXIF data cannot be read: the picture is taken as upright")
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):
        return _deep_to_rgb(image)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    # A new image in every case: the caller's image holds no file and no metadata.
    return image.convert("RGB") if image.mode != "RGB" else image.copy()


def _deep_to_rgb(image: Image.Image) -> Image.Image:
    """Greyscale of more than 8 bits to 8: Pillow's own conversion clips everything above 255 to white."""
    values: np.ndarray[Any, np.dtype[np.float32]] = np.nan_to_num(
        np.asarray(image, dtype=np.float32)
    )  # (H, W)
    peak = float(values.max())
    # Integers span 0..65535 (Pillow gives 16-bit PNM as mode I too). Floats are 0..1 by custom, but some
    # programs write 8- or 16-bit numbers as floats. Beyond all of these the brightest pixel becomes white.
    customary = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
    white = next((top for top in customary if peak <= top), peak)
    grey = np.rint(values.clip(0, white) * (255.0 / white)).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "file not found (moved or deleted)"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot be read: {error.strerror or errno.errorcode.get(error.errno, error.errno)}"
    text = " ".join(str(error).split())
    if isinstance(error, EOFError) or "truncated" in text.lower():
        return "truncated: the file ends before the picture does"
    return f"corrupt: {text or type(error).__name__}"
