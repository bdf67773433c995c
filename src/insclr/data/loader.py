"""Load batches of training views in worker processes."""

import hashlib
import itertools
import logging
import multiprocessing
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from insclr.data.augment import augmented_view, find_augmentation
from insclr.data.decode import BadImage, decode
from insclr.data.images import ImageList, Skipped
from insclr.data.views import fit_image
from insclr.errors import UserError

logger = logging.getLogger(__name__)

DEFAULT_CROP = (0.4, 1.0)  # the paper's
_PREFETCH = 2  # batches that each worker keeps ready
_DRAWS = 64  # random replacements tried before every image is tried in turn
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class ViewSpec:
    """Which views of every image a batch holds: its plain view or none, and so many augmented ones."""

    plain_size: int = 512
    augmented_size: int = 224
    plain: bool = True
    augmented: int = 1
    crop: tuple[float, float] = DEFAULT_CROP  # share of the image's area in an augmented view
    augmentation: str = "paper"  # what is done to its colours

    @property
    def longest(self) -> int:
        """Longest side that images need for these views.

        Half as much again as the largest view: then neither the smallest crop (0.63 of a side) nor squashing
        a 3:2 image has to enlarge.
        """
        plain = self.plain_size if self.plain else 0
        return round(1.5 * max(plain, self.augmented_size if self.augmented else 0))

    @property
    def bytes_per_image(self) -> int:
        """Size of all views of one image."""
        plain = 3 * self.plain_size**2 if self.plain else 0
        return plain + 3 * self.augmented_size**2 * self.augmented


@dataclass(frozen=True)
class ViewBatch:
    """Views of a batch of images, uint8."""

    ids: Tensor  # (B,) int64: the images that are really there, after replacements
    plain: Tensor | None  # (B, 3, plain_size, plain_size)
    augmented: Tensor | None  # (V, B, 3, augmented_size, augmented_size)


@dataclass(frozen=True)
class Collection:
    """Images, how many workers decode them, and what could not be read."""

    images: ImageList
    workers: int
    skipped: Skipped


def load_views(file: Path, views: ViewSpec, key: str) -> tuple[Tensor, Tensor]:
    """The plain view (3, H, W), empty where none is wanted, and the augmented ones (V, 3, H, W), uint8.

    The image is decoded once for all of them. What is drawn at random depends on the key alone. BadImage where it
    cannot be read.
    """
    image = decode(file, views.longest)
    plain = fit_image(image, views.plain_size, "square") if views.plain else np.empty(0, np.uint8)
    pixels, generator = torch.from_numpy(np.array(image)).permute(2, 0, 1), make_generator(key)
    size = views.augmented_size
    augmented = torch.empty(views.augmented, 3, size, size, dtype=torch.uint8)
    recolour = find_augmentation(views.augmentation)
    for number in range(views.augmented):
        view = augmented_view(pixels, size, generator, views.crop)
        augmented[number] = recolour(view, number, generator) if recolour else view
    return torch.from_numpy(np.array(plain)), augmented


def view_batches(
    collection: Collection,
    batches: Iterable[list[int]],
    views: ViewSpec,
    *,
    seed: int,
    first_batch: int = 0,
    first_position: int = 0,
) -> Iterator[ViewBatch]:
    """Give the views of every batch of image ids, in order; `batches` may be endless and is read ahead.

    Each image is decoded once for all its views. What is drawn depends on (seed, number of the batch, position
    in it) alone: neither on the number of workers, nor on where a resumed run begins (`first_batch`), nor on
    how a batch is split over processes (`first_position` of a part). An unreadable image goes to `skipped`,
    and another one takes its place.
    """
    batches, images = iter(batches), collection.images
    first = next(batches, None)
    if first is None:
        return
    workers = affordable_workers(collection.workers, len(first) * views.bytes_per_image)
    loader: DataLoader[_Made] = DataLoader(
        _Batches(images, views, seed, first_position),
        batch_size=None,
        sampler=enumerate(itertools.chain([first], batches), start=first_batch),
        num_workers=workers,
        prefetch_factor=_PREFETCH if workers else None,
        worker_init_fn=begin_worker,
        multiprocessing_context=_context() if workers else None,
        # Without a generator of its own, the loader would take a draw from the global one.
        generator=torch.Generator(),
    )
    with _hide_script():
        made = iter(loader)
    for batch, failures in made:
        for i, reason in failures:
            collection.skipped.add(images.paths[i], reason)
        if batch is None:
            raise UserError(
                f"none of the {len(images)} images in {images.root} can be read. "
                "`insclr check` lists the reason of each."
            )
        yield batch


