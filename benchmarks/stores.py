"""The local store with a million rows: writing, opening, searching, adding, and what it takes of memory and disk.

    python benchmarks/stores.py [--rows 1000000] [--kind random|real] [--folder WHERE]

Each store is written by one process and searched by another, whose memory is then that of a search alone. Random rows
are the hardest case, since nothing in them can be skipped or summed up; the others are spread as real descriptors are
(see real.py), or drawn where no file of those is named.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from insclr.store import IndexedImage, Store, StoreInfo, create_store, open_store
from insclr.store import segment as segment_module
from real import grown, real_descriptors
from table import Row, markdown, milliseconds

KINDS = ("random", "real")
DIM, TOP, QUERIES, EXACT, ADDED, BATCH = 512, 10, 200, 40, 1000, 4096


def blocks(kind: str, rows: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Unit rows in half precision, `BATCH` at a time, the same for every process."""
    real = _like_real() if kind == "real" else None
    for start in range(0, rows, BATCH):
        size = min(BATCH, rows - start)
        if real is not None:
            yield grown(real, size, seed + start)
            continue
        drawn = np.random.default_rng((seed, start)).standard_normal((size, DIM), dtype=np.float32)
        yield (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float16)


def _like_real() -> np.ndarray:
    found = real_descriptors()
    if found is None:
        from pool import descriptors

        return descriptors(20_000, DIM).half().numpy()
    return np.asarray(found)


def write(folder: str, kind: str, rows: int) -> dict[str, float]:
    """Write the store, packed at the end as `insclr index` does."""
    store = create_store(folder, StoreInfo("bench", "bench", DIM, Path("/")))
    took, number = 0.0, 0
    began = time.perf_counter()
    with store.writing():
        for block in blocks(kind, rows):
            images = [IndexedImage(str(number + i), str(number + i), 1, 1) for i in range(len(block))]
            before = time.perf_counter()
            store.upsert(images, block.astype(np.float32))
            took += time.perf_counter() - before
            number += len(block)
        before = time.perf_counter()
    packed = time.perf_counter() - before
    took_all = time.perf_counter() - began
    store.close()
    size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return {"write": took, "pack": packed, "all": took_all, "disk": size, **memory()}


def search(folder: str, kind: str, rows: int) -> dict[str, float]:
    """Open the store, search it, add rows, search again."""
    queries = next(blocks(kind, QUERIES, seed=10**9)).astype(np.float32)
    idle = memory()
    began, busy = time.perf_counter(), time.process_time()
    store = open_store(folder)
    store.search(queries[:1], TOP)
    opening, opening_busy = time.perf_counter() - began, time.process_time() - busy
    store.search(queries[:20], TOP)
    latency, processor, found = [], [], []
    for query in queries:
        began, busy = time.perf_counter(), time.process_time()
        found.append(store.search(query[None], TOP).ids[0])
        latency.append(time.perf_counter() - began)
        processor.append(time.process_time() - busy)
    used = memory()
    added = np.concatenate(list(blocks(kind, ADDED, seed=2 * 10**9))).astype(np.float32)
    began = time.perf_counter()
    with store.writing():
        store.upsert([IndexedImage(f"new{i}", f"new{i}", 1, 1) for i in range(ADDED)], added)
    adding = time.perf_counter() - began
    began = time.perf_counter()
    again = store.search(added[:1], 1)
    next_search = time.perf_counter() - began
    assert again.ids[0, 0] > rows  # the one just added
    hits, exact = _exact_scan(store, queries[:EXACT], found)
    return {
        "opening": opening,
        "opening processor": opening_busy,
        "p50": float(np.percentile(latency, 50)),
        "p99": float(np.percentile(latency, 99)),
        "processor": float(np.percentile(processor, 50)),
        "recall": hits,
        "exact": exact,
        "adding": adding,
        "next": next_search,
        "anonymous": used["anonymous"] - idle["anonymous"],
        "mapped": used["mapped"] - idle["mapped"],
    }


