"""Render pages from the templates beside this file: each one HTML file with its style and thumbnails inside."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape
from PIL import Image

from insclr.data.decode import BadImage, Box, crop_box, decode
from insclr.files import whole_file


def write_page(file: Path, template: str, *, package: str = "insclr.report", **values: Any) -> None:
    """Fill a template of the package and write the page whole.

    Every value is escaped; a value the template lacks is an error.
    """
    html = _templates(package).get_template(template).render(values)
    with whole_file(file) as scratch:
        # File names may hold bytes that are not text: a page shows them as question marks.
        scratch.write_text(html, encoding="utf-8", errors="replace")


def count_noun(number: int, noun: str) -> str:
    """A number with its noun: 1 photo, 2,000 photos."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds for people: 43 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def mark_code(text: str) -> Markup:
    """Escaped text in which `commands` between backticks are set as code, broken at their spaces alone."""
    parts = []
    for place, part in enumerate(text.split("`")):
        if place % 2:
            words = (Markup("<span>{}</span>").format(word) for word in part.split())
            parts.append(Markup("<code>{}</code>").format(Markup(" ").join(words)))
        else:
            parts.append(escape(part))
    return Markup("").join(parts)


def _templates(package: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(one) for one in dict.fromkeys((package, "insclr.report"))]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count_noun"] = count_noun
    environment.filters["mark_code"] = mark_code
    return environment


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
