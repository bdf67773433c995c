"""File formats: which files are read, which need an extra, and the names of video frames."""

import itertools
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PICTURES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".heic", ".heif", ".avif"}
)
RAW = frozenset(
    {".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".sr2", ".srf", ".raf", ".orf", ".rw2"}
    | {".pef", ".srw", ".x3f", ".erf", ".kdc", ".dcr", ".mrw", ".3fr", ".iiq", ".rwl"}
)
# Each with FFmpeg's name of what reads it: a file is never opened as something else, such as a list of others.
VIDEOS = {
    **dict.fromkeys((".mp4", ".mov", ".m4v", ".3gp", ".3g2"), "mov"),
    **dict.fromkeys((".mkv", ".webm"), "matroska"),
    **dict.fromkeys((".mts", ".m2ts"), "mpegts"),
    **dict.fromkeys((".mpg", ".mpeg"), "mpeg"),
    ".avi": "avi",
    ".wmv": "asf",
}
_NO_PHOTOS = frozenset({".psd", ".jxl", ".jp2", ".svg", ".eps", ".tga", ".exr", ".xcf", ".ico", ".pdf"})

_LOOKED_AT = 1000  # files of a folder

# Kinds of files that are not read.
VIDEO, RAW_PHOTO, NOT_UTF8, OTHER = "video", "RAW photo", "name that is not UTF-8", "other file"
_EXTRAS = {RAW_PHOTO: ("raw", "rawpy"), VIDEO: ("video", "av")}

_FRAME = re.compile(rf"(?s)(.*(?:{'|'.join(map(re.escape, VIDEOS))}))#t=(\d+(?:\.\d+)?)", re.IGNORECASE)


def what_is(path: Path) -> str:
    """What a path that was given in the place of another is, for messages; empty where it is nothing that we know."""
    if path.is_dir():
        known = {"rows.sqlite": "a store", "model.safetensors": "a run folder", "recipe.toml": "a run folder"}
        for name, kind in known.items():
            if (path / name).is_file():
                return kind
        some = itertools.islice(path.rglob("*"), _LOOKED_AT)
        return "a folder of photos" if any(one.suffix.lower() in PICTURES | RAW for one in some) else ""
    if not path.is_file():
        return ""
    suffix = path.suffix.lower()
    return "a photo" if suffix in PICTURES | RAW else "a model file" if suffix == ".safetensors" else ""


@cache
def can_read(kind: str) -> bool:
    """Whether the package that reads this kind (RAW_PHOTO or VIDEO) is installed."""
    return find_spec(_EXTRAS[kind][1]) is not None


def kind_of(suffix: str) -> str:
    """ "" for a file that is read as an image, else the kind it is counted under; a suffix is in lower case."""
    if suffix in PICTURES:
        return ""
    if suffix in RAW:
        return "" if can_read(RAW_PHOTO) else RAW_PHOTO
    if suffix in VIDEOS:
        return "" if can_read(VIDEO) else VIDEO
    return f"{suffix} picture" if suffix in _NO_PHOTOS else OTHER


def not_read_lines(counts: Mapping[str, int]) -> list[str]:
    """What a folder holds that is not read, and what to do about it; other files than pictures are passed over."""
    extras = [kind for kind in (VIDEO, RAW_PHOTO) if counts.get(kind)]
    lines = []
    if extras:
        names = ",".join(sorted(_EXTRAS[kind][0] for kind in extras))
        lines.append(f"{_count_files(counts, extras)}: not read; pip install 'insclr[{names}]'")
    if unknown := sorted(kind for kind in counts if kind.endswith(" picture")):
        lines.append(f"{_count_files(counts, unknown)}: not read; save them as JPEG or PNG")
    if counts.get(NOT_UTF8):
        lines.append(f"{_count_files(counts, [NOT_UTF8])}: not read; rename the files")
    return lines


def _count_files(counts: Mapping[str, int], kinds: list[str]) -> str:
    plural = {kind: f"{kind}s" for kind in kinds} | {NOT_UTF8: "names that are not UTF-8"}
    return ", ".join(f"{counts[kind]} {plural[kind] if counts[kind] > 1 else kind}" for kind in kinds)


def frame_name(video: str, seconds: float) -> str:
    """The path of the frame of a video at this time."""
    return f"{video}#t={seconds:.1f}"


def split_frame(path: str | Path) -> tuple[Path, float | None]:
    """The file that an image's path lies in, and the time of the frame where that is a video's."""
    match = _FRAME.fullmatch(str(path))
    return (Path(match[1]), float(match[2])) if match else (Path(path), None)


_PART = re.compile(r"(?s)(.+)#xywh=percent:([\d.]+),([\d.]+),([\d.]+),([\d.]+)", re.ASCII)


def part_name(photo: str, box: tuple[float, float, float, float]) -> str:
    """The path of the part of a photo in a box (left, top, right, bottom as fractions), as a media fragment."""
    left, top, right, bottom = (round(100 * side, 3) for side in box)
    return f"{photo}#xywh=percent:{left:g},{top:g},{right - left:.6g},{bottom - top:.6g}"


def split_part(path: str | Path) -> tuple[Path, tuple[float, float, float, float] | None]:
    """The photo that an image's path names, and the box (left, top, right, bottom as fractions) of a part of it."""
    match = _PART.fullmatch(str(path))
    if match is None:
        return Path(path), None
    try:
        left, top, width, height = (float(side) / 100 for side in match.groups()[1:])
    except ValueError:
        return Path(path), None
    return Path(match[1]), (left, top, left + width, top + height)


def is_whole_file(path: str | Path) -> bool:
    """Whether an image is a file, and not a frame of a video or a part of a photo."""
    return split_part(path)[1] is None and split_frame(path)[1] is None


def on_disk(path: Path) -> Path:
    """The file that an image's path lies in: a video for its frames, a photo for its parts, else the path itself."""
    return split_frame(split_part(path)[0])[0]


def source_kind(path: Path) -> str:
    """VIDEO or RAW_PHOTO for an image that comes out of such a file, "" for a plain one."""
    suffix = on_disk(path).suffix.lower()
    return VIDEO if suffix in VIDEOS else RAW_PHOTO if suffix in RAW else ""


def is_raw(file: Path) -> bool:
    """Whether a file is a RAW photo, by its name."""
    return file.suffix.lower() in RAW


def is_text(name: str) -> bool:
    """Whether a file's name is UTF-8, which stores, tables and pages need."""
    return not any("\udc80" <= character <= "\udcff" for character in name)
