"""Features of a whole collection for training: computed once for a backbone, memory-mapped, shared by ranks and runs.

The ranks make blocks of them, which survive a kill. Then all blocks become one file that is mapped, so that a million
images cost no memory and the ranks of a node share the pages.
"""

import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from insclr.data.decode import BadImage
from insclr.data.images import ImageList, Skipped
from insclr.data.loader import Collection, ViewSpec, load_views
from insclr.data.workers import in_threads
from insclr.engine.choose import EngineOptions, NetworkSource, graph_maker, open_engine
from insclr.engine.engine import Engine, Output, images_at_once
from insclr.engine.torch_engine import TorchEngine
from insclr.errors import UserError
from insclr.files import system_error, whole_file
from insclr.model.device import computed_in, short_floats
from insclr.model.model_file import NetworkDigests, weights_of
from insclr.model.network import DescriptorNetwork
from insclr.progress import progress_bar
from insclr.ranks import Ranks
from insclr.recipe import NetworkRecipe

FEW_VIEWS = 600  # for fewer views an engine does not make up for the export
_BLOCK = 1024  # images a file
_BATCH = 32  # images decoded and described together; their random views depend on their place in it
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


class CollectionFeatures:
    """The features of a collection, by the engine of this name on a CPU, kept in a folder; ranks share the work."""

    def __init__(
        self, recipe: NetworkRecipe, collection: Collection, folder: Path, ranks: Ranks, engine: str = "torch"
    ) -> None:
        self.recipe = recipe
        self.collection = collection
        self.folder = folder
        self.ranks = ranks
        self.engine = engine
        self._digests = NetworkDigests(recipe)

    def read(
        self, network: DescriptorNetwork, views: ViewSpec, *, maps: bool = False, precision: str = "fp32"
    ) -> PooledFeatures:
        """Read the features of these views, computing those that are not there yet.

        With `maps` they are the flattened maps that enter the late layers, instead of pooled features.
        """
        ranks, images = self.ranks, self.collection.images
        floats = self.floats(network, precision)
        engine = self._open_engine(network, views, maps, floats)
        # Engines agree to 1e-5, but a run is to end in the same weights however often it was resumed.
        arithmetic = f"{engine.name} {None if engine.name == 'onnx' else floats}"
        key = ranks.from_first(
            self._key(f"6 {views} {maps} {arithmetic} {self.digest(network, early=maps)}")
            if ranks.first
            else None
        )
        home = self.folder / f"{'maps' if maps else 'features'}-{key}"
        if not ranks.from_first((home / _ABOUT).exists()):
            blocks = [
                range(start, min(start + _BLOCK, len(images))) for start in range(0, len(images), _BLOCK)
            ]
            missing = ranks.from_first([block for block in blocks if not _block(home, block.start).exists()])
            own = missing[ranks.rank :: ranks.world]
            total = sum(map(len, own)) if not ranks.alone else len(images)
            with progress_bar("describing", total, done=total - sum(map(len, own))) as bar:
                for block in own:
                    skipped = Skipped()
                    collection = Collection(images, self.collection.workers, skipped)
                    described = _describe(
                        engine, "early" if maps else "pooled", collection, block, views, bar.advance
                    )
                    with whole_file(_block(home, block.start)) as scratch:
                        about = {"skipped": json.dumps(list(skipped))}
                        safetensors.torch.save_file(described, scratch, about)
            ranks.barrier()
            if ranks.first:
                _join(home, [_block(home, block.start) for block in blocks], views.augmented)
            ranks.barrier()
        return _open(home, self.collection.skipped)

    def floats(self, network: DescriptorNetwork, precision: str) -> torch.dtype | None:
        """The numbers that the network computes in, the same for all ranks; None is single precision."""
        floats: torch.dtype | None = self.ranks.from_first(short_floats(precision, network.device))
        return floats

    def digest(self, network: DescriptorNetwork, *, early: bool = False) -> str:
        """The digest of all weights before the FC, or of the early layers."""
        return self._digests.of(network, early=early)

    def _key(self, made_by: str) -> str:
        """A name for exactly these weights, views, arithmetic and files."""
        return hashlib.sha256(f"{made_by} {self._files}".encode()).hexdigest()[:16]

    @cached_property
    def _files(self) -> str:
        """The digest of all files' paths, sizes and times, computed once a run."""
        return self.collection.images.digest()

    def _open_engine(
        self, network: DescriptorNetwork, views: ViewSpec, maps: bool, floats: torch.dtype | None
    ) -> Engine:
        """The engine for the network as it is now; all ranks take the same."""
        few = self.engine == "auto" and len(self.collection.images) * (1 + views.augmented) < FEW_VIEWS
        if few or network.device.type != "cpu" or self.engine == "torch":
            return _torch_engine(network, floats)
        graph = graph_maker(self.recipe, lambda: weights_of(network.state_dict()))
        source = NetworkSource(self.digest(network), lambda: network, graph=graph)

        def start(name: str) -> Engine:
            return open_engine(
                source,
                size=views.plain_size,
                options=EngineOptions(name, "cpu", bf16=floats == torch.bfloat16),
                kind="early" if maps else "trunk",
            )

        engine = start(self.engine) if self.ranks.first else None
        chosen = self.ranks.from_first(engine.name if engine else "")
        return _torch_engine(network, floats) if chosen == "torch" else engine or start(chosen)