def _context() -> Any:
    """Workers come from a small server process: this one may have threads, whose locks a fork would copy held."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@contextmanager
def _hide_script() -> Iterator[None]:
    """Have new processes not run the user's script again, which need not guard its lines against that."""
    script = sys.modules["__main__"].__dict__
    kept = {name: script.get(name) for name in ("__spec__", "__file__")}
    script.update(dict.fromkeys(kept))
    try:
        yield
    finally:
        script.update(kept)


# What a worker sends: the batch (None when no image at all can be read) and what it could not read.
_Made = tuple[ViewBatch | None, list[tuple[int, str]]]


class _Batches(Dataset[_Made]):
    """Makes the batch of a (number, ids) pair; lives in every worker."""

    def __init__(self, images: ImageList, views: ViewSpec, seed: int, first_position: int) -> None:
        self.images = images
        self.views = views
        self.seed = seed
        self.first_position = first_position
        self.unreadable: dict[int, str] = {}  # so that no worker tries a broken file twice

    def __getitem__(self, numbered: tuple[int, list[int]]) -> _Made:
        number, wanted = numbered
        ids, failures, made = list(wanted), list[tuple[int, str]](), list[tuple[Tensor, Tensor]]()
        for position in range(len(ids)):
            key = f"{self.seed} {number} {self.first_position + position}"
            found = self._load(position, ids, key, failures)
            if found is None:
                return None, failures
            made.append(found)
        batch = ViewBatch(
            torch.tensor(ids, dtype=torch.int64),
            torch.stack([plain for plain, _ in made]) if self.views.plain else None,
            torch.stack([augmented for _, augmented in made], dim=1) if self.views.augmented else None,
        )
        return batch, failures

    def _load(
        self, position: int, ids: list[int], key: str, failures: list[tuple[int, str]]
    ) -> tuple[Tensor, Tensor] | None:
        """The views of the image at `position`, or of the first replacement that is readable, noted in `ids`."""
        for i in itertools.chain([ids[position]], _replacements(len(self.images), ids, key)):
            if i not in self.unreadable:
                try:
                    views = load_views(self.images.file(i), self.views, key)
                except BadImage as bad:
                    self.unreadable[i] = bad.reason
                else:
                    ids[position] = i
                    return views
            failures.append((i, self.unreadable[i]))
        return None


def make_generator(key: str) -> torch.Generator:
    """A generator whose stream is its own for every key, however alike two keys are."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little", signed=True))


def _replacements(n: int, ids: list[int], key: str) -> Iterator[int]:
    """Images to try in place of an unreadable one: chance picks first, those of the batch last."""
    taken = set(ids)
    draws = torch.randint(n, (_DRAWS,), generator=make_generator(f"{key} replacement")).tolist()
    for i in itertools.chain(draws, range(n)):
        if i not in taken:
            yield i
    yield from sorted(taken)


def affordable_workers(workers: int, batch_bytes: int) -> int:
    """As many of the workers as shared memory has room for: containers often give little of it."""
    if not workers or not _SHARED_MEMORY.is_dir():
        return workers
    room = int(0.9 * shutil.disk_usage(_SHARED_MEMORY).free / max(1, batch_bytes))  # batches
    # Besides the batches in the queue, each worker makes one and the network holds one.
    fitting = min(workers, max(0, room - 1) // (_PREFETCH + 1))
    if fitting < workers:
        logger.warning(
            "%s has room for %d of %d workers' batches: using %d (in Docker, raise --shm-size)",
            *(_SHARED_MEMORY, fitting, workers, fitting),
        )
    return fitting


def begin_worker(_: int) -> None:
    """Leave the cores to the network, and the signals to the main process, which ends its workers in order.

    A terminal sends Ctrl-C to the workers too, a service manager SIGTERM. They also end when their parent is gone.
    """
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
