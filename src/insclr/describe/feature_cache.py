"""A cache of pooled features by file content, so that a model with another last layer decodes no image again."""

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from insclr.arrays import Descriptors
from insclr.engine.engine import Features
from insclr.engine.opened import OpenedModel
from insclr.errors import UserError
from insclr.recipe import Recipe


class FeatureCache:
    """Pooled features of the views of images in half precision, in a database named by what made them.

    `read` and `write` give the sum of the descriptors that the model's last layer makes of them.
    """

    def __init__(self, folder: Path, model: OpenedModel) -> None:
        self._head, self._channels = model.head, model.engine.channels
        key = hashlib.sha256(f"{model.descriptor.model_dump_json()} {model.trunk}".encode()).hexdigest()[:16]
        self._file = folder / f"views-{key}.sqlite"
        folder.mkdir(parents=True, exist_ok=True)
        with self._open() as rows:
            rows.execute("PRAGMA journal_mode = WAL")
            rows.execute("CREATE TABLE IF NOT EXISTS features (hash TEXT PRIMARY KEY, rows BLOB NOT NULL)")

    def read(self, content: str) -> Descriptors | None:
        """The sum (dim,) for the image with this hash of its content, where it is kept."""
        with self._open() as rows:
            found = rows.execute("SELECT rows FROM features WHERE hash = ?", (content,)).fetchone()
        return None if found is None else self._describe(found[0])

    def write(self, features: Mapping[str, Features]) -> dict[str, Descriptors]:
        """Keep features (views, channels) by the hash of the content; the sums for all of them."""
        blobs = {content: one.astype("<f2").tobytes() for content, one in features.items()}
        with self._open() as rows, rows:
            rows.executemany("INSERT OR IGNORE INTO features VALUES (?, ?)", blobs.items())
        return {content: self._describe(blob) for content, blob in blobs.items()}

    def _describe(self, blob: bytes) -> Descriptors:
        features = np.frombuffer(blob, dtype="<f2").reshape(-1, self._channels).astype(np.float32)
        found: Descriptors = self._head(features).sum(0)
        return found

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._file, timeout=60)) as rows:
                rows.execute("PRAGMA synchronous = NORMAL")
                yield rows
        except sqlite3.Error as error:
            raise UserError(
                f"The kept features {self._file} cannot be used ({error}): free some disk space, or delete the file."
            ) from error


def only_last_layer(recipe: Recipe) -> bool:
    """Whether a model of this recipe differs from its backbone in the last layer alone, so that features stay."""
    return all(each.train == "fc" for each in recipe.rounds)
