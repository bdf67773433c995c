"""Both store engines on random vectors: time to build, latency of a query, recall against an exact search.

    python benchmarks/search.py --rows 100000 --dim 512 [--engine local|milvus|lance] [--queries 300]

Random vectors are the hard case: there are no groups that a search could skip.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from insclr.store import IndexedImage, StoreInfo, create_store, open_store

TOP = 10
PORT = 19537


def unit_rows(count: int, dim: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, dim), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def exact_neighbours(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    return np.argsort(-(queries @ vectors.T), axis=1)[:, :TOP]


def measure(
    name: str, search: Callable[[np.ndarray], list[int]], queries: np.ndarray, truth: np.ndarray
) -> None:
    for query in queries[:10]:
        search(query)
    seconds, hits = [], 0
    for query, expected in zip(queries, truth, strict=True):
        began = time.perf_counter()
        found = search(query)
        seconds.append(time.perf_counter() - began)
        hits += len({*found} & {*expected.tolist()})
    p50, p99 = np.percentile(np.array(seconds) * 1000, [50, 99])
    print(
        f"{name:<44} p50 {p50:7.2f} ms   p99 {p99:7.2f} ms   recall@{TOP} {hits / truth.size:.3f}", flush=True
    )


def store_engine(name: str, uri: str, vectors: np.ndarray, queries: np.ndarray, truth: np.ndarray) -> None:
    store = create_store(uri, StoreInfo("random", "random", vectors.shape[1], Path("/")))
    began = time.perf_counter()
    for start in range(0, len(vectors), 5000):
        part = vectors[start : start + 5000]
        store.upsert([IndexedImage(str(start + i), str(start + i), 1, 1) for i in range(len(part))], part)
    written = time.perf_counter() - began
    store.close()
    store = open_store(uri)
    began = time.perf_counter()
    store.search(queries[:1], TOP)
    first = time.perf_counter() - began
    print(f"{name:<44} rows written in {written:.1f} s, first search after {first:.1f} s")
    place = {row.id: int(path) for path, row in store.rows_by_path().items()}

    def search(query: np.ndarray) -> list[int]:
        return [place[int(one)] for one in store.search(query[None], TOP).ids[0] if one >= 0]

    measure(name, search, queries, truth)
    store.close()


def local(vectors: np.ndarray, queries: np.ndarray, truth: np.ndarray) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store_engine("local, coarse scan then exact", f"{folder}/store", vectors, queries, truth)


def milvus(vectors: np.ndarray, queries: np.ndarray, truth: np.ndarray) -> None:
    program = Path(sys.executable).with_name("milvus-lite")
    with tempfile.TemporaryDirectory() as folder:
        command: list[str | Path] = [
            program,
            "server",
            "--data-dir",
            folder,
            "--host",
            "127.0.0.1",
            "--port",
            str(PORT),
        ]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(5)
            store_engine(
                "milvus (the gRPC server of milvus-lite)", f"http://127.0.0.1:{PORT}", vectors, queries, truth
            )
        finally:
            server.terminate()
            server.wait(30)


def lance(vectors: np.ndarray, queries: np.ndarray, truth: np.ndarray) -> None:
    import lancedb
    import pyarrow as pa

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        halves = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.astype(np.float16).ravel()), vectors.shape[1]
        )
        columns = {"id": np.arange(len(vectors)), "vector": halves}
        table = lancedb.connect(folder).create_table("rows", pa.table(columns))
        print(f"{'lance, exact':<44} rows written in {time.perf_counter() - began:.1f} s")

        def search(query: np.ndarray) -> list[int]:
            found = table.search(query.astype(np.float16)).distance_type("dot").limit(TOP).select(["id"])
            return found.to_arrow()["id"].to_pylist()

        measure("lance, exact", search, queries, truth)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--engine", choices=["local", "milvus", "lance", "all"], default="all")
    asked = parser.parse_args()
    vectors, queries = unit_rows(asked.rows, asked.dim, 0), unit_rows(asked.queries, asked.dim, 1)
    truth = exact_neighbours(vectors, queries)
    for name, engine in (("local", local), ("milvus", milvus), ("lance", lance)):
        if asked.engine in (name, "all"):
            engine(vectors, queries, truth)


if __name__ == "__main__":
    main()
