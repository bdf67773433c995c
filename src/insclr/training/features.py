"""Pooled features of a whole collection, computed once per backbone.

The ranks make blocks of them, which survive a kill; when all are there they become one file that is memory-mapped,
so that a million images cost no memory and the ranks of a node share the pages.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from insclr.data.augment import Augmentation
from insclr.data.formats import on_disk
from insclr.data.images import ImageList
from insclr.data.loader import DEFAULT_CROP, ViewSpec, view_batches
from insclr.data.skipped import Skipped
from insclr.data.workers import usable_cores
from insclr.engine.engine import Engine, Output
from insclr.errors import UserError
from insclr.files import whole_file
from insclr.model.backbones import FeatureMap
from insclr.model.network import DescriptorNetwork, digest_trunk, digest_weights
from insclr.progress import progress_bar
from insclr.ranks import Ranks
from insclr.training.cpu import computed_in

_BLOCK = 1024  # images a file
_BATCH = 32  # images a forward pass
_Rows = Callable[[Tensor], Tensor]  # images (B, 3, H, W) to rows (B, ...) in half precision on the CPU
_PLAIN, _VIEWS, _ABOUT = "plain.bin", "views.bin", "about.json"


@dataclass(frozen=True)
class PooledFeatures:
    """Pooled features, before the FC, of every readable image's plain view and of some augmented views."""

    plain: Tensor  # (S, C) float16
    views: Tensor  # (V, S, C) float16
    seen: Tensor  # (S,) ids of the images that could be read, ascending

    def of(self, ids: Tensor) -> "PooledFeatures":
        """The rows of the images `ids`, ascending; zero for one that could not be read this time."""
        if torch.equal(ids, self.seen):
            return self
        place = torch.searchsorted(self.seen, ids).clamp(max=len(self.seen) - 1)
        known = self.seen[place] == ids
        plain, views = self.plain[place], self.views[:, place]
        plain[~known], views[:, ~known] = 0, 0
        return PooledFeatures(plain, views, ids)


def pooled_features(
    network: DescriptorNetwork,
    images: ImageList,
    folder: Path,
    *,
    plain_size: int,
    augmented_size: int,
    views: int,
    crop: tuple[float, float] = DEFAULT_CROP,
    augmentation: Augmentation = "paper",
    seed: int,
    workers: int,
    skipped: Skipped,
    ranks: Ranks | None = None,
    maps: bool = False,
    engine: Engine | None = None,
    floats: torch.dtype | None = None,
    title: str = "describing",
) -> PooledFeatures:
    """Read the features from `folder`, computing what is not there yet; ranks share the work.

    With `maps` they are the flattened maps that enter the late layers, instead of pooled features. `engine` runs the
    network instead of torch; `floats` are the numbers that it computes in, None single precision.
    """
    ranks = ranks or Ranks()
    settings = f"{plain_size} {augmented_size} {views} {seed} {maps} 5"
    if crop != DEFAULT_CROP:
        settings += f" {crop}"
    if augmentation != "paper":
        settings += f" {augmentation}"
    settings += _arithmetic(engine, floats)
    key = ranks.from_first(_key(network, images, settings, maps) if ranks.first else None)
    home = folder / f"{'maps' if maps else 'features'}-{key}"
    if not ranks.from_first((home / _ABOUT).exists()):
        spec = ViewSpec(
            plain_size=plain_size,
            augmented_size=augmented_size,
            augmented=views,
            crop=crop,
            augmentation=augmentation,
        )
        blocks = [range(start, min(start + _BLOCK, len(images))) for start in range(0, len(images), _BLOCK)]
        missing = ranks.from_first([block for block in blocks if not _block(home, block.start).exists()])
        own = missing[ranks.rank :: ranks.world]
        total = sum(map(len, own)) if not ranks.alone else len(images)
        with progress_bar(title, total, done=total - sum(map(len, own))) as bar:
            for block in own:
                file = _block(home, block.start)
                with _rows_by(network, engine, maps, floats) as rows:
                    _write_block(file, rows, images, list(block), spec, seed, workers, bar.advance)
        ranks.barrier()
        if ranks.first:
            _join(home, [_block(home, block.start) for block in blocks], views)
        ranks.barrier()
    return _open(home, skipped)


def plain_features(
    network: DescriptorNetwork, images: ImageList, ids: list[int], size: int, workers: int, skipped: Skipped
) -> Tensor:
    """Pooled features (len(ids), C) of the plain views of consecutive images, as the network is now; kept nowhere.

    Half precision, on the CPU; zero for an image that cannot be read.
    """
    spec = ViewSpec(plain_size=size, augmented=0)
    with _rows_by(network, None, maps=False) as rows:
        return _describe(rows, images, ids, spec, 0, workers, skipped, lambda _: None)["plain"]


def _write_block(
    file: Path,
    rows: _Rows,
    images: ImageList,
    ids: list[int],
    spec: ViewSpec,
    seed: int,
    workers: int,
    advance: Callable[[int], None],
) -> None:
    skipped = Skipped()
    tensors = _describe(rows, images, ids, spec, seed, workers, skipped, advance)
    with whole_file(file) as scratch:
        safetensors.torch.save_file(tensors, scratch, {"skipped": json.dumps(list(skipped))})


def _join(home: Path, blocks: list[Path], views: int) -> None:
    """Make one file of all blocks, a block in memory at a time, and remove them."""
    try:
        _copy_blocks(home, blocks, views)
    except FileNotFoundError:
        # Another run that shares the cache may have joined and removed them in this moment.
        if not (home / _ABOUT).exists():
            raise
    for block in blocks:
        block.unlink(missing_ok=True)


