"""Thumbnails inside the page: every picture once, as a style that any number of tiles may use."""

import base64
import io
from pathlib import Path

from PIL import Image

from insclr.data.decode import BadImage, decode

SIDE = 96
_QUALITY = 72
_BUDGET = 2_200_000  # characters of all thumbnails together: the page stays light enough to mail


class Thumbnails:
    """Makes small JPEGs of the images under `root` on demand and names the CSS class that shows each."""

    def __init__(self, root: Path, budget: int = _BUDGET) -> None:
        self.root = root
        self._left = budget
        self._classes: dict[str, str] = {}
        self._rules: list[str] = []

    def css_class(self, path: str) -> str:
        """The class that shows the picture; empty where it cannot be read or the page is full."""
        if path not in self._classes:
            self._classes[path] = self._add(path)
        return self._classes[path]

    def css(self) -> str:
        """The rules of all classes handed out."""
        return "\n".join(self._rules)

    def _add(self, path: str) -> str:
        try:
            image = decode(self.root / path, longest=2 * SIDE)
        except BadImage:
            return ""
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=_QUALITY)
        text = base64.b64encode(stream.getvalue()).decode("ascii")
        if len(text) > self._left:
            return ""
        self._left -= len(text)
        name = f"t{len(self._rules)}"
        self._rules.append(f".{name}{{background-image:url(data:image/jpeg;base64,{text})}}")
        return name
