"""Attentive local descriptors (HOW, Tolias 2020): the strongest cells of the network's own map at two scales."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from insclr.arrays import Boxes, Descriptors
from insclr.data.decode import Box
from insclr.data.views import descriptor_views
from insclr.describe.map_features import MapPooling, Maps, map_pooling
from insclr.describe.pipeline import images_at_once
from insclr.engine.opened import OpenedModel

SCALES = (1.0, 2.0)  # multiples of the size at which the network describes whole images
MAX_CELLS = 100  # of one image
_SMOOTHING = 3  # cells: a cell is described with its neighbours, as HOW smooths its map


class Cells:
    """The strongest cells of one image."""

    def __init__(self, descriptors: Descriptors, boxes: Boxes) -> None:
        self.descriptors = descriptors  # (cells, dim) unit rows
        self.boxes = boxes  # (cells, 4) fractions of the image, or of the part that was described

    def __len__(self) -> int:
        return len(self.descriptors)


def image_cells(
    model: OpenedModel,
    images: Sequence[Image.Image],
    boxes: Sequence[Box | None] | None = None,
    scales: Sequence[float] = SCALES,
    most: int = MAX_CELLS,
) -> list[Cells]:
    """The cells of RGB images, or of the parts of them inside boxes, at multiples of the model's own size."""
    wanted, pooling = model.descriptor, map_pooling(model)
    engine = model.engine_for(wanted.with_(scales=tuple(scales)))
    found: list[list[_Scale]] = [[] for _ in images]
    parts = boxes or [None] * len(images)
    for scale in scales:
        views = [
            descriptor_views(image, round(wanted.size * scale), wanted.fit, box=box)[0]
            for image, box in zip(images, parts, strict=True)
        ]
        alike = len({view.shape for view in views}) == 1
        step = images_at_once(views[0].shape[1:]) if alike else 1
        for start in range(0, len(views), step):
            (maps,) = engine.run(np.stack(views[start : start + step]), ("map",))
            for i, one in enumerate(_describe_cells(maps, pooling), start):
                found[i].append(one)
    return [_strongest(one, most) for one in found]


class _Scale(NamedTuple):
    strengths: NDArray[np.float32]  # (cells,)
    descriptors: Descriptors  # (cells, dim)
    boxes: Boxes  # (cells, 4)


def _describe_cells(maps: Maps, pooling: MapPooling) -> list[_Scale]:
    """The cells of every map, each described with its neighbours."""
    height, width = maps.shape[-2:]
    strengths = np.linalg.norm(maps, axis=1).reshape(len(maps), -1)  # (batch, cells): the attention of HOW
    around = _SMOOTHING // 2
    padded = np.pad(maps, ((0, 0), (0, 0), (around, around), (around, around)), mode="edge")
    squares = [(top, left, _SMOOTHING) for top in range(height) for left in range(width)]
    descriptors = pooling.squares(padded, squares)  # (batch, cells, dim)
    corners = np.array([(left, top, left + 1, top + 1) for top, left, _ in squares], np.float32)
    boxes = np.asarray(corners / np.array([width, height, width, height]), np.float32)
    return [_Scale(one, described, boxes) for one, described in zip(strengths, descriptors, strict=True)]


def _strongest(scales: Sequence[_Scale], most: int) -> Cells:
    strengths, descriptors, boxes = (np.concatenate(parts) for parts in zip(*scales, strict=True))
    chosen = np.argsort(-strengths, kind="stable")[:most]
    return Cells(descriptors[chosen], boxes[chosen])
