"""Descriptors of real photos and of augmented copies of them, for the parts that compare searches.

    python benchmarks/real.py FOLDER [FOLDER ...] --out FILE.npy [--views 10]
    INSCLR_BENCH_DESCRIPTORS=FILE.npy python benchmarks/run.py pool stores

They are what a first round sees: pooled features of the pretrained network, centred, on their 512 strongest axes,
each divided by its variance ** 0.25. Without a file those parts use drawn descriptors alone.
"""

import argparse
import os
import shutil
from pathlib import Path

import numpy as np
import torch

from insclr.data.images import Skipped, list_images
from insclr.data.loader import Collection, ViewSpec
from insclr.data.workers import default_workers
from insclr.describe.collection_features import CollectionFeatures
from insclr.model.model_file import resolve_model
from insclr.model.whitening import pca_whitening
from insclr.ranks import Ranks

DIM = 512
SIZE = 160
VARIABLE = "INSCLR_BENCH_DESCRIPTORS"


def real_descriptors() -> np.ndarray | None:
    """The descriptors (rows, 512) in half precision that the environment names, copies of an image together."""
    file = os.environ.get(VARIABLE)
    return None if not file else np.load(file, mmap_mode="r")


def grown(rows: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """`count` unit rows (half precision) spread as `rows` are: each lies between two near copies, a little off.

    A new row is a row moved by half of the difference of two copies of another image, as views move descriptors.
    """
    chance = np.random.default_rng(seed)
    made = np.empty((count, rows.shape[1]), np.float16)
    for start in range(0, count, 16_384):
        size = min(16_384, count - start)
        base, other = chance.integers(len(rows), size=size), chance.integers(len(rows) - 1, size=size)
        moved = rows[base].astype(np.float32)
        moved += 0.5 * (rows[other + 1].astype(np.float32) - rows[other].astype(np.float32))
        made[start : start + size] = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    return made


def _pooled(folder: Path, views: int, scratch: Path) -> torch.Tensor:
    """Pooled features (images * (1 + views), C), those of an image together."""
    model = resolve_model("pretrained:efficientnet_lite0")
    collection = Collection(list_images(folder), default_workers(), Skipped())
    features = CollectionFeatures(model.recipe.network, collection, scratch, Ranks(), "auto")
    found = features.read(model.network, ViewSpec(plain_size=SIZE, augmented_size=SIZE, augmented=views))
    together = torch.cat([found.plain[None], found.views]).transpose(0, 1)  # (S, 1 + V, C)
    return together.flatten(0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--views", type=int, default=10)
    asked = parser.parse_args()
    features = asked.out.with_suffix(".features")  # a stopped run goes on with what is there
    pooled = torch.cat([_pooled(folder, asked.views, features) for folder in asked.folders])
    axes = pca_whitening(pooled[:: asked.views + 1].float(), DIM, power=0.25)
    np.save(asked.out, torch.cat([axes.apply(part.float()).half() for part in pooled.split(8192)]).numpy())
    shutil.rmtree(features)


if __name__ == "__main__":
    main()
