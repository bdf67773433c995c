"""The approximate candidate pool against the exact search and a graph (HNSW) of faiss at equal recall, in one run.

    python benchmarks/pool.py [ROWS]

A pool asks for the neighbours of all rows at once; each rival builds its index and searches all rows. The number of
nodes that the graph visits is raised until its recall, on a sample, reaches ours. Searches are timed on some of the
rows and scaled to all; building is timed whole.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from torch import Tensor

from insclr.memory.round_pool import round_pool
from insclr.neighbours.exact import nearest_rows
from insclr.neighbours.pool import Pool
from insclr.ranks import Ranks
from real import grown, real_descriptors
from table import Row, markdown, milliseconds
from timing import seconds

SAMPLE = 300  # rows whose exact neighbours measure the recall of both sides
TIMED = 2000  # rows whose search is timed


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


def measure(images: int = 100_000, size: int = 100) -> list[Row]:
    """Drawn descriptors, and those of real photos where the environment names a file of them (see real.py)."""
    faiss.omp_set_num_threads(torch.get_num_threads())
    rows = _measure("drawn", descriptors(images, 512), size)
    real = real_descriptors()
    if real is not None:
        rows += _measure("real", torch.from_numpy(np.array(real)).float(), size)
        rows += _measure("like real", torch.from_numpy(grown(np.asarray(real), images)).float(), size)
    return rows


def _approximate_pool(features: Tensor, size: int) -> Pool:
    with tempfile.TemporaryDirectory() as folder:
        return round_pool(features, size, Path(folder), Ranks(), torch.device("cpu"), approximate_from=0)


def _measure(kind: str, features: Tensor, size: int) -> list[Row]:
    sample = torch.randperm(len(features), generator=torch.Generator().manual_seed(1))[:SAMPLE]
    exact = nearest_rows(features, sample, size)[1]
    pools = []
    ours = seconds(lambda: pools.append(_approximate_pool(features, size)))
    recall = _recall(pools[0].ids[sample], exact)
    what = f"{kind}, {len(features):,} x {features.shape[1]}, P = {size}, recall {recall:.3f}"
    table = []
    for name, (rival, its_recall) in _rivals(features.numpy(), size, sample.numpy(), exact, recall).items():
        ratio = rival / ours
        bar = (">= 1.1 x", ratio >= 1.1) if its_recall >= recall - 0.005 else ("", None)
        table.append(
            Row(
                f"{what}: approximate pool against {name} (recall {its_recall:.3f})",
                milliseconds(ours),
                milliseconds(rival),
                f"{ratio:.1f} x",
                *bar,
            )
        )
    return table


def _recall(found: Tensor, exact: Tensor) -> float:
    pairs = zip(exact, found, strict=True)
    return float(torch.stack([torch.isin(true, ids.long()).float().mean() for true, ids in pairs]).mean())


def _rivals(
    rows: np.ndarray, size: int, sample: np.ndarray, exact: Tensor, recall: float
) -> dict[str, tuple[float, float]]:
    """Seconds for all rows, and the recall reached, of every kind of index."""
    dim = rows.shape[1]
    flat = faiss.IndexFlatIP(dim)
    flat.add(rows)
    found = {"flat": (_search_time(flat, rows, size), 1.0)}
    graph = faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT)
    settings = [("HNSW, M = 32", "efSearch", int(factor * size)) for factor in (1, 1.5, 2, 3, 4, 6, 8)]
    return found | _tuned(graph, graph.hnsw, rows, size, settings, sample, exact, recall)


def _tuned(
    index: Any,
    holder: Any,
    rows: np.ndarray,
    size: int,
    settings: list[tuple[str, str, int]],
    sample: np.ndarray,
    exact: Tensor,
    recall: float,
) -> dict[str, tuple[float, float]]:
    """Build the index, raise its setting until the recall is reached, and time it there."""
    building = seconds(lambda: index.add(rows))
    name, reached = "", 0.0
    for kind, setting, value in settings:
        setattr(holder, setting, value)
        reached = _recall(_others(index.search(rows[sample], size + 1)[1], sample, size), exact)
        name = f"{kind}, {setting} = {value}"
        if reached >= recall:
            break
    return {name: (building + _search_time(index, rows, size), reached)}


def _search_time(index: Any, rows: np.ndarray, size: int) -> float:
    some = rows[np.random.default_rng(1).permutation(len(rows))[:TIMED]]
    searching: Callable[[], object] = lambda: index.search(some, size + 1)  # noqa: E731
    return min(seconds(searching) for _ in range(2)) * len(rows) / len(some)


def _others(found: np.ndarray, rows: np.ndarray, size: int) -> Tensor:
    """What was found without the row itself, (rows, size)."""
    return torch.from_numpy(np.stack([ids[ids != row][:size] for ids, row in zip(found, rows, strict=True)]))


if __name__ == "__main__":
    print(markdown(measure(*map(int, sys.argv[1:2]))))
