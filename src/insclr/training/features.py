"""Pooled features of a whole collection, computed once per backbone and kept in blocks that survive a kill."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from insclr.atomic import whole_file
from insclr.data.images import ImageList
from insclr.data.loader import ViewSpec, view_batches
from insclr.data.skipped import Skipped
from insclr.model.network import DescriptorNetwork
from insclr.progress import progress_bar

_BLOCK = 1024  # images a file
_BATCH = 32  # images a forward pass


@dataclass(frozen=True)
class PooledFeatures:
    """Unit pooled features, before the FC, of every image's plain view and of some augmented views."""

    plain: Tensor  # (N, C) float16
    views: Tensor  # (V, N, C) float16
    seen: Tensor  # (N,) bool: False where the image could not be read


def pooled_features(
    network: DescriptorNetwork,
    images: ImageList,
    folder: Path,
    *,
    plain_size: int,
    augmented_size: int,
    views: int,
    seed: int,
    workers: int,
    skipped: Skipped,
    title: str = "describing",
) -> PooledFeatures:
    """Read the features from `folder`, computing the blocks that are not there yet."""
    key = _key(network, images, f"{plain_size} {augmented_size} {views} {seed}")
    home = folder / f"features-{key}"
    starts = range(0, len(images), _BLOCK)
    missing = [start for start in starts if not _block(home, start).exists()]
    if missing:
        spec = ViewSpec(plain_size=plain_size, augmented_size=augmented_size, augmented=views)
        with progress_bar(title, len(images), done=(len(starts) - len(missing)) * _BLOCK) as bar:
            for start in missing:
                ids = list(range(start, min(start + _BLOCK, len(images))))
                tensors = _describe(network, images, ids, spec, seed, workers, skipped, bar.advance)
                with whole_file(_block(home, start)) as scratch:
                    safetensors.torch.save_file(tensors, scratch)
    blocks = [safetensors.torch.load_file(_block(home, start)) for start in starts]
    return PooledFeatures(
        torch.cat([block["plain"] for block in blocks]),
        torch.cat([block["views"] for block in blocks], dim=1),
        torch.cat([block["seen"] for block in blocks]),
    )


@torch.inference_mode()
def _describe(
    network: DescriptorNetwork,
    images: ImageList,
    ids: list[int],
    spec: ViewSpec,
    seed: int,
    workers: int,
    skipped: Skipped,
    advance: Callable[[int], None],
) -> dict[str, Tensor]:
    network.eval()
    device = next(network.parameters()).device
    channels, first = network.backbone.channels, ids[0]
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
        plain[rows] = network.pooled(batch.plain[here].to(device)).half().cpu()
        seen[rows] = True
        if batch.augmented is not None:
            for number, view in enumerate(batch.augmented):
                views[number, rows] = network.pooled(view[here].to(device)).half().cpu()
        advance(len(batch.ids))
    return {"plain": plain, "views": views, "seen": seen}


def _block(home: Path, start: int) -> Path:
    return home / f"block-{start // _BLOCK:05d}.safetensors"


def _key(network: DescriptorNetwork, images: ImageList, settings: str) -> str:
    """A name for exactly these weights, files and settings."""
    digest = hashlib.sha256(settings.encode())
    for part in (network.backbone, network.pooling):
        for name, tensor in sorted(part.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for number, path in enumerate(images.paths):
        digest.update(path.encode(errors="surrogateescape"))
        try:
            status = images.file(number).stat()
        except OSError:
            continue
        digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]
