"""The candidate pool against faiss's flat index, in one run: time, ratio and recall.

Run: python benchmarks/pool.py [--images 100000 --dim 512 --size 500 --flat-rows 10000]
"""

import argparse
import time
from collections.abc import Callable

import faiss
import torch
from torch import Tensor

from insclr.mining.nearest import nearest_rows
from insclr.mining.pool import build_pool


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


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor time of one call."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--flat-rows", type=int, default=10_000, help="rows timed exactly, then scaled up")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    faiss.omp_set_num_threads(options.threads)

    features = descriptors(options.images, options.dim)
    rows = torch.randperm(options.images, generator=torch.Generator().manual_seed(1))[: options.flat_rows]
    flat = faiss.IndexFlatIP(options.dim)
    flat.add(features.numpy())
    queries = features[rows].numpy()
    whole = options.images / len(rows)
    pools = []
    # The rival is timed before and after, so that a change in the machine's load shows.
    before = seconds(lambda: flat.search(queries[: len(queries) // 2], options.size + 1))
    exact = seconds(lambda: nearest_rows(features, rows, options.size))
    approximate = seconds(lambda: pools.append(build_pool(features, options.size, approximate=True)))
    after = seconds(lambda: flat.search(queries[len(queries) // 2 :], options.size + 1))
    rival = [(a + b) * whole for a, b in zip(before, after, strict=True)]

    print(f"{options.images} x {options.dim}, P = {options.size}, {options.threads} threads")
    print(f"{'':22}{'wall s':>9}{'ratio':>7}{'cpu s':>9}{'ratio':>7}{'recall':>8}")
    table = (
        ("faiss flat", rival, 1.0),
        ("exact", [part * whole for part in exact], 1.0),
        ("approximate", approximate, pools[0].recall),
    )
    for name, (wall, processor), recall in table:
        ratios = rival[0] / wall, rival[1] / processor
        print(f"{name:22}{wall:9.1f}{ratios[0]:7.1f}{processor:9.1f}{ratios[1]:7.1f}{recall:8.3f}")


if __name__ == "__main__":
    main()
