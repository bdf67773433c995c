"""What decoding one file may cost: bytes of memory, scans of a JPEG, seconds. All but the time is judged before."""

import io
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, ImageFile

# As large as the largest phone photos. It is checked against the header, so a file of a few bytes
# that claims a giant image costs nothing.
MAX_PIXELS = 200_000_000
MAX_FILE_BYTES = 300_000_000
# Of memory at the peak of decoding one file, its own bytes included. As RGB it is what MAX_PIXELS need.
MAX_DECODED_BYTES = 800_000_000
# Encoders write about 10 scans, every scan of a progressive JPEG costs a pass over the whole image.
MAX_SCANS = 100
_MAX_SCANNED_PIXELS = 4_000_000_000
MAX_SECONDS = 30.0

# Bytes a pixel as Pillow keeps it; modes that are not named take 4 (RGB too).
_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
# Bytes a pixel that the decoder holds besides, measured.
_DECODER_BYTES = {"WEBP": 12, "AVIF": 12, "HEIF": 8, "TIFF": 4}
_COEFFICIENT_BYTES = 2  # a component and pixel, kept of the whole image where a JPEG has several scans
_OUTPUT_BYTES = 4
_LARGE = 200_000_000  # bytes: above, a process decodes one image at a time
_ORIENTATION = 0x0112


class BadImage(Exception):
    """A file that gives no image; `reason` says why in a few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TimedBytes(io.BytesIO):
    """A file's content in memory that decoders can read for MAX_SECONDS only."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.content = content
        self._end = time.monotonic() + MAX_SECONDS

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes; BadImage when time is up. Decoders ask for a few thousand at a time."""
        if time.monotonic() > self._end:
            raise BadImage(f"takes longer than {MAX_SECONDS:g} s to decode")
        return super().read(size)


def require_few_pixels(width: int, height: int, limit: int = MAX_PIXELS) -> None:
    """Raise BadImage for more pixels than `limit`."""
    if (pixels := width * height) > limit:
        raise BadImage(
            f"too large: {width} x {height} = {pixels / 1e6:.0f} megapixels, limit {limit / 1e6:.0f}"
        )


@contextmanager
def affordable(image: ImageFile.ImageFile, stored: tuple[int, int], content: bytes) -> Iterator[None]:
    """Decode `image` in this block: BadImage if it costs too much, and large ones wait for each other.

    `stored` is the size in the file, `image.size` the one it is decoded at.
    """
    cost = len(content) + _decoding_bytes(image, stored, content)
    if cost > MAX_DECODED_BYTES:
        raise BadImage(
            f"too large: {stored[0]} x {stored[1]} ({image.format} {image.mode}) takes "
            f"{cost / 1e9:.1f} GB to decode, limit {MAX_DECODED_BYTES / 1e9:.1f}"
        )
    if cost <= _LARGE:
        yield
        return
    with _large_turn:
        yield


def _decoding_bytes(image: ImageFile.ImageFile, stored: tuple[int, int], content: bytes) -> int:
    pixels = image.width * image.height
    kept = _BYTES.get(image.mode, 4)
    # An image that is not upright RGB yet is held twice while it is made so.
    ready = image.mode == "RGB" and not image.has_transparency_data and _upright(image)
    peak = pixels * (kept + max(_DECODER_BYTES.get(image.format or "", 0), 0 if ready else _OUTPUT_BYTES))
    if image.format in ("JPEG", "MPO"):
        peak += _coefficient_bytes(image, stored, content)
    return peak


def _coefficient_bytes(image: ImageFile.ImageFile, stored: tuple[int, int], content: bytes) -> int:
    """What a JPEG of several scans needs besides; BadImage for too many of them."""
    scans, in_first = count_scans(content)
    pixels = stored[0] * stored[1]
    if scans > MAX_SCANS or scans * pixels > _MAX_SCANNED_PIXELS:
        raise BadImage(f"too many scans for a JPEG of {stored[0]} x {stored[1]}: {scans}")
    components = len(image.getbands())
    if "progressive" not in image.info and in_first >= components:
        return 0
    return pixels * components * _COEFFICIENT_BYTES


# Inside a scan FF is followed by 00 or a restart marker; anything else is the next segment. A pattern that begins
# with one certain byte is found fifty times as fast as one that begins with "one or more of it".
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd7\xff])")
_START, _END, _SCAN = 0xD8, 0xD9, 0xDA


def count_scans(content: bytes) -> tuple[int, int]:
    """How many scans a JPEG has, and how many components its first one holds. Nothing is decoded.

    Counting stops soon after MAX_SCANS.
    """
    scans, in_first, at = 0, 0, 0
    while scans <= MAX_SCANS and (marker := _MARKER.search(content, at)) is not None:
        kind, at = marker[1][0], marker.end()
        if kind == _END:
            break
        if kind == _START:
            continue
        if kind == _SCAN:
            scans += 1
            in_first = in_first or int.from_bytes(content[at + 2 : at + 3])
        at += max(2, int.from_bytes(content[at : at + 2]))
    return scans, in_first


def _upright(image: Image.Image) -> bool:
    try:
        return bool(image.getexif().get(_ORIENTATION, 1) == 1)
    except Exception:  # damaged EXIF data raises nearly anything, and then counts as upright
        return True


_large_turn = threading.Lock()


def _new_turn() -> None:
    global _large_turn
    _large_turn = threading.Lock()


# A process that is forked while another thread decodes must not wait for it.
os.register_at_fork(after_in_child=_new_turn)