def plain_features(network: DescriptorNetwork, collection: Collection, ids: range, size: int) -> Tensor:
    """Pooled features (len(ids), C) of the plain views of images, as the network is now; kept nowhere.

    Half precision, on the CPU; zero for an image that cannot be read.
    """
    views = ViewSpec(plain_size=size, augmented=0)
    return _describe(_torch_engine(network, None), "pooled", collection, ids, views, lambda _: None)["plain"]


def _torch_engine(network: DescriptorNetwork, floats: torch.dtype | None) -> Engine:
    return TorchEngine(network, autocast=partial(computed_in, floats, network.device))


def _describe(
    engine: Engine,
    output: Output,
    collection: Collection,
    ids: range,
    views: ViewSpec,
    advance: Callable[[int], None],
) -> dict[str, Tensor]:
    """Rows of plain (len(ids), C) and of augmented views (V, len(ids), C), and which images could be read."""
    batches = [ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH)]
    job = partial(_describe_batch, engine, output, collection.images, views)
    seen: list[int] = []
    found: list[Tensor] = []
    for batch, (rows, reasons) in zip(batches, in_threads(job, batches, collection.workers), strict=True):
        for i, reason in reasons.items():
            collection.skipped.add(collection.images.paths[i], reason)
        seen += [i - ids.start for i in batch if i not in reasons]
        if rows is not None:
            found.append(rows)
        advance(len(batch))
    channels = found[0].shape[2] if found else 0
    every = torch.zeros(1 + views.augmented, len(ids), channels, dtype=torch.float16)
    if found:
        every[:, seen] = torch.cat(found, dim=1)
    readable = torch.zeros(len(ids), dtype=torch.bool)
    readable[seen] = True
    return {"plain": every[0].contiguous(), "views": every[1:].contiguous(), "seen": readable}


def _describe_batch(
    engine: Engine, output: Output, images: ImageList, views: ViewSpec, ids: range
) -> tuple[Tensor | None, dict[int, str]]:
    """Rows (1 + V, readable images, C) in half precision, and why the other images cannot be read."""
    made, reasons = [], {}
    for place, i in enumerate(ids):
        try:
            made.append(load_views(images.file(i), views, f"0 {ids.start // _BATCH} {place}"))
        except BadImage as bad:
            reasons[i] = bad.reason
    if not made:
        return None, reasons
    found = [_run(engine, output, torch.stack([plain for plain, _ in made]))]
    augmented = torch.stack([augmented for _, augmented in made], dim=1)  # (V, images, 3, H, W)
    return torch.stack([*found, *(_run(engine, output, view) for view in augmented)]), reasons


def _run(engine: Engine, output: Output, images: Tensor) -> Tensor:
    step = images_at_once(engine, images.shape[2:])
    parts = (engine.run(part.numpy(), (output,))[0] for part in images.split(step))
    return torch.cat([torch.from_numpy(part).flatten(1).half() for part in parts])


def _join(home: Path, blocks: Sequence[Path], views: int) -> None:
    """Make one file of all blocks, a block in memory at a time, and remove them."""
    try:
        _copy_blocks(home, blocks, views)
    except FileNotFoundError:
        # Another run that shares the cache may have joined and removed them in this moment.
        if not (home / _ABOUT).exists():
            raise
    for block in blocks:
        block.unlink(missing_ok=True)


def _copy_blocks(home: Path, blocks: Sequence[Path], views: int) -> None:
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
                channels = max(channels, plain.shape[1])
                file.write(plain[seen].numpy().tobytes())
    if not ids:
        shutil.rmtree(home)
        raise UserError(
            f"none of the {len(skipped)} images can be read. `insclr check` tells the reason of each."
        )
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
        about: dict[str, Any] = json.loads((home / _ABOUT).read_text())
        for path, reason in about["skipped"]:
            skipped.add(path, reason)
        seen = torch.tensor(about["seen"], dtype=torch.int64)
        channels = about["channels"]
        plain = _map(home / _PLAIN, (len(seen), channels))
        return PooledFeatures(plain, _map(home / _VIEWS, (about["views"], len(seen), channels)), seen)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        of_system = system_error(error)
        if of_system is not None and of_system.errno != errno.ENOENT:
            raise of_system from error  # the next call may read them
        raise UserError(
            f"The cached features in {home} are damaged ({error}): delete that folder."
        ) from error


def _map(file: Path, shape: tuple[int, ...]) -> Tensor:
    size = torch.Size(shape).numel()
    if size == 0:
        return torch.empty(shape, dtype=torch.float16)
    # A private map: readers share the pages, and nobody can write to them by accident.
    return torch.from_file(str(file), shared=False, size=size, dtype=torch.float16).view(shape)


def _block(home: Path, start: int) -> Path:
    return home / f"block-{start // _BLOCK:05d}.safetensors"
