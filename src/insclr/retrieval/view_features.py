"""A describer that keeps what comes before the last layer: a model that changed only there needs no image again."""

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from insclr.arrays import Descriptors
from insclr.data.decode import BadImage, decode, read_image_bytes
from insclr.data.images import ImageList
from insclr.data.skipped import Skipped
from insclr.data.views import at_scale, descriptor_views
from insclr.files import content_hash
from insclr.model.device import describing_autocast
from insclr.model.model_file import Model
from insclr.retrieval.describer import ModelDescriber
from insclr.retrieval.store import Regions
from insclr.retrieval.store.database import connect, explained

_BATCH = 32  # views a forward pass
_SCHEMA = "CREATE TABLE IF NOT EXISTS features (hash TEXT PRIMARY KEY, rows BLOB NOT NULL)"


class FeatureDescriber(ModelDescriber):
    """Describes files as `ModelDescriber` does, and keeps the pooled features of their views by content.

    They are in half precision, in a database named by the weights that made them. Regions come from whole maps, which
    are not kept, nor are features at another `size` than the model's own: such files are always described anew.
    """

    def __init__(self, name: str, model: Model, folder: Path, workers: int = -1, size: int = 0) -> None:
        super().__init__(name, model, workers, size)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"views-{_digest(model)}.sqlite"

    def files(
        self, images: ImageList, skipped: Skipped, regions: list[Regions] | None = None
    ) -> tuple[Descriptors, list[str]]:
        """Unit descriptors (images, dim) and content hashes; the row of an unreadable file is zero."""
        if regions is not None or self.size:
            return super().files(images, skipped, regions)
        descriptors = np.zeros((len(images), self.dim), dtype=np.float32)
        hashes = [""] * len(images)
        with explained(self._file), closing(connect(self._file)) as rows:
            rows.execute(_SCHEMA)
            for start in range(0, len(images), _BATCH):
                part = range(start, min(start + _BATCH, len(images)))
                contents = self._contents(images, part, skipped)
                hashes[part.start : part.stop] = [
                    content_hash(contents[i]) if i in contents else "" for i in part
                ]
                kept = self._kept(rows, [one for one in hashes[part.start : part.stop] if one])
                found = self._computed(
                    images, {i: contents[i] for i in contents if hashes[i] not in kept}, skipped
                )
                rows.executemany(
                    "INSERT OR IGNORE INTO features VALUES (?, ?)",
                    [(hashes[i], features.numpy().tobytes()) for i, features in found.items()],
                )
                kept |= {hashes[i]: features for i, features in found.items()}
                for i in contents:
                    if hashes[i] in kept:
                        descriptors[i] = self._described(kept[hashes[i]])
        return descriptors, hashes

    def _contents(self, images: ImageList, part: range, skipped: Skipped) -> dict[int, bytes]:
        contents = {}
        for i in part:
            try:
                contents[i] = read_image_bytes(images.file(i))
            except BadImage as bad:
                skipped.add(images.paths[i], bad.reason)
            except OSError as error:
                skipped.add(images.paths[i], f"cannot be read: {error.strerror}")
        return contents

    def _kept(self, rows: sqlite3.Connection, hashes: Sequence[str]) -> dict[str, Tensor]:
        places = ",".join("?" * len(hashes))
        found = rows.execute(f"SELECT hash, rows FROM features WHERE hash IN ({places})", list(hashes))
        channels = self._model.network.backbone.channels
        return {
            image: torch.from_numpy(np.frombuffer(blob, dtype="<f2").copy()).reshape(-1, channels)
            for image, blob in found
        }

    def _computed(self, images: ImageList, contents: dict[int, bytes], skipped: Skipped) -> dict[int, Tensor]:
        """Pooled features (views, channels) of images, those of one shape in one pass."""
        wanted, network = self._model.recipe.descriptor, self._model.network.eval()
        views: list[tuple[int, Tensor]] = []
        for i, content in contents.items():
            try:
                image = decode(content, self.longest)
            except BadImage as bad:
                skipped.add(images.paths[i], bad.reason)
                continue
            views += [
                (i, view) for view in descriptor_views(image, wanted.size, wanted.fit, zoom=wanted.zoom)
            ]
        found: dict[int, list[Tensor]] = {}
        with self._turns, torch.inference_mode(), describing_autocast(network.device):
            for shape in {view.shape for _, view in views}:
                alike = [(i, view) for i, view in views if view.shape == shape]
                stack = torch.stack([view for _, view in alike]).to(network.device)
                for scale in wanted.scales:
                    pooled = torch.cat(
                        [network.pooled(at_scale(part, scale)) for part in stack.split(_BATCH)]
                    )
                    for (i, _), row in zip(alike, pooled.half().cpu(), strict=True):
                        found.setdefault(i, []).append(row)
        return {i: torch.stack(rows) for i, rows in found.items()}

    def _described(self, features: Tensor) -> Descriptors:
        described = self._model.network.describe_pooled(features)  # (views, dim)
        return np.asarray(functional.normalize(described.sum(0), dim=0).numpy(), dtype=np.float32)


def _digest(model: Model) -> str:
    """A name for the weights before the last layer and for the views that are described."""
    digest = hashlib.sha256(model.recipe.descriptor.model_dump_json().encode())
    for part in (model.network.backbone, model.network.pooling):
        for name, tensor in sorted(part.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
