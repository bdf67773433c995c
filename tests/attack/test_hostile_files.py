"""Hostile files through every command: each is used or named with a reason; nothing crashes, hangs or swells."""

import csv
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx
import pytest

from helpers.drawn_store import make_store
from helpers.hostile import at_the_limits, by_hand, mutated, write_collection
from helpers.running_server import Server, running

MODEL = "pretrained:efficientnet_lite0"
Note = Callable[[str, str, str], None]
PEAK = 1_500_000_000
PEAK_OF_TRAINING = 1_800_000_000  # with PyTorch and an engine beside the 0.8 GB that decoding may take


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory, soak: bool) -> tuple[Path, int]:
    folder = tmp_path_factory.mktemp("hostile") / "images"
    return folder, write_collection(folder, 2000 if soak else 300)


_MEASURED = """
import json, resource, sys
from insclr.cli import main
try:
    main()
finally:
    used = [resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print("PEAK", max(used), file=sys.stderr)
"""


def run(*arguments: str | Path, seconds: float) -> tuple[str, str, int, float]:
    """Output, messages, peak bytes of the largest process, seconds."""
    began = time.monotonic()
    made = subprocess.run(
        [sys.executable, "-c", _MEASURED, *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    assert "Traceback" not in made.stderr + made.stdout
    peak = int(re.findall(r"PEAK (\d+)", made.stderr)[-1])
    return made.stdout, made.stderr, peak, time.monotonic() - began


def test_check(collection: tuple[Path, int], note: Note) -> None:
    folder, count = collection
    out, _, peak, took = run("check", folder, seconds=600)
    total, usable, bad = map(int, re.match(r"(\d+) images: (\d+) usable, (\d+) unreadable", out).groups())  # type: ignore[union-attr]
    named = re.findall(r"^unreadable: .*: \S.*$", out, re.MULTILINE)
    assert (total, usable + bad, len(named)) == (count, count, bad)
    assert peak < PEAK
    note(
        f"{count} hostile files: check",
        f"{bad} named, 0 crashes, {took:.0f} s, peak {peak / 1e9:.2f} GB",
        "1.5 GB",
    )


def test_index(collection: tuple[Path, int], tmp_path: Path, note: Note) -> None:
    folder, count = collection
    out, messages, peak, took = run("index", MODEL, folder, "--store", tmp_path / "s", seconds=900)
    named = len(re.findall(r"^unreadable: .*: \S.*$", messages, re.MULTILINE))
    rows = int(re.match(r"(\d+) images", out)[1])  # type: ignore[index]
    assert rows + named == count
    assert peak < PEAK
    note(f"{count} hostile files: index", f"{named} named, {took:.0f} s, peak {peak / 1e9:.2f} GB", "1.5 GB")


def test_train(collection: tuple[Path, int], tmp_path: Path, note: Note) -> None:
    folder, count = collection
    small = "workers=1 rounds.steps=5 rounds.epochs=0 rounds.tuples=8 rounds.method.pool=10"
    changes = [word for change in small.split() for word in ("--set", change)]
    _, _, peak, took = run(
        "train", folder, "--out", tmp_path / "run", "--recipe", "fast", *changes, seconds=900
    )
    with (tmp_path / "run" / "skipped.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert all(reason for _, reason in rows)
    assert 0 < len(rows) < count
    assert peak < PEAK_OF_TRAINING
    note(
        f"{count} hostile files: train",
        f"{len(rows)} named, {took:.0f} s, peak {peak / 1e9:.2f} GB",
        "1.8 GB",
    )


def uploaded(
    server: Server, files: Iterable[tuple[str, bytes]], statuses: Counter[int], peaks: dict[int, int]
) -> None:
    """Search by every file: an answer or a reason, and no process that decodes above the limit."""
    for name, content in files:
        answer = httpx.post(f"{server.url}/api/search", files={"pictures": (name, content)}, timeout=60)
        statuses[answer.status_code] += 1
        assert answer.status_code in (200, 413, 415), (name, answer.text)
        assert answer.status_code == 200 or answer.json()["detail"]
        assert max(peaks.values(), default=0) < PEAK, name


def test_serve(tmp_path: Path, soak: bool, note: Note) -> None:
    make_store(tmp_path, things=3, views=4)
    statuses: Counter[int] = Counter()
    with running(tmp_path / "store", decode_seconds=5.0) as server, server.decoder_peaks() as peaks:
        uploaded(server, (*by_hand(), *mutated(2000 if soak else 300, seed=1)), statuses, peaks)
        killed = server.metric("insclr_decoders_killed_total")
        own = server.own_memory()
        assert server.stop() < 10
    assert own < PEAK
    found = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    note(
        "the same as uploads: serve",
        f"{found}; {killed:g} decoders killed; server {own / 1e9:.2f} GB, "
        f"the largest of {len(peaks)} decoders {max(peaks.values()) / 1e9:.2f} GB",
        "200, 413 or 415; 1.5 GB a process",
    )


def test_decoders_at_their_limits(tmp_path: Path, note: Note) -> None:
    """Files that a decoder may just take: their memory is judged from the header, and that must be right."""
    make_store(tmp_path, things=3, views=4)
    statuses: Counter[int] = Counter()
    limits = {"decode_seconds": 30.0, "max_pixels": 200_000_000, "max_request_pixels": 200_000_000}
    with running(tmp_path / "store", **limits) as server, server.decoder_peaks() as peaks:
        uploaded(server, at_the_limits(), statuses, peaks)
        assert server.stop() < 10
    found = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    note(
        "files of every format as large as decoding allows: serve, its limits raised",
        f"{found}; the largest of {len(peaks)} decoders {max(peaks.values()) / 1e9:.2f} GB",
        "1.5 GB a process",
    )
