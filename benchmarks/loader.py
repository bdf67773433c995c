"""The input side: two views of every photo from the loader, against decoding the photos and nothing else."""

import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from insclr.data.images import ImageList, Skipped
from insclr.data.loader import Collection, ViewSpec, view_batches
from photos import draw_photos
from table import Row
from timing import in_turns

_PHOTOS, _BATCH, _WORKERS = 256, 16, 2  # several batches for each worker
VIEWS = ViewSpec(plain_size=160, augmented_size=160)


def measure() -> list[Row]:
    rows = []
    for size in ((640, 480), (2048, 1536)):
        with tempfile.TemporaryDirectory() as scratch, ProcessPoolExecutor(_WORKERS) as processes:
            count = _PHOTOS if size[0] < 1000 else _PHOTOS // 4
            images = draw_photos(Path(scratch) / "photos", count, size)
            files = [images.file(i) for i in range(len(images))]
            times = in_turns(
                {
                    "bare": lambda files=files, pool=processes: list(  # type: ignore[misc]
                        pool.map(decode_alone, files, chunksize=8)
                    ),
                    "loader": lambda images=images: load(images),  # type: ignore[misc]
                },
                turns=5,
            )
        rows.append(
            Row(
                f"two views of {size[0]} x {size[1]} photos, 2 workers",
                f"{count / times['loader']:.0f} images/s",
                f"{count / times['bare']:.0f} images/s (Pillow decodes)",
                f"{times['bare'] / times['loader']:.2f} x",
            )
        )
    return rows


def decode_alone(file: Path) -> int:
    return np.asarray(Image.open(file).convert("RGB")).size


def load(images: ImageList) -> None:
    batches = [list(range(i, min(i + _BATCH, len(images)))) for i in range(0, len(images), _BATCH)]
    for _ in view_batches(Collection(images, _WORKERS, Skipped()), batches, VIEWS, seed=0):
        pass
