"""A full, read-only or damaged disk is one sentence and exit status 2 in every command, never a traceback."""

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from helpers.called import call, status_of
from helpers.clients import client_of
from helpers.drawn_store import make_store

SMALL = "rounds.steps=5 rounds.epochs=0 workers=0 network.dim=16 descriptor.size=32 rounds.plain_size=32"
SMALL += " rounds.augmented_size=32 rounds.tuples=4 rounds.method.neighbours=2 rounds.method.pool=10"
SETTINGS = [word for change in SMALL.split() for word in ("--set", change)]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    capsys.readouterr()
    status, _, shown = call(capsys, *arguments)
    said = shown.splitlines()
    messages = [line for line in said if line.startswith("insclr: ")]
    assert (status, len(messages)) == (2, 1), said
    return messages[0]


@pytest.fixture(scope="module")
def made(small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a store, made on a good disk."""
    folder = tmp_path_factory.mktemp("made")
    names = folder / "names.csv"
    names.write_text("path,name\n" + "".join(f"thing{i}-{j}.png,thing {i}\n" for i in (0, 1) for j in (0, 1)))
    (folder / "others.csv").write_text(names.read_text().replace(",thing", ",other"))
    for arguments in (
        ("train", small_collection, "--out", folder / "run", "--recipe", "fast", *SETTINGS),
        ("index", folder / "run", small_collection, "--store", folder / "store"),
        ("names", "import", folder / "store", names),
    ):
        assert status_of(*arguments) == 0  # type: ignore[arg-type]
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system is not permitted: run as root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", disk], check=True)


LARGE = shutil.ignore_patterns("cache", "step-*", "end.*", "model.*", "tensorboard")
COMMANDS = ("train", "index", "embed .npz", "embed .parquet", "whiten", "cluster", "report", "names", "learn")


def arguments_of(command: str, images: Path, made: Path, disk: Path) -> list[str | Path]:
    """A command that writes to the disk; the run or the store that it writes into is copied there."""
    if command == "report":
        shutil.copytree(made / "run", disk / "run", ignore=LARGE)
    if command in ("names", "learn"):
        shutil.copytree(made / "store", disk / "store", ignore=LARGE)
    return {  # type: ignore[return-value]
        "train": ["train", images, "--out", disk / "r", "--recipe", "fast", *SETTINGS],
        "index": ["index", made / "run", images, "--store", disk / "s"],
        "embed .npz": ["embed", made / "run", images, "--out", disk / "d.npz"],
        "embed .parquet": ["embed", made / "run", images, "--out", disk / "d.parquet"],
        "whiten": ["whiten", made / "run", images, "--out", disk / "m.safetensors", "--dim", "8"],
        "cluster": ["cluster", made / "store", "--out", disk / "c"],
        "report": ["report", disk / "run"],
        "names": ["names", "import", disk / "store", made / "others.csv"],
        "learn": ["learn", disk / "store", *SETTINGS],
    }[command]


def fill(disk: Path) -> None:
    """Leave nothing of the disk."""
    try:
        with (disk / "filler").open("wb", buffering=0) as filler:
            while filler.write(b"x" * 4096):
                pass
    except OSError:
        pass


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk(
    command: str, small_collection: Path, made: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = arguments_of(command, small_collection, made, disk)
    fill(disk)
    before = sorted(path for path in disk.rglob("*") if path.is_file())
    said = refusal(capsys, *arguments)
    assert "no space left on the disk" in said
    assert "Files written so far are intact" in said
    left = [path for path in disk.rglob("*") if path.is_file() and path.stat().st_size]
    of_sqlite = {disk / "s" / "rows.sqlite", disk / "store" / "rows.sqlite-shm"}
    assert set(left) <= {*before, *of_sqlite}, "half a file stays"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_read_only_disk(
    command: str, small_collection: Path, made: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = arguments_of(command, small_collection, made, disk)
    remount(disk, "ro")
    said = refusal(capsys, *arguments)
    assert str(disk) in said
    assert ".part:" not in said
    assert "Read-only file system" in said or "readonly database" in said


def test_a_read_only_store_is_searched_but_not_written(
    small_collection: Path, made: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made / "store", disk / "store")
    remount(disk, "ro")
    status, shown, _ = call(capsys, "search", disk / "store", small_collection / "thing0-0.png", "--top", "1")
    assert (status, "thing0-0.png" in shown) == (0, True)
    said = refusal(capsys, "index", made / "run", small_collection, "--store", disk / "store")
    assert "cannot be written" in said


def test_a_read_only_store_with_unfinished_writes_reports_what_to_do(
    small_collection: Path, made: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made / "store", disk / "store")
    (disk / "store" / "rows.sqlite-wal").write_bytes(b"x" * 4096)
    remount(disk, "ro")
    said = refusal(capsys, "search", disk / "store", small_collection / "thing0-0.png")
    assert "copy the folder" in said


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def scramble(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4096:-1:7] = b"\xa5" * len(content[4096:-1:7])
    file.write_bytes(content)


def change(statement: str) -> object:
    def apply(file: Path) -> None:
        rows = sqlite3.connect(file)
        with rows:
            rows.execute(statement)
        rows.close()

    return apply


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        scramble,
        change("DROP TABLE pictures"),
        change("DROP TABLE notes"),
        change("UPDATE notes SET text = '{\"model\": 3' WHERE name = 'info'"),
        change("UPDATE notes SET text = '[]' WHERE name = 'info'"),
        change("UPDATE pictures SET vector = x'00'"),
        change("UPDATE pictures SET columns = '{'"),
        lambda file: file.write_bytes(b""),
    ],
    ids=["cut", "scrambled", "no rows", "no notes", "half info", "other info", "vectors", "columns", "empty"],
)
def test_a_damaged_store(
    damage: object,
    small_collection: Path,
    made: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(made / "store", tmp_path / "store")
    damage(tmp_path / "store" / "rows.sqlite")  # type: ignore[operator]
    said = refusal(capsys, "search", tmp_path / "store", small_collection / "thing0-0.png")
    assert "rows.sqlite" in said
    assert "damaged" in said


def test_a_damaged_calibration_costs_the_calibration_only(
    small_collection: Path, made: Path, tmp_path: Path
) -> None:
    shutil.copytree(made / "store", tmp_path / "store")
    change("UPDATE notes SET text = '{' WHERE name = 'calibration'")(tmp_path / "store" / "rows.sqlite")  # type: ignore[operator]
    assert status_of("search", tmp_path / "store", small_collection / "thing0-0.png") == 0


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("damage", [cut, scramble, lambda file: file.write_bytes(b"")])
def test_a_damaged_descriptor_file(
    damage: object,
    suffix: str,
    small_collection: Path,
    made: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / f"d{suffix}"
    assert status_of("embed", made / "run", small_collection, "--out", out) == 0
    damage(out)  # type: ignore[operator]
    said = refusal(capsys, "embed", made / "run", small_collection, "--out", out)
    assert "not a whole descriptor file" in said


@pytest.mark.parametrize(
    "name",
    ["images.json", "usable.safetensors", "round-1/inspection-start.json", "metrics.jsonl", "recipe.toml"],
)
@pytest.mark.parametrize("content", [b"", b'{"half": [1, 2', b"\xff\xfe\x00\x01"])
def test_a_damaged_run_folder(
    name: str, content: bytes, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made / "run", tmp_path / "run", ignore=LARGE)
    (tmp_path / "run" / name).write_bytes(content)
    if name == "metrics.jsonl" or (name == "recipe.toml" and not content):
        # A log may end anywhere, and an empty recipe is one of defaults.
        assert status_of("report", tmp_path / "run") == 0
        return
    said = refusal(capsys, "report", tmp_path / "run")
    assert name in said


def test_descriptors_of_another_length_than_their_paths(
    made: Path, small_collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = {"key": "k", "paths": np.array(["a"]), "stamps": np.zeros((2, 2)), "vectors": np.zeros((1, 4))}
    np.savez(tmp_path / "d.npz", **held)  # type: ignore[arg-type]
    said = refusal(capsys, "embed", made / "run", small_collection, "--out", tmp_path / "d.npz")
    assert "not of one length" in said


def test_the_page_on_a_full_disk_keeps_what_it_has(disk: Path) -> None:
    served = make_store(disk, things=2, views=3)
    client, first = client_of(served), served.store.ids()[0]
    skip = {"fingerprint": served.store.info.fingerprint, "query": f"0:{first}"}
    assert client.post("/api/stores/0/teach/skip", json=skip).status_code == 200
    fill(disk)
    for _ in range(100):  # the log of the database may have some room left
        answer = client.post("/api/stores/0/teach/skip", json=skip)
        if answer.status_code != 200:
            break
    assert answer.status_code == 507
    assert "No space left" in answer.json()["detail"]
    assert str(disk) not in answer.text
    kept = len(served.store.journal())
    (disk / "filler").unlink()
    assert client.post("/api/stores/0/teach/skip", json=skip).status_code == 200
    assert len(served.store.journal()) == kept + 1
