"""Attentive local descriptors (HOW, Tolias 2020): the strongest cells of the network's own map at two scales."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from insclr.arrays import Boxes, Descriptors
from insclr.data.decode import Box
from insclr.data.views import Fit, descriptor_views
from insclr.model.device import describing_autocast
from insclr.model.network import DescriptorNetwork

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


@torch.inference_mode()
def image_cells(
    network: DescriptorNetwork,
    images: Sequence[Image.Image],
    *,
    size: int,
    fit: Fit,
    boxes: Sequence[Box | None] | None = None,
    scales: Sequence[float] = SCALES,
    most: int = MAX_CELLS,
) -> list[Cells]:
    """The cells of RGB images, or of the parts of them inside boxes."""
    network.eval()
    found: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in images]
    parts = boxes or [None] * len(images)
    with describing_autocast(network.device):
        for scale in scales:
            views = [
                descriptor_views(image, round(size * scale), fit, box=box)[0]
                for image, box in zip(images, parts, strict=True)
            ]
            alike = len({view.shape for view in views}) == 1
            for places in [range(len(views))] if alike else [range(i, i + 1) for i in range(len(views))]:
                stack = torch.stack([views[i] for i in places]).to(network.device)
                described = _described(network, network.backbone(stack).map)
                for i, one in zip(places, described, strict=True):
                    found[i].append(one)
    return [_strongest(one, most) for one in found]


def _described(network: DescriptorNetwork, maps: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of every map (batch, channels, height, width): strengths (cells,), descriptors (cells, dim), boxes."""
    batch, channels, height, width = maps.shape
    maps = maps.float()
    strengths = maps.norm(dim=1).flatten(1)  # (batch, cells): the attention of HOW
    around = functional.avg_pool2d(
        maps.clamp(min=1e-6).pow(3), _SMOOTHING, stride=1, padding=_SMOOTHING // 2, count_include_pad=False
    ).pow(1 / 3)
    cells = around.flatten(2).transpose(1, 2).reshape(-1, channels)  # (batch x cells, channels)
    unit = functional.normalize(cells, dim=1) if network.normalise_pooled else cells
    descriptors = network.head(unit).float().cpu().view(batch, height * width, -1)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    corners = torch.stack([columns, rows, columns + 1, rows + 1], -1).reshape(-1, 4)
    boxes = corners / torch.tensor([width, height, width, height])
    return [(one, described, boxes) for one, described in zip(strengths.cpu(), descriptors, strict=True)]


def _strongest(scales: Sequence[tuple[Tensor, Tensor, Tensor]], most: int) -> Cells:
    strengths, descriptors, boxes = (torch.cat(parts) for parts in zip(*scales, strict=True))
    chosen = strengths.argsort(descending=True, stable=True)[:most]
    return Cells(
        np.asarray(descriptors[chosen].numpy(), np.float32), np.asarray(boxes[chosen].numpy(), np.float32)
    )
