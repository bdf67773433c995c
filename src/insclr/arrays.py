"""Types of the arrays that packages exchange."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Descriptors = NDArray[np.float32]  # (rows, dim), unit rows
Scores = NDArray[np.float32]
Boxes = NDArray[np.float32]  # (..., 4) left, top, right, bottom

MAX_REGIONS = 7  # of one image: with its own descriptor eight vectors


class Regions(NamedTuple):
    """Parts of one image with a descriptor each."""

    boxes: Boxes  # (regions, 4) left, top, right, bottom, as fractions of the image
    descriptors: Descriptors  # (regions, dim) unit rows


def no_regions(dim: int) -> Regions:
    """The regions of an image that has none."""
    return Regions(np.zeros((0, 4), np.float32), np.zeros((0, dim), np.float32))