def _exact_scan(store: Store, queries: np.ndarray, found: list[np.ndarray]) -> tuple[float, float]:
    """The share of the exact neighbours, by a scan of every row, that were found, and the least seconds of a scan."""
    usual, segment_module.FEWEST_RESCORED = segment_module.FEWEST_RESCORED, 10**9
    took, hits = [], 0
    for query, ids in zip(queries, found, strict=False):
        began = time.perf_counter()
        exact = store.search(query[None], TOP).ids[0]
        took.append(time.perf_counter() - began)
        hits += len({*ids.tolist()} & {*exact.tolist()})
    segment_module.FEWEST_RESCORED = usual
    return hits / (TOP * len(took)), min(took)


def memory() -> dict[str, float]:
    """Bytes of this process: its own, and those of files that it has mapped, which the system can take back."""
    values = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("RssAnon", "RssFile", "RssShmem", "VmHWM"):
            values[name] = 1024.0 * int(rest.split()[0])
    return {
        "anonymous": values["RssAnon"],
        "mapped": values["RssFile"] + values["RssShmem"],
        "peak": values["VmHWM"],
    }


def measure(rows: int = 1_000_000, where: str | None = None, kinds: Sequence[str] = KINDS) -> list[Row]:
    table = []
    for kind in kinds:
        with tempfile.TemporaryDirectory(dir=where) as folder:
            written, found = (
                _in_a_process(part, f"{folder}/store", kind, rows) for part in ("write", "search")
            )
        table += _rows(kind, rows, written, found)
    return table


def _in_a_process(part: str, folder: str, kind: str, rows: int) -> dict[str, float]:
    command = [
        sys.executable,
        __file__,
        "--part",
        part,
        "--folder",
        folder,
        "--kind",
        kind,
        "--rows",
        str(rows),
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _rows(kind: str, rows: int, written: dict[str, float], found: dict[str, float]) -> list[Row]:
    name = (
        "random"
        if kind == "random"
        else "like real descriptors"
        if real_descriptors() is not None
        else "drawn"
    )
    name = f"{rows:,} x {DIM}, {name}"
    p50, recall = found["p50"], found["recall"]
    return [
        Row(
            f"{name}: a search, p50, recall@{TOP} {recall:.3f}",
            milliseconds(p50),
            f"{milliseconds(found['exact'])} (exact scan)",
            f"{found['exact'] / p50:.1f} x",
            "<= 10 ms at recall >= 0.95",
            p50 <= 0.01 and recall >= 0.95,
        ),
        Row(f"{name}: its p99", milliseconds(found["p99"])),
        Row(f"{name}: its processor time, p50", milliseconds(found["processor"])),
        Row(
            f"{name}: opening and the first search",
            f"{milliseconds(found['opening'])}, {milliseconds(found['opening processor'])} of processor time",
            bar="<= 2 s",
            reached=found["opening"] <= 2,
        ),
        Row(
            f"{name}: adding {ADDED:,} rows, the search after it",
            f"{milliseconds(found['adding'])}, {milliseconds(found['next'])}",
        ),
        Row(f"{name}: written, then packed", f"{written['write']:.0f} s, {written['pack']:.0f} s"),
        Row(
            f"{name}: memory of a search (own, of mapped files), of writing (peak)",
            f"{_mb(found['anonymous'])}, {_mb(found['mapped'])}, {_mb(written['peak'])}",
        ),
        Row(f"{name}: on disk", _mb(written["disk"])),
    ]


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder")
    parser.add_argument("--part", choices=["write", "search"])
    parser.add_argument("--kind", choices=KINDS)
    asked = parser.parse_args()
    if asked.part:
        work = {"write": write, "search": search}[asked.part]
        print(json.dumps(work(asked.folder, asked.kind, asked.rows)))
    else:
        print(markdown(measure(asked.rows, asked.folder, [asked.kind] if asked.kind else KINDS)))


if __name__ == "__main__":
    main()
