"""A small real describer for tests (colour histograms), and drawn pictures that it tells apart."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from insclr.arrays import Regions, no_regions
from insclr.data.camera_data import camera_columns
from insclr.data.decode import BadImage, Box, crop_box, decode, read_image_bytes
from insclr.data.images import ImageList, Skipped
from insclr.describe.describer import Describer
from insclr.describe.pipeline import Described
from insclr.files import content_hash


class HistogramDescriber(Describer):
    """Square roots of colour frequencies: unit vectors of 64 numbers."""

    name = "histogram"
    fingerprint = "0123456789abcdef"
    dim = 64
    longest = 2048
    size = 0

    def __init__(self) -> None:
        self.described: list[str] = []  # every path in the order of describing
        self._lock = threading.Lock()

    def files(
        self,
        images: ImageList,
        skipped: Skipped,
        *,
        regions: bool = False,
        known: Callable[[str], bool] = lambda _: False,
    ) -> Described:
        found = Described(
            np.zeros((len(images), self.dim), dtype=np.float32),
            [""] * len(images),
            [no_regions(self.dim)] * len(images),
        )
        for i, path in enumerate(images.paths):
            try:
                content = read_image_bytes(images.file(i))
                found.hashes[i] = content_hash(content)
                found.camera[i] = camera_columns(content)
                if known(found.hashes[i]):
                    continue
                self.described.append(path)
                picture = decode(content)
                found.descriptors[i] = self._vector(picture)
                if regions:
                    found.regions[i] = self._quarters(picture)
            except BadImage as bad:
                skipped.add(path, bad.reason)
                found.reasons[i] = bad.reason
        return found

    def images(
        self,
        images: Sequence[Image.Image],
        boxes: Sequence[Box | None] | None = None,
        *,
        own_size: bool = False,
    ) -> np.ndarray:
        del own_size
        parts = [
            crop_box(one, box) if box else one
            for one, box in zip(images, boxes or [None] * len(images), strict=True)
        ]
        with self._lock:
            return np.stack([self._vector(one) for one in parts])

    def _quarters(self, picture: Image.Image) -> Regions:
        boxes = np.array([(x, y, x + 0.5, y + 0.5) for y in (0, 0.5) for x in (0, 0.5)], np.float32)
        sides = np.array([*picture.size, *picture.size])
        parts = [crop_box(picture, tuple(box)) for box in (boxes * sides).tolist()]
        return Regions(boxes, np.stack([self._vector(one) for one in parts]))

    def _vector(self, picture: Image.Image) -> np.ndarray:
        bins = (np.asarray(picture).reshape(-1, 3) // 64) @ np.array([16, 4, 1])
        counts = np.bincount(bins, minlength=64).astype(np.float32)
        return np.sqrt(counts / counts.sum())


def draw(file: Path, thing: int, view: int, side: int = 48) -> None:
    """A picture of a thing: its two colours in changing shares, on a changing bit of background."""
    colours = np.random.default_rng(thing).integers(0, 256, (2, 3))
    generator = np.random.default_rng([thing, view])
    picture = np.empty((side, side, 3), dtype=np.uint8)
    picture[:] = colours[0]
    edge = int(generator.integers(side // 3, side // 2))
    picture[:, :edge] = colours[1]
    picture[: side // 6] = generator.integers(0, 256, 3)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(file)


def draw_things(folder: Path, things: int, views: int) -> list[str]:
    """`things` times `views` PNG files named thing/view.png."""
    paths = [f"{thing}/{view}.png" for thing in range(things) for view in range(views)]
    for path in paths:
        thing, view = path.removesuffix(".png").split("/")
        draw(folder / path, int(thing), int(view))
    return paths
