"""A store that is copied while it is written; commands and a server with little memory."""

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


INSCLR = [sys.executable, "-m", "insclr"]
LIMITS = [2_500_000_000, 1_500_000_000, 900_000_000]


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six photos, and a store of them."""
    folder = tmp_path_factory.mktemp("limits")
    (folder / "photos").mkdir()
    for number in range(6):
        Image.effect_noise((96, 96), 30 + 20 * number).save(folder / "photos" / f"{number}.png")
    subprocess.run([*INSCLR, "index", MODEL, folder / "photos", "--store", folder / "s"], check=True)
    return folder


def start_with(limit: int, log: Path, *arguments: str | Path) -> "subprocess.Popen[bytes]":
    """A command that may map so many bytes."""
    with log.open("w") as stderr:
        return subprocess.Popen(
            [*INSCLR, *arguments],
            stderr=stderr,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )


def require_sentence(status: int, said: str) -> None:
    assert status == 2, said
    assert sum(line.startswith("insclr: ") for line in said.splitlines()) == 1, said


@pytest.mark.parametrize("limit", [*LIMITS, 600_000_000, 300_000_000])
@pytest.mark.parametrize("command", ["index", "search", "embed"])
def test_a_command_with_little_memory(
    command: str, limit: int, indexed: Path, tmp_path: Path, note: Note
) -> None:
    """It ends with 0, or with 2 and a sentence, soon; what a success wrote is whole."""
    photos, store = indexed / "photos", tmp_path / "s"
    arguments = {
        "index": ("index", MODEL, photos, "--store", store),
        "search": ("search", indexed / "s", photos / "0.png"),
        "embed": ("embed", MODEL, photos, "--out", tmp_path / "d.npz"),
    }[command]
    process = start_with(limit, tmp_path / "log", *arguments)
    try:
        status = process.wait(120)
    finally:
        process.kill()
        process.wait()
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said, said
    if status:
        require_sentence(status, said)
    elif command == "index":
        opened = LocalStore(store)
        assert opened.count() == 6
        opened.close()
    note(f"{command} under ulimit -v of {limit / 1e9:g} GB", f"exit {status}", "0, or 2 and one sentence")


@pytest.mark.parametrize("limit", LIMITS)
def test_a_server_with_little_memory(limit: int, indexed: Path, tmp_path: Path, note: Note) -> None:
    """It answers, puts off with 503, or ends with 2 and a sentence; never a traceback."""
    port, log = free_port(), tmp_path / "log"
    process = start_with(limit, log, "serve", indexed / "s", "--port", str(port))
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
        require_sentence(status, said)
    note(
        f"serve under ulimit -v of {limit / 1e9:g} GB: 3 uploads, 1 search by row",
        f"answers {statuses}" if statuses else "one sentence, exit 2",
        "200, 503 or one sentence",
    )
