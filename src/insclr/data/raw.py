"""Read RAW photos: the preview in the file, or a quick development when that is missing or small."""

import io
import struct
from typing import Any

from PIL import Image

from insclr.data.decode_limits import BadImage, require_few_pixels

_SMALL = 640  # pixels: a preview whose longest side is below is a thumbnail
_ORIENTATION = 0x0112
_EXIF_OF_FLIP = {3: 3, 5: 8, 6: 6}  # LibRaw's turns in EXIF's numbers


def raw_preview(content: bytes) -> bytes:
    """An ordinary image file (JPEG or PPM) made from the content of a RAW file; BadImage where there is none."""
    try:
        import rawpy
    except ImportError:
        raise BadImage("a RAW photo: pip install 'insclr[raw]'") from None
    try:
        with rawpy.imread(io.BytesIO(content)) as raw:
            require_few_pixels(raw.sizes.raw_width, raw.sizes.raw_height)
            # Half the size is enough for any descriptor, and quick: no colour has to be interpolated.
            quick = {"half_size": True, "use_camera_wb": True, "output_bps": 8}
            return _read_embedded(rawpy, raw) or as_ppm(raw.postprocess(None, **quick))
    except rawpy.LibRawError as error:
        text = error.args[0] if error.args else type(error).__name__
        reason = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        raise BadImage(f"corrupt RAW file: {reason}") from error


def _read_embedded(rawpy: Any, raw: Any) -> bytes | None:
    try:
        found = raw.extract_thumb()
    except (rawpy.LibRawNoThumbnailError, rawpy.LibRawUnsupportedThumbnailError):
        return None
    if found.format != rawpy.ThumbFormat.JPEG:
        return None
    jpeg = bytes(found.data)
    try:
        with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as image:
            if max(image.size) < min(_SMALL, max(raw.sizes.width, raw.sizes.height) // 2):
                return None
            turned = _ORIENTATION in image.getexif()
    except (OSError, SyntaxError):
        return None
    orientation = _EXIF_OF_FLIP.get(raw.sizes.flip)
    if turned or orientation is None:
        return jpeg
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    payload = exif.tobytes()
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]


def as_ppm(pixels: Any) -> bytes:
    """An RGB array (H, W, 3) of bytes as a file that takes no time to write or read."""
    height, width, _ = pixels.shape
    content: bytes = pixels.tobytes()
    return f"P6 {width} {height} 255\n".encode() + content
