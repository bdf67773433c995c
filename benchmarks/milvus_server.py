"""The cluster store on a running Milvus server: time to write and to index, latency, recall, memory.

    milvus-server --data DIR &
    python benchmarks/milvus_server.py --address http://127.0.0.1:19530 --rows 100000 --dim 512 [--pid PID]

Random vectors are the hard case: there are no groups that a search could skip. `--pid` is the server's process, whose
resident memory is told. The collection is removed at the end.
"""

import argparse
import time
import uuid
from pathlib import Path

import faiss
import numpy as np

from insclr.store import IndexedImage, StoreInfo, create_store, open_store
from insclr.store import milvus_server as server_module
from search import TOP, exact_neighbours, measure, unit_rows

_EFFORTS = (128, 256, 512, 1024)  # candidates that are compared exactly; the shipped one is among them
_WRITTEN_AT_ONCE = 5000


def memory(pid: int) -> str:
    if not pid:
        return ""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))
    return f", server {kilobytes / 1e6:.2f} GB"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", required=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--pid", type=int, default=0)
    told = parser.parse_args()
    server_module._SETTLE = 7200.0  # seconds: the whole build is to be measured
    vectors, queries = unit_rows(told.rows, told.dim, 0), unit_rows(told.queries, told.dim, 1)
    truth = exact_neighbours(vectors, queries)
    name = f"bench_{uuid.uuid4().hex[:8]}"
    uri = f"{told.address}/{name}"
    store = create_store(uri, StoreInfo("random", "random", told.dim, Path("/")))
    began = time.perf_counter()
    for start in range(0, told.rows, _WRITTEN_AT_ONCE):
        part = vectors[start : start + _WRITTEN_AT_ONCE]
        store.upsert([IndexedImage(str(start + i), str(start + i), 1, 1) for i in range(len(part))], part)
    assert store.count() == told.rows
    print(f"{told.rows} rows written in {time.perf_counter() - began:.1f} s{memory(told.pid)}", flush=True)
    began = time.perf_counter()
    store.settle()
    store.close()
    print(f"sealed and indexed after {time.perf_counter() - began:.1f} s{memory(told.pid)}", flush=True)
    began = time.perf_counter()
    store = open_store(uri)
    store.search(queries[:1], TOP)
    print(f"opened and searched once in {time.perf_counter() - began:.2f} s", flush=True)
    place = {row.id: int(path) for path, row in store.rows_by_path().items()}

    def search(query: np.ndarray) -> list[int]:
        return [place[int(one)] for one in store.search(query[None], TOP).ids[0] if one >= 0]

    for effort in _EFFORTS:
        server_module._EFFORT = effort
        measure(f"Milvus, {effort} candidates{memory(told.pid)}", search, queries, truth)
    flat = faiss.IndexFlatIP(told.dim)
    flat.add(vectors)
    measure("faiss flat", lambda query: list(flat.search(query[None], TOP)[1][0]), queries, truth)
    for kind in ("", "_notes"):
        store.server.client.drop_collection(f"{name}{kind}")  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
