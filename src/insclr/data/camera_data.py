"""What a camera wrote beside the pixels (EXIF), as columns: time, camera, lens, place and orientation."""

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from PIL import Image

from insclr.data.decode import BadImage, open_image, read_image_bytes

CAMERA_COLUMNS = ("taken", "camera", "lens", "latitude", "longitude", "orientation")
_TIFF = (b"II*\0", b"MM\0*")
_MAKE, _MODEL, _TURN, _CHANGED, _EXIF, _GPS = 0x010F, 0x0110, 0x0112, 0x0132, 0x8769, 0x8825
_TAKEN, _DIGITISED, _LENS = 0x9003, 0x9004, 0xA434
_LONGEST = 100  # characters


def read_camera_data(path: Path) -> dict[str, str]:
    """The columns of a file's EXIF data; none where it cannot be read."""
    try:
        return camera_columns(read_image_bytes(path))
    except BadImage:
        return {}


def camera_columns(content: bytes) -> dict[str, str]:
    """The columns that EXIF data in the bytes of an image file fill; none without, or with damaged ones."""
    # Damaged data raise many kinds of errors in Pillow's parsers, and a photo is as good without them.
    try:
        return _columns(content)
    except Exception:
        return {}


def _columns(content: bytes) -> dict[str, str]:
    exif, size = Image.Exif(), (0, 0)
    if content.startswith(_TIFF):
        exif.load(content)
    else:
        with open_image(content) as (image, _):
            exif.load(image.info.get("exif") or b"")
            size = image.size
    if not len(exif):
        return {}
    details: Mapping[int, Any] = exif.get_ifd(_EXIF)
    found = {
        "taken": _time(details.get(_TAKEN) or details.get(_DIGITISED) or exif.get(_CHANGED)),
        "camera": _camera(_text(exif.get(_MAKE)), _text(exif.get(_MODEL))),
        "lens": _text(details.get(_LENS)),
        **_place(exif.get_ifd(_GPS)),
        "orientation": _orientation(size, turned=exif.get(_TURN, 1) in (5, 6, 7, 8)),
    }
    return {name: value for name, value in found.items() if value}


def _text(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
    return "".join(c if c.isprintable() else " " for c in text.split("\0")[0]).strip()[:_LONGEST]


def _time(value: object) -> str:
    """As "2024-05-01 12:30:05", which sorts as text; empty for no time, such as zeros of a camera without a clock."""
    match = re.match(r"\s*(\d{4})[:-](\d\d)[:-](\d\d)[ T](\d\d):(\d\d):(\d\d)", _text(value))
    try:
        return str(datetime(*map(int, match.groups()))) if match else ""  # type: ignore[arg-type]
    except ValueError:
        return ""


def _camera(make: str, model: str) -> str:
    """Make and model; many models begin with the make already."""
    brand = make.split(" ")[0]
    return model if model.casefold().startswith(brand.casefold()) else f"{make} {model}".strip()


def _place(gps: Mapping[int, Any]) -> dict[str, str]:
    """Latitude and longitude in degrees; none where one of them is missing or not on Earth."""
    try:
        latitude = _degrees(gps[2], south=_text(gps[1]).upper() == "S")
        longitude = _degrees(gps[4], south=_text(gps[3]).upper() == "W")
    except (KeyError, ValueError, TypeError, ZeroDivisionError, IndexError):
        return {}
    if not (abs(latitude) <= 90 and abs(longitude) <= 180) or (latitude, longitude) == (0, 0):
        return {}
    return {"latitude": f"{latitude:.5f}", "longitude": f"{longitude:.5f}"}


def _degrees(parts: Any, *, south: bool) -> float:
    degrees, minutes, seconds = (float(one) for one in parts)
    return (-1 if south else 1) * (degrees + minutes / 60 + seconds / 3600)


def _orientation(size: tuple[int, int], *, turned: bool) -> str:
    width, height = size[::-1] if turned else size
    if not width:
        return ""
    return "landscape" if width > height else "portrait" if width < height else "square"
