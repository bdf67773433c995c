"""Photo-like JPEG files for measurements: smooth shapes with fine texture, so that decoding costs what it does."""

from pathlib import Path

import numpy as np
from PIL import Image

from insclr.data.images import ImageList, list_images


def draw_photos(folder: Path, count: int, size: tuple[int, int] = (640, 480)) -> ImageList:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        chance = np.random.default_rng(number)
        shapes = Image.fromarray(chance.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        pixels = np.asarray(shapes.resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
        noisy = pixels + chance.normal(0, 12, (size[1], size[0], 1))
        Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(
            folder / f"{number:05d}.jpg", quality=88
        )
    return list_images(folder)
