"""What each re-ranker gives and costs.

    python benchmarks/rerank.py vectors.npz labels.csv    mAP and seconds, leave-one-out
    python benchmarks/rerank.py --random 100000           seconds and peak memory on random vectors

The vectors are a descriptor file of `insclr embed` (.npz or .parquet), or a .npz with `paths` and `vectors`.
"""

import argparse
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from insclr.arrays import Descriptors
from insclr.data.labels import read_labels
from insclr.describe.descriptor_file import read_descriptors
from insclr.errors import UserError
from insclr.evaluation.evaluate import evaluate_labels
from insclr.retrieval.rerank import RERANKERS, rank


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("vectors", nargs="?", type=Path)
    parser.add_argument("labels", nargs="?", type=Path)
    parser.add_argument("--random", type=int, default=0, metavar="IMAGES")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=["none", *RERANKERS])
    given = parser.parse_args()
    if given.vectors and given.labels:
        labelled(given.vectors, given.labels, given.only)
    if given.random:
        at_random(given.random, given.dim, given.queries, given.only)


def labelled(vectors_file: Path, labels_file: Path, names: list[str]) -> None:
    labels = read_labels(labels_file)
    place = dict(zip(*read_vectors(vectors_file), strict=True))
    vectors = np.stack([place[path] for path in labels.paths])
    print(f"{len(labels)} images, {vectors.shape[1]} dimensions, leave-one-out")
    print("| re-ranker | mAP | R@1 | seconds |\n|---|---|---|---|")
    for name in names:
        start = time.perf_counter()
        result = evaluate_labels(vectors, labels, RERANKERS.get(name))
        seconds = time.perf_counter() - start
        print(f"| {name} | {result.map:.2f} | {result.recall(1):.2f} | {seconds:.1f} |", flush=True)


def read_vectors(file: Path) -> tuple[tuple[str, ...], Descriptors]:
    try:
        held = read_descriptors(file)
    except UserError:
        with np.load(file) as plain:
            return tuple(plain["paths"].tolist()), plain["vectors"]
    return held.paths, held.descriptors


def at_random(images: int, dim: int, queries: int, names: list[str]) -> None:
    print(f"{images} random vectors, {dim} dimensions, whole rankings of {queries} queries in the database")
    print("| re-ranker | first run, s | second run, s | peak memory, MB |\n|---|---|---|---|")
    for name in names:
        # A process of its own for each: the peak is that of this re-ranker alone.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            first, second, peak = process.submit(one_at_random, name, images, dim, queries).result()
        print(f"| {name} | {first:.1f} | {second:.2f} | {peak:.0f} |", flush=True)


def one_at_random(name: str, images: int, dim: int, queries: int) -> tuple[float, float, float]:
    """Seconds of a first run, which builds what the database needs, and of a second on other queries."""
    generator = np.random.default_rng(0)
    database = generator.normal(size=(images, dim)).astype(np.float32)
    database /= np.linalg.norm(database, axis=1, keepdims=True)
    reranker = RERANKERS.get(name)
    seconds = []
    for own in np.split(generator.choice(images, size=2 * queries, replace=False), 2):
        start = time.perf_counter()
        ranking = rank(database[own], database, own)
        if reranker is not None:
            reranker(database[own], database, ranking)
        seconds.append(time.perf_counter() - start)
    return seconds[0], seconds[1], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
