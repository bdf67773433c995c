"""Attentive local descriptors (HOW, Tolias 2020): the strongest cells of the network's own map at two scales."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from insclr.arrays import Boxes, Descriptors
from insclr.data.decode import Box
from insclr.data.views import Fit, descriptor_views
from insclr.model.device import describing_autocast
from insclr.model.network import DescriptorNetwork
from insclr.retrieval.map_pooling import MapPooling, Maps

MapsOf = Callable[[Tensor], Maps]  # of views (batch, 3, H, W)

SCALES = (1.0, 2.0)  # multiples of the size at which the network describes whole images
MAX_CELLS = 100  # of one image
_SMOOTHING = 3  # cells: a cell is described with its neighbours, as HOW smooths its map


class Cells:
    """The strongest cells of one image."""

    def __init__(self, descriptors: Descriptors, boxes: Boxes) -> None:
        self.descriptors = descriptors  # (cells, dim) unit rows
        self.boxes = boxes  # (cells, 4) fractions of the image, or of the part that was looked at

    def __len__(self) -> int:
        return len(self.descriptors)


def image_cells(
    maps_of: MapsOf,
    pooling: MapPooling,
    images: Sequence[Image.Image],
    *,
    size: int,
    fit: Fit,
    boxes: Sequence[Box | None] | None = None,
    scales: Sequence[float] = SCALES,
    most: int = MAX_CELLS,
) -> list[Cells]:
    """The cells of RGB images, or of the parts of them inside boxes; `maps_of` runs the network on views."""
    found: list[list[_Scale]] = [[] for _ in images]
    parts = boxes or [None] * len(images)
    for scale in scales:
        views = [
            descriptor_views(image, round(size * scale), fit, box=box)[0]
            for image, box in zip(images, parts, strict=True)
        ]
        alike = len({view.shape for view in views}) == 1
        for places in [range(len(views))] if alike else [range(i, i + 1) for i in range(len(views))]:
            described = _described(maps_of(torch.stack([views[i] for i in places])), pooling)
            for i, one in zip(places, described, strict=True):
                found[i].append(one)
    return [_strongest(one, most) for one in found]


def maps_by(network: DescriptorNetwork) -> MapsOf:
    """The maps of views by torch."""

    @torch.inference_mode()
    def maps_of(views: Tensor) -> Maps:
        with describing_autocast(network.device):
            return np.asarray(network.backbone(views.to(network.device)).map.float().cpu().numpy())

    network.eval()
    return maps_of


class _Scale(NamedTuple):
    strengths: NDArray[np.float32]  # (cells,)
    descriptors: Descriptors  # (cells, dim)
    boxes: Boxes  # (cells, 4)


def _described(maps: Maps, pooling: MapPooling) -> list[_Scale]:
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
