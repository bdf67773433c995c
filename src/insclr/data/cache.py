"""Decoded images kept on disk in one memory-mapped file, so that an epoch decodes nothing twice.

The system keeps the file's pages in free memory and shares them between workers, ranks and runs. Making the
views of a 200-pixel JPEG takes half the time with it, of a 12-megapixel one a twentieth or less; as building
it costs about an epoch's decoding, it pays wherever images are seen more than twice.
"""

import errno
import json
import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from insclr.data.decode import BadImage, decode
from insclr.data.formats import on_disk
from insclr.data.images import ImageList
from insclr.data.views import plain_view, to_pixels
from insclr.errors import UserError
from insclr.files import whole_folder
from insclr.progress import Bar, progress_bar

logger = logging.getLogger(__name__)

_PIXELS, _INDEX = "pixels.bin", "index.json"
_CHUNK = 64  # images decoded between two writes
_SPARED = 0.1  # share of the free disk space that the cache leaves alone


class _Entry(NamedTuple):
    """A file as it was when the cache was built, and where its image lies (height 0: it is not kept)."""

    modified: int  # ns
    size: int  # bytes
    offset: int = 0
    height: int = 0
    width: int = 0

    def still_of(self, file: Path) -> bool:
        """Whether the file is unchanged since."""
        return self[:2] == _stamp(file)


class DecodedCache:
    """Upright RGB images, no side longer than `longest`, of files that have not changed since."""

    def __init__(self, folder: Path) -> None:
        """Open what `build_cache` wrote; a damaged one raises ValueError, KeyError, TypeError or OSError."""
        self.folder = folder
        index = json.loads((folder / _INDEX).read_text())
        self.longest: int = index["longest"]
        self.max_bytes: int = index["max_bytes"]
        self._entries = {path: _Entry(*entry) for path, entry in index["entries"].items()}
        size = (folder / _PIXELS).stat().st_size
        if size != index["bytes"]:
            raise ValueError(f"{_PIXELS} has {size} bytes instead of {index['bytes']}")
        # A private map: readers share the pages, and nobody can write to them by accident.
        self._pixels = torch.from_file(str(folder / _PIXELS), shared=False, size=size, dtype=torch.uint8)

    def __reduce__(self) -> tuple[type["DecodedCache"], tuple[Path]]:
        return DecodedCache, (self.folder,)

    def __len__(self) -> int:
        """How many images are kept."""
        return sum(entry.height > 0 for entry in self._entries.values())

    def __contains__(self, file: Path) -> bool:
        return self._kept(file) is not None

    def pixels(self, file: Path) -> Tensor:
        """The image of `file` as uint8 (3, H, W), decoded anew if it is not here or has changed.

        Both ways give the same pixels. Raises BadImage where the file gives none.
        """
        kept = self._kept(file)
        return _decoded(file, self.longest) if kept is None else kept

    def covers(self, images: ImageList, longest: int, max_bytes: int) -> bool:
        """Whether a new build for these images would give just this cache."""
        if (self.longest, self.max_bytes, len(self._entries)) != (longest, max_bytes, len(images)):
            return False
        files = (_absolute(images, i) for i in range(len(images)))
        return all((e := self._entries.get(str(f))) is not None and e.still_of(f) for f in files)

    def _kept(self, file: Path) -> Tensor | None:
        entry = self._entries.get(str(file.absolute()))
        if entry is None or not entry.height or not entry.still_of(file):
            return None
        end = entry.offset + 3 * entry.height * entry.width
        return self._pixels[entry.offset : end].view(entry.height, entry.width, 3).permute(2, 0, 1)


def build_cache(
    images: ImageList, folder: Path, *, longest: int, max_bytes: int, workers: int = 2
) -> DecodedCache:
    """Keep the decoded `images` in `folder`, in their order, up to `max_bytes` or what the disk can spare.

    A cache that is there already is used as it is where no file has changed; else what is still good in it is
    taken over, and the rest decoded.
    """
    old = _open(folder)
    if old is not None and old.covers(images, longest, max_bytes):
        return old
    reusable = old if old is not None and old.longest == longest else None
    folder.parent.mkdir(parents=True, exist_ok=True)
    room = min(max_bytes, int((1 - _SPARED) * shutil.disk_usage(folder.parent).free))
    try:
        with whole_folder(folder) as scratch, progress_bar("decoding", len(images)) as bar:
            decoded = _decode_all(images, longest, reusable, workers)
            entries = _write(images, decoded, scratch / _PIXELS, room, bar)
            written = (scratch / _PIXELS).stat().st_size
            index = {"longest": longest, "max_bytes": max_bytes, "bytes": written, "entries": entries}
            (scratch / _INDEX).write_text(json.dumps(index))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UserError(f"the disk of {folder} is full: free some space or give the cache less.") from error
    return DecodedCache(folder)


def _open(folder: Path) -> DecodedCache | None:
    if not folder.exists():
        return None
    try:
        return DecodedCache(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("cache %s cannot be read (%s): building it anew", folder, error)
        return None


def _decode_all(
    images: ImageList, longest: int, reusable: DecodedCache | None, workers: int
) -> Iterator[tuple[_Entry, Tensor | None]]:
    """All images decoded, in order, None for the unreadable; decoding leaves Python, so threads do."""

    def decode_one(i: int) -> tuple[_Entry, Tensor | None]:
        file = images.file(i)
        # Stamped before it is decoded: a file that changes meanwhile is then seen as changed.
        entry = _Entry(*_stamp(file))
        try:
            return entry, reusable.pixels(file) if reusable is not None else _decoded(file, longest)
        except BadImage:
            return entry, None

    with ThreadPoolExecutor(max(1, workers)) as threads:
        for start in range(0, len(images), _CHUNK):
            yield from threads.map(decode_one, range(start, min(start + _CHUNK, len(images))))


def _write(
    images: ImageList, decoded: Iterator[tuple[_Entry, Tensor | None]], target: Path, room: int, bar: Bar
) -> dict[str, _Entry]:
    """Append images to `target` until one does not fit into `room` bytes; an entry for every image."""
    entries: dict[str, _Entry] = {}
    offset, full = 0, False
    with target.open("wb") as pixels_file:
        for i in range(len(images)):
            file = _absolute(images, i)
            entry, image = (_Entry(*_stamp(file)), None) if full else next(decoded)
            if image is not None:
                full = offset + image.numel() > room
                if not full:
                    _, height, width = image.shape
                    entry = entry._replace(offset=offset, height=height, width=width)
                    pixels_file.write(image.permute(1, 2, 0).contiguous().numpy().data)
                    offset += image.numel()
            entries[str(file)] = entry
            bar.advance()
        if not offset:
            pixels_file.write(b"\0")  # an empty file cannot be mapped
    if full:
        kept = sum(entry.height > 0 for entry in entries.values())
        logger.warning("the cache is full: it keeps %d of %d images", kept, len(images))
    return entries


def _decoded(file: Path, longest: int) -> Tensor:
    pixels = to_pixels(decode(file, longest))
    return plain_view(pixels, longest, "longest") if max(pixels.shape[1:]) > longest else pixels


def _absolute(images: ImageList, i: int) -> Path:
    return images.file(i).absolute()


def _stamp(file: Path) -> tuple[int, int]:
    try:
        status = on_disk(file).stat()
    except OSError:
        return 0, -1
    return status.st_mtime_ns, status.st_size
