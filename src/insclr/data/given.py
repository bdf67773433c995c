"""Convert the images that a Python caller gives (a folder, a list, paths, images in memory) to a list of images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from insclr.data.formats import is_text, on_disk
from insclr.data.images import ImageList, list_images
from insclr.errors import UserError

Picture: TypeAlias = Image.Image | NDArray[np.uint8]  # in memory; an array is (height, width[, 3])
Photo: TypeAlias = str | Path | Picture
Images: TypeAlias = str | Path | ImageList | Sequence[str | Path]

_LISTS = (".txt", ".csv", ".parquet")


def as_list(images: Images) -> ImageList:
    """The list of what was named; a single image or several paths are a list of just these."""
    if isinstance(images, ImageList):
        return images
    if isinstance(images, str | Path):
        path = Path(images).expanduser()
        if not is_single(path):
            return list_images(path)
        images = [path]
    paths = tuple(Path(one).expanduser().as_posix() for one in images)
    for one in paths:
        if not is_text(one):
            raise UserError(f"{one}: this name is not UTF-8 text. Rename the file.")
    if not paths:
        raise UserError("No images were given.")
    return ImageList(Path(), paths)


def is_single(path: Path) -> bool:
    """Whether this is one image and not a folder or list of them."""
    return path.suffix.lower() not in _LISTS and on_disk(path).is_file()


def in_memory(images: object) -> list[Image.Image] | None:
    """The images themselves where they are given instead of paths, as RGB."""
    if isinstance(images, Image.Image | np.ndarray):
        return [as_rgb(images)]
    if not is_several(images):
        return None
    given = list(images)
    inside = [isinstance(one, Image.Image | np.ndarray) for one in given]
    if any(inside) and not all(inside):
        raise UserError("Give either paths or images, not both in one call.")
    return [as_rgb(one) for one in given] if given and all(inside) else None


def is_several(given: object) -> TypeGuard[Sequence[Any]]:
    """Whether a caller gives several things, and not one path or image."""
    return isinstance(given, Sequence) and not isinstance(given, str)


def as_rgb(picture: Picture) -> Image.Image:
    """An image in memory as RGB."""
    if isinstance(picture, np.ndarray):
        refused = UserError(
            f"An array of {picture.dtype} {picture.shape} is no image: give uint8 (height, width, 3)."
        )
        if picture.dtype != np.uint8 or picture.ndim not in (2, 3):
            raise refused
        try:
            picture = Image.fromarray(picture)
        except (TypeError, ValueError):  # Pillow knows how many channels there may be
            raise refused from None
    if not (picture.width and picture.height):
        raise UserError(f"An image of {picture.width} x {picture.height} pixels is empty: leave it out.")
    return picture.convert("RGB")
