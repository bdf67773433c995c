"""A describer that keeps what comes before the last layer: a model that changed only there needs no image again."""

import hashlib
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Descriptors
from insclr.data.decode import BadImage, decode, read_image_bytes
from insclr.data.images import ImageList
from insclr.data.skipped import Skipped
from insclr.data.views import Pixels, descriptor_views
from insclr.data.workers import default_workers
from insclr.describe.describer import ModelDescriber
from insclr.describe.extract import describe_views
from insclr.engine.opened import OpenedModel
from insclr.engine.protocol import unit_rows
from insclr.files import content_hash
from insclr.model.model_file import Model
from insclr.recipe import Recipe
from insclr.store import Regions
from insclr.store.database import connect, explained

_BATCH = 64  # files between two looks into the database
_PART = 8  # files that a thread decodes and describes together
_SCHEMA = "CREATE TABLE IF NOT EXISTS features (hash TEXT PRIMARY KEY, rows BLOB NOT NULL)"

Features = NDArray[np.float16]  # (views, channels)


class FeatureDescriber(ModelDescriber):
    """Describes files as `ModelDescriber` does, and keeps the pooled features of their views by content.

    They are in half precision, in a database named by the weights that made them. Regions come from whole maps, which
    are not kept, nor are features at another `size` than the model's own: such files are always described anew.
    """

    def __init__(self, name: str, model: Model | OpenedModel, folder: Path, size: int = 0) -> None:
        super().__init__(name, model, size=size)
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
                with rows:  # one transaction, and so one fsync, a batch
                    rows.execute("BEGIN IMMEDIATE")
                    rows.executemany(
                        "INSERT OR IGNORE INTO features VALUES (?, ?)",
                        [(hashes[i], features.tobytes()) for i, features in found.items()],
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

    def _kept(self, rows: sqlite3.Connection, hashes: Sequence[str]) -> dict[str, Features]:
        places = ",".join("?" * len(hashes))
        found = rows.execute(f"SELECT hash, rows FROM features WHERE hash IN ({places})", list(hashes))
        channels = self._model.engine.channels
        return {image: np.frombuffer(blob, dtype="<f2").reshape(-1, channels) for image, blob in found}

    def _computed(
        self, images: ImageList, contents: dict[int, bytes], skipped: Skipped
    ) -> dict[int, Features]:
        """Pooled features (views, channels) of images; threads take turns at decoding and describing."""
        given = list(contents.items())
        parts = [dict(given[at : at + _PART]) for at in range(0, len(given), _PART)]
        with self._turns, ThreadPoolExecutor(default_workers() or 1, "features") as threads:
            made = list(threads.map(self._pooled, parts))
        found: dict[int, Features] = {}
        for i, one in (pair for part in made for pair in part.items()):
            if isinstance(one, BadImage):
                skipped.add(images.paths[i], one.reason)
            else:
                found[i] = one
        return found

    def _pooled(self, contents: dict[int, bytes]) -> "dict[int, Features | BadImage]":
        """Of some images, those of one shape in one pass."""
        wanted = self._model.descriptor
        engine = self._model.engine_for(wanted)
        views: list[tuple[int, Pixels]] = []
        found: dict[int, Features | BadImage] = {}
        for i, content in contents.items():
            try:
                image = decode(content, self.longest)
            except BadImage as bad:
                found[i] = bad
                continue
            views += [
                (i, view) for view in descriptor_views(image, wanted.size, wanted.fit, zoom=wanted.zoom)
            ]
        rows: dict[int, list[Features]] = {}
        for shape in {view.shape for _, view in views}:
            alike = [(i, view) for i, view in views if view.shape == shape]
            for scale in wanted.scales:
                pooled = describe_views(engine, [view for _, view in alike], (scale,), "pooled")
                for (i, _), row in zip(alike, pooled.astype("<f2"), strict=True):
                    rows.setdefault(i, []).append(row)
        return found | {i: np.stack(one) for i, one in rows.items()}

    def _described(self, features: Features) -> Descriptors:
        described = self._model.head(features.astype(np.float32))  # (views, dim)
        return unit_rows(described.sum(0))


def only_last_layer(recipe: Recipe) -> bool:
    """Whether a model of this recipe differs from its backbone in the last layer alone, so that features stay."""
    return all(each.train == "fc" for each in recipe.rounds)


def _digest(model: Model | OpenedModel) -> str:
    """A name for the weights before the last layer and for the views that are described."""
    from insclr.model.network import digest_trunk

    described = f"{model.recipe.descriptor.model_dump_json()} {digest_trunk(model.network)}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]
