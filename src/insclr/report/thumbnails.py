"""Thumbnails inside a page: every image once, as a style that any number of tiles may use."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from insclr.data.decode import BadImage, Box, crop_box, decode

SIDE = 96
_QUALITY = 72
_BUDGET = 2_200_000  # characters of all thumbnails together: the page stays light enough to mail


@dataclass(frozen=True)
class Tile:
    """An image on a page, with its frame and captions."""

    path: str
    thumbnail: str  # the CSS class that shows it; empty where there is none
    kind: str = ""  # right, wrong, missed, taken or left: its frame
    symbol: str = ""
    caption: str = ""
    title: str = ""  # shown under the pointer
    badge: str = ""


@dataclass(frozen=True)
class TileGroup:
    """Tiles under a common title."""

    title: str
    tiles: list[Tile]
    more: str = ""  # text after the tiles
    ap: float | None = None  # average precision of a ranking, drawn as a bar beside the title


@dataclass(frozen=True)
class Sample:
    """An image with groups of others: a tuple and its positives, or a query and its results."""

    path: str
    thumbnail: str
    groups: list[TileGroup]
    name: str = ""


class Thumbnails:
    """Makes small JPEGs of the images under `root` on demand and names the CSS class that shows each."""

    def __init__(self, root: Path, *, side: int = SIDE, budget: int = _BUDGET) -> None:
        self.root = root
        self.jpegs: dict[str, str] = {}  # base64 by CSS class
        self._side = side
        self._left = budget
        self._classes: dict[tuple[str, Box | None], str] = {}

    def css_class(self, path: str, box: Box | None = None) -> str:
        """The class that shows the image, or the part of it in `box`.

        Empty where it cannot be read, or the page is full.
        """
        if (path, box) not in self._classes:
            self._classes[path, box] = self._add(path, box)
        return self._classes[path, box]

    def _add(self, path: str, box: Box | None) -> str:
        try:
            # A box counts in pixels of the file, so that image is decoded whole.
            image = decode(self.root / path, longest=None if box else 2 * self._side)
        except BadImage:
            return ""
        image = crop_box(image, box) if box else image
        image.thumbnail((self._side, self._side), Image.Resampling.LANCZOS)
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=_QUALITY)
        text = base64.b64encode(stream.getvalue()).decode("ascii")
        if len(text) > self._left:
            return ""
        self._left -= len(text)
        name = f"t{len(self.jpegs)}"
        self.jpegs[name] = text
        return name
