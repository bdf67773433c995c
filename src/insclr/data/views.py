"""Plain views of an image, for training, index and search alike.

Made with Pillow and numpy alone, since a search from the shell does not load torch. Every engine gets these pixels.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from insclr.data.decode import Box, crop_box

Fit = Literal["square", "longest", "thumbnail"]
Pixels = NDArray[np.uint8]  # (3, H, W) or (B, 3, H, W)
Images = NDArray[np.uint8] | NDArray[np.float32]  # (B, 3, H, W), 0..255


def descriptor_views(
    image: Image.Image, size: int, fit: Fit, *, zoom: float = 0.0, box: Box | None = None
) -> list[Pixels]:
    """The views (3, H, W) at scale 1 whose descriptors are averaged: the whole image, or the part inside `box`.

    A crop is scaled together with its image: its longest side becomes size x max(crop) / max(image), and it is never
    enlarged (the convention of cnnimageretrieval and of published numbers). Only with "square" it is squashed to
    size x size like any other view, because a network trained on squares of one size describes small ones badly.
    `zoom` adds a mirrored view of that share of each side about the centre, made from the pixels of `image`.
    """
    if box is not None:
        crop = crop_box(image, box)
        if fit != "square":
            size = min(max(1, size * max(crop.size) // max(image.size)), max(crop.size))
        image = crop
    views = [fit_image(image, size, fit)]
    if zoom:
        width, height = max(1, round(zoom * image.width)), max(1, round(zoom * image.height))
        left, top = (image.width - width) // 2, (image.height - height) // 2
        closer = image.crop((left, top, left + width, top + height))
        views.append(fit_image(closer, size, fit)[:, :, ::-1])
    return views


def fit_image(image: Image.Image, size: int, fit: Fit) -> Pixels:
    """An RGB image resized (bicubic, antialiased) to size x size, or so that its longest side is `size`.

    "thumbnail" is Pillow's: Lanczos, and a small image is not enlarged, as in published numbers.
    """
    if fit == "thumbnail":
        image = image.copy()
        image.thumbnail((size, size), Image.Resampling.LANCZOS, reducing_gap=None)
        return np.asarray(image).transpose(2, 0, 1)
    width, height = size, size
    if fit == "longest":
        scale = size / max(image.size)
        width, height = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    if image.size != (width, height):
        # One axis after the other: Pillow rounds between them, and Pillow 13 chooses their order by the shape.
        image = image.resize((width, image.height), Image.Resampling.BICUBIC)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image).transpose(2, 0, 1)


def at_scale(views: Images, scale: float) -> Images:
    """Views (B, 3, H, W) of scale 1 at another scale: bilinear, not antialiased, as cnnimageretrieval does.

    Scale 1 gives the views themselves, every other one float32 pixels.
    """
    if scale == 1:
        return views
    views = views.astype(np.float32)
    return _stretch(_stretch(views, scale, axis=2), scale, axis=3)


def _stretch(views: NDArray[np.float32], scale: float, axis: int) -> NDArray[np.float32]:
    side = views.shape[axis]
    # The smallest view keeps a pixel: sizes are rounded down.
    factor = max(scale, (1 + 1e-9) / side)
    centres = np.maximum((np.arange(int(side * factor)) + 0.5) / factor - 0.5, 0)
    before = np.minimum(centres.astype(np.int64), side - 1)
    after = np.minimum(before + 1, side - 1)
    shape = [1] * views.ndim
    shape[axis] = -1
    share = (centres - before).astype(np.float32).reshape(shape)
    low, high = np.take(views, before, axis), np.take(views, after, axis)
    return np.asarray(low + (high - low) * share, dtype=np.float32)
