"""Limits of decoding one file: memory, scans of a JPEG, seconds. All but the time are checked before decoding."""

import ctypes
import io
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from PIL import Image, ImageFile

# The size of the largest phone photos. It is checked against the header, so a small file that
# announces a giant image costs nothing.
MAX_PIXELS = 200_000_000
MAX_FILE_BYTES = 300_000_000
# Peak memory of decoding one file, including the file itself. An RGB image of MAX_PIXELS needs this much.
MAX_DECODED_BYTES = 800_000_000
# Encoders write about 10 scans. Every scan of a progressive JPEG costs a pass over the whole image.
MAX_SCANS = 100
_MAX_SCANNED_PIXELS = 4_000_000_000
MAX_SECONDS = 30.0

# Bytes per pixel in Pillow; all other modes take 4 (RGB too).
_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
# Additional bytes per pixel in the decoder, measured.
_DECODER_BYTES = {"WEBP": 12, "AVIF": 12, "HEIF": 8, "TIFF": 4}
_COEFFICIENT_BYTES = 2  # per component and pixel: a JPEG of several scans keeps them for the whole image
_OUTPUT_BYTES = 4
_LARGE = 200_000_000  # bytes: so much is given back to the system at once
_ORIENTATION = 0x0112


class BadImage(Exception):
    """A file cannot be decoded; `reason` is a short explanation."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TimedBytes(io.BytesIO):
    """The content of a file in memory; decoders can read it for MAX_SECONDS."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.content = content
        self._end = time.monotonic() + MAX_SECONDS

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes; BadImage when the time is over. Decoders read a few thousand bytes at a time."""
        if time.monotonic() > self._end:
            raise BadImage(f"takes longer than {MAX_SECONDS:g} s to decode")
        return super().read(size)


def require_few_pixels(width: int, height: int, limit: int = MAX_PIXELS) -> None:
    """Raise BadImage for more pixels than `limit`."""
    if (pixels := width * height) > limit:
        raise BadImage(
            f"too large: {width} x {height} = {pixels / 1e6:.0f} megapixels, limit {limit / 1e6:.0f}"
        )


def decoding_bytes(image: ImageFile.ImageFile, stored: tuple[int, int], content: bytes) -> int:
    """The memory that decoding `image` takes, by its header; BadImage if it is too much.

    `stored` is the size in the file, `image.size` the decoded size. Whether a PNG must be turned may be known only
    after it is loaded: its EXIF data may follow the pixels.
    """
    cost = len(content) + _pixel_bytes(image, stored, content)
    if cost > MAX_DECODED_BYTES:
        raise BadImage(
            f"too large: {stored[0]} x {stored[1]} ({image.format} {image.mode}) takes "
            f"{cost / 1e9:.1f} GB to decode, limit {MAX_DECODED_BYTES / 1e9:.1f}"
        )
    return cost


class DecodingMemory:
    """What decoding takes in this process at a time: together no more than one image may take."""

    def __init__(self) -> None:
        self._queue = threading.Lock()  # in the order of asking: small images would keep a large one waiting
        self._changed = threading.Condition()
        self._used = 0

    @contextmanager
    def hold(self, cost: int) -> Iterator[None]:
        """Have so many bytes for this block, as soon as others leave them."""
        with self._queue, self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + cost <= MAX_DECODED_BYTES)
            self._used += cost
        try:
            yield
        finally:
            if cost > _LARGE:
                _return_freed_memory()
            with self._changed:
                self._used -= cost
                self._changed.notify()


def _return_freed_memory() -> None:
    """Give the system back what freed images and tensors left, which glibc keeps in pieces."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def _pixel_bytes(image: ImageFile.ImageFile, stored: tuple[int, int], content: bytes) -> int:
    pixels = image.width * image.height
    kept = _BYTES.get(image.mode, 4)
    # An image that is not upright RGB is in memory twice during the conversion.
    ready = image.mode == "RGB" and not image.has_transparency_data and _upright(image)
    peak = pixels * (kept + max(_DECODER_BYTES.get(image.format or "", 0), 0 if ready else _OUTPUT_BYTES))
    if image.format in ("JPEG", "MPO"):
        peak += _coefficient_bytes(image, stored, content)
    return peak


def _coefficient_bytes(image: ImageFile.ImageFile, stored: tuple[int, int], content: bytes) -> int:
    """Additional memory of a JPEG with several scans; BadImage for too many scans."""
    scans, in_first = count_scans(content)
    pixels = stored[0] * stored[1]
    if scans > MAX_SCANS or scans * pixels > _MAX_SCANNED_PIXELS:
        raise BadImage(f"too many scans for a JPEG of {stored[0]} x {stored[1]}: {scans}")
    components = len(image.getbands())
    if "progressive" not in image.info and in_first >= components:
        return 0
    return pixels * components * _COEFFICIENT_BYTES


# Inside a scan FF is followed by 00 or a restart marker; any other byte begins the next segment. The pattern begins
# with exactly one FF, because "one or more" is fifty times slower to find.
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd7\xff])")
_START, _END, _SCAN = 0xD8, 0xD9, 0xDA


def count_scans(content: bytes) -> tuple[int, int]:
    """The number of scans of a JPEG, and of components in the first one, without decoding.

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
    if image.format == "PNG" and "exif" not in image.info:
        return True  # `getexif` would decode the image to look behind its pixels
    try:
        return bool(image.getexif().get(_ORIENTATION, 1) == 1)
    except Exception:  # damaged EXIF data raises many kinds of errors: the image is used as upright
        return True


def hold_memory(cost: int) -> AbstractContextManager[None]:
    """Have the memory for decoding an image in this block, which must free the image before it ends."""
    return _memory.hold(cost)


_libc = ctypes.CDLL(None)
_memory = DecodingMemory()


def _forget_threads() -> None:
    global _memory
    _memory = DecodingMemory()


# A process forked while another thread decodes must not wait for that thread.
os.register_at_fork(after_in_child=_forget_threads)