def _copy_blocks(home: Path, blocks: list[Path], views: int) -> None:
    ids: list[int] = []
    skipped: list[list[str]] = []
    channels = 0
    with whole_file(home / _PLAIN) as scratch, scratch.open("wb") as file:
        for number, block in enumerate(blocks):
            with safetensors.safe_open(block, "pt") as stored:
                seen = stored.get_tensor("seen")
                ids += (seen.nonzero()[:, 0] + number * _BLOCK).tolist()
                skipped += json.loads(stored.metadata()["skipped"])
                plain = stored.get_tensor("plain")
                channels = plain.shape[1]
                file.write(plain[seen].numpy().tobytes())
    with whole_file(home / _VIEWS) as scratch, scratch.open("wb") as file:
        for view in range(views):
            for block in blocks:
                with safetensors.safe_open(block, "pt") as stored:
                    file.write(stored.get_tensor("views")[view, stored.get_tensor("seen")].numpy().tobytes())
    # Last, so that where it is the others are whole.
    with whole_file(home / _ABOUT) as scratch:
        scratch.write_text(
            json.dumps({"seen": ids, "views": views, "channels": channels, "skipped": skipped})
        )


def _open(home: Path, skipped: Skipped) -> PooledFeatures:
    try:
        return _mapped(home, skipped)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UserError(
            f"The cached features in {home} are damaged ({error}): delete that folder."
        ) from error


def _mapped(home: Path, skipped: Skipped) -> PooledFeatures:
    about: dict[str, Any] = json.loads((home / _ABOUT).read_text())
    for path, reason in about["skipped"]:
        skipped.add(path, reason)
    seen = torch.tensor(about["seen"], dtype=torch.int64)
    channels = about["channels"]
    plain = _map(home / _PLAIN, (len(seen), channels))
    return PooledFeatures(plain, _map(home / _VIEWS, (about["views"], len(seen), channels)), seen)


def _map(file: Path, shape: tuple[int, ...]) -> Tensor:
    size = torch.Size(shape).numel()
    if size == 0:
        return torch.empty(shape, dtype=torch.float16)
    # A private map: readers share the pages, and nobody can write to them by accident.
    return torch.from_file(str(file), shared=False, size=size, dtype=torch.float16).view(shape)


@contextmanager
def _rows_by(
    network: DescriptorNetwork, engine: Engine | None, maps: bool, floats: torch.dtype | None = None
) -> Iterator[_Rows]:
    """What makes rows of images: the network by torch, or an engine called by as many threads as it has cores."""
    if engine is None:
        yield partial(_by_torch, network.eval(), maps, floats)
        return
    with ThreadPoolExecutor(usable_cores()) as threads:
        yield partial(_by_engine, engine, threads, "early" if maps else "pooled")


@torch.inference_mode()
def _by_torch(network: DescriptorNetwork, maps: bool, floats: torch.dtype | None, images: Tensor) -> Tensor:
    images = images.to(network.device)
    with computed_in(floats, network.device):
        found = FeatureMap(network.backbone.early(images), None) if maps else network.backbone(images)
    found = found.single()
    return (found.map.flatten(1) if maps else network.pool(found)).half().cpu()


def _by_engine(engine: Engine, threads: ThreadPoolExecutor, output: Output, images: Tensor) -> Tensor:
    parts = [part.numpy() for part in images.split(engine.batch)]
    found = threads.map(lambda part: engine.run(part, (output,))[0], parts)
    return torch.cat([torch.from_numpy(rows).flatten(1).half() for rows in found])


def _describe(
    make_rows: _Rows,
    images: ImageList,
    ids: list[int],
    spec: ViewSpec,
    seed: int,
    workers: int,
    skipped: Skipped,
    advance: Callable[[int], None],
) -> dict[str, Tensor]:
    blank = torch.zeros(1, 3, spec.plain_size, spec.plain_size, dtype=torch.uint8)
    channels, first = make_rows(blank).shape[1], ids[0]
    plain = torch.zeros(len(ids), channels, dtype=torch.float16)
    views = torch.zeros(spec.augmented, len(ids), channels, dtype=torch.float16)
    seen = torch.zeros(len(ids), dtype=torch.bool)
    batches = [ids[i : i + _BATCH] for i in range(0, len(ids), _BATCH)]
    for batch in view_batches(
        images, batches, spec, seed=seed, workers=workers, skipped=skipped, first_batch=first // _BATCH
    ):
        assert batch.plain is not None
        # A replacement for an unreadable image may come from another block: it has its own row there.
        here = (batch.ids >= first) & (batch.ids < first + len(ids))
        rows = batch.ids[here] - first
        plain[rows] = make_rows(batch.plain[here])
        seen[rows] = True
        if batch.augmented is not None:
            for number, view in enumerate(batch.augmented):
                views[number, rows] = make_rows(view[here])
        advance(len(batch.ids))
    return {"plain": plain, "views": views, "seen": seen}


def _arithmetic(engine: Engine | None, floats: torch.dtype | None) -> str:
    """What computes, in which numbers, for the key.

    Engines agree to 1e-5, but a run is to end in the same weights however often it was resumed.
    """
    name = "" if engine is None else f" {engine.name}"
    # ONNX Runtime knows single precision only.
    return name if floats is None or name == " onnx" else f"{name} {floats}"


def _block(home: Path, start: int) -> Path:
    return home / f"block-{start // _BLOCK:05d}.safetensors"


def _key(network: DescriptorNetwork, images: ImageList, settings: str, maps: bool) -> str:
    """A name for exactly these weights, files and settings."""
    weights = digest_weights(network.backbone.early_state()) if maps else digest_trunk(network)
    digest = hashlib.sha256(f"{settings} {weights}".encode())
    for number, path in enumerate(images.paths):
        digest.update(path.encode())
        try:
            status = on_disk(images.file(number)).stat()
        except OSError:
            continue
        digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]
