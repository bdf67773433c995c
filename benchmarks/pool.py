"""The candidate pool against faiss's flat index, in one run: time, ratio and recall."""

import faiss
import torch
from torch import Tensor

from insclr.neighbours.exact import nearest_rows
from insclr.neighbours.pool import build_pool
from table import Row, markdown, milliseconds
from timing import seconds


def descriptors(images: int, dim: int, seed: int = 0, things: int = 4000, scenes: int = 200) -> Tensor:
    """Unit vectors with the structure of image descriptors: pictures of things, things of kinds of scenes.

    The axes shrink as place ** -0.45: pooled features of an ImageNet network on photo collections of landmarks
    and of products, centred, have an effective rank of 40 to 58, and so have these. Things differ in size.
    """
    generator = torch.Generator().manual_seed(seed)

    def spread(count: int) -> Tensor:
        axes = torch.arange(1, dim + 1) ** -0.45
        return torch.randn(count, dim, generator=generator) * axes

    scene = torch.randint(scenes, (things,), generator=generator)
    centres = spread(scenes)[scene] + spread(things)
    popularity = torch.rand(things, generator=generator) ** 3
    thing = torch.multinomial(popularity, images, replacement=True, generator=generator)
    rotation = torch.linalg.qr(torch.randn(dim, dim, generator=generator)).Q
    return torch.nn.functional.normalize((centres[thing] + 0.7 * spread(images)) @ rotation, dim=1)


def measure(images: int = 100_000, dim: int = 512, size: int = 500, flat_rows: int = 10_000) -> list[Row]:
    """Time the flat index and the exact pool on `flat_rows` rows, scaled to all; the approximate pool whole."""
    faiss.omp_set_num_threads(torch.get_num_threads())
    features = descriptors(images, dim)
    rows = torch.randperm(images, generator=torch.Generator().manual_seed(1))[:flat_rows]
    flat = faiss.IndexFlatIP(dim)
    flat.add(features.numpy())
    first, second = (part.numpy() for part in features[rows].chunk(2))
    pools = []
    # The rival is timed before and after, so that a change in the machine's load weighs on both sides.
    rival = seconds(lambda: flat.search(first, size + 1))
    exact = seconds(lambda: nearest_rows(features, rows, size)) * images / flat_rows
    approximate = seconds(lambda: pools.append(build_pool(features, size, approximate=True)))
    rival = (rival + seconds(lambda: flat.search(second, size + 1))) * images / flat_rows

    scale, recall = f"{images:,} x {dim}, P = {size}", pools[0].recall
    ratio = rival / approximate
    return [
        Row(f"exact pool, {scale}", milliseconds(exact), milliseconds(rival), f"{rival / exact:.1f} x"),
        Row(
            f"approximate pool, recall {recall:.3f}",
            milliseconds(approximate),
            milliseconds(rival),
            f"{ratio:.1f} x",
            ">= 8 x at recall >= 0.95",
            ratio >= 8 and recall >= 0.95,
        ),
    ]


if __name__ == "__main__":
    print(markdown(measure()))
