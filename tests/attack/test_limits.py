"""A store that is copied while it is written, and a server with little memory."""

import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from helpers.made_files import jpeg_bytes, photo
from helpers.running_server import free_port
from insclr.store import IndexedImage, StoreInfo, new_entry
from insclr.store.local import LocalStore

MODEL = "pretrained:efficientnet_lite0"
Note = Callable[[str, str, str], None]
BATCH = 20


def write_for_ever(folder: Path) -> None:
    """Add batches of rows and an entry of the journal with each."""
    store = LocalStore(folder)
    dice = np.random.default_rng(0)
    for batch in range(10**6):
        vectors = dice.normal(size=(BATCH, 64)).astype(np.float32)
        images = [IndexedImage(f"{batch}-{number}.jpg", "h", 1, 1) for number in range(BATCH)]
        store.upsert(images, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
        store.append([new_entry("skip", {"query": str(batch)})])
        if batch % 50 == 49:
            store.delete(
                [f"{one}-{number}.jpg" for one in range(batch - 49, batch) for number in range(BATCH)]
            )


def test_a_store_that_is_copied_while_it_is_written(tmp_path: Path, soak: bool, note: Note) -> None:
    """Copied file by file as `cp -r` does."""
    copies = 80 if soak else 10
    LocalStore.create(tmp_path / "s", StoreInfo("m", "f", 64, tmp_path)).close()
    writer = multiprocessing.get_context("spawn").Process(target=write_for_ever, args=(tmp_path / "s",))
    writer.start()
    try:
        found: list[tuple[int, int]] = []
        reader, end = LocalStore(tmp_path / "s"), time.monotonic() + 60
        while not reader.journal() and time.monotonic() < end:
            time.sleep(0.1)
        reader.close()
        while len(found) < copies:
            time.sleep(0.2)
            shutil.rmtree(tmp_path / "copy", ignore_errors=True)
            shutil.copytree(tmp_path / "s", tmp_path / "copy")
            store = LocalStore(tmp_path / "copy")
            assert store.damage() == []
            assert store.count() % BATCH == 0
            found.append((store.count(), len(store.journal())))
            store.close()
    finally:
        writer.kill()
        writer.join()
    assert found[-1][1] > found[0][1] > 0
    note(f"a store copied {copies} times while it is written", f"{copies} whole", "all whole")


@pytest.mark.parametrize("limit", [2_500_000_000, 1_500_000_000, 900_000_000])
def test_a_server_with_little_memory(limit: int, tmp_path: Path, note: Note) -> None:
    """It answers, puts off with 503, or ends with 2 and a sentence; never a traceback."""
    (tmp_path / "photos").mkdir()
    for number in range(6):
        Image.effect_noise((96, 96), 30 + 20 * number).save(tmp_path / "photos" / f"{number}.png")
    insclr = [sys.executable, "-m", "insclr"]
    subprocess.run([*insclr, "index", MODEL, tmp_path / "photos", "--store", tmp_path / "s"], check=True)
    port, log = free_port(), tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*insclr, "serve", tmp_path / "s", "--port", str(port)],
            stderr=stderr,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )
    statuses: list[int] = []
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            for _ in range(300):
                try:
                    client.get("/healthz")
                    break
                except httpx.TransportError:
                    if process.poll() is not None:
                        break
                    time.sleep(0.1)
            if process.poll() is None:
                content = jpeg_bytes(photo(2000, 1500))
                for _ in range(3):
                    answer = client.post("/api/search", files={"pictures": ("x", content)})
                    statuses.append(answer.status_code)
                statuses.append(client.post("/api/search", data={"rows": "0:1"}).status_code)
                process.terminate()
        status = process.wait(20)
    finally:
        process.kill()
        process.wait()
    said = log.read_text()
    assert "Traceback" not in said, said
    assert set(statuses) <= {200, 503}, said
    if not statuses:
        assert status == 2, said
        assert sum(line.startswith("insclr: ") for line in said.splitlines()) == 1, said
    note(
        f"serve under ulimit -v of {limit / 1e9:g} GB: 3 uploads, 1 search by row",
        f"answers {statuses}" if statuses else "one sentence, exit 2",
        "200, 503 or one sentence",
    )
