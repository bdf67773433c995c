"""The n-th write, fsync, open, rename, unlink, mmap, truncate, read or mkdir of a command fails.

Afterwards: exit status 0 or 2 with one sentence, what was there before is whole, and the repeated command ends like
one that nothing disturbed.
"""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from helpers.faults import ERRORS, KINDS, Ended, Fault, FaultyProcess, faulty_process
from helpers.killing import MODEL, Note, rows_of, same, within
from insclr.model.model_file import load_model
from insclr.store import open_store
from insclr.store.local import LocalStore

SETTINGS = "workers=0 checkpoint_every=5 rounds.steps=10 rounds.epochs=0 rounds.tuples=4 network.dim=16"
SETTINGS += " descriptor.size=32 rounds.plain_size=32 rounds.augmented_size=32 rounds.method.neighbours=2"
SETTINGS += " rounds.method.pool=6"
Arguments = tuple[str | Path, ...]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyProcess]:
    with faulty_process(tmp_path_factory.mktemp("faulty")) as process:
        yield process


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, process: FaultyProcess) -> Path:
    """Eight photos, and a store of them."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "photos").mkdir()
    for number in range(8):
        image = Image.effect_noise((48, 48), 30 + 10 * (number // 2)).resize((64, 64))
        image.save(folder / "photos" / f"{number}.png")
    ended = process.run(folder / "nothing", Fault(), *index(folder / "photos", folder / "store"))
    assert ended.status == 0, ended.said
    return folder


def index(images: Path, store: Path, *more: str) -> Arguments:
    return ("index", MODEL, images, "--store", store, "--engine", "torch", *more)


@dataclass
class Campaign:
    """One command with every fault, or with some of them."""

    process: FaultyProcess
    folder: Path
    prepare: Callable[[], Arguments]  # clears the folder; the command to run there
    require_whole: Callable[[], None]  # after a fault
    require_equal: Callable[[], None]  # after the command was repeated
    statuses: Counter[int] = field(default_factory=Counter)

    def run(self, most: int) -> str:
        """Inject every fault, or `most` of a kind and error; gives what came out."""
        dice = random.Random(0)
        total = 0
        for kind in KINDS:
            calls = self.process.run(self.folder, Fault(kind), *self.prepare()).calls
            total += calls
            numbers = range(1, calls + 1)
            for error in ERRORS[kind]:
                chosen = numbers if calls <= most else sorted(dice.sample(numbers, most))
                for number in chosen:
                    self._inject(Fault(kind, number, error))
        tried = sum(self.statuses.values())
        found = ", ".join(f"{count} ended with {status}" for status, count in sorted(self.statuses.items()))
        return f"{tried} faults in {total} calls: {found}; 0 tracebacks, 0 lost, repeated equal"

    def _inject(self, fault: Fault) -> None:
        arguments = self.prepare()
        ended = self.process.run(self.folder, fault, *arguments)
        require_sentence(ended, fault)
        self.statuses[ended.status] += 1
        self.require_whole()
        again = self.process.run(self.folder, Fault(), *_resumed(arguments))
        assert again.status == 0, f"{fault}, then: {again.said}"
        self.require_equal()


def _resumed(arguments: Arguments) -> Arguments:
    if arguments[0] == "train" and (Path(arguments[arguments.index("--out") + 1]) / "recipe.toml").exists():
        return (*arguments, "--resume")
    return arguments


def require_sentence(ended: Ended, fault: Fault) -> None:
    """0, or 2 with one sentence that does not give up the store."""
    said = f"{fault}: {ended.status} {ended.said}"
    assert ended.status in (0, 2), said
    assert "Traceback" not in ended.said, said
    lines = [line for line in ended.said.splitlines() if line.startswith("insclr: ")]
    assert len(lines) == (ended.status == 2), said
    assert "is damaged" not in ended.said, said


def require_no_damage(store: Path) -> None:
    opened = LocalStore(store)
    assert opened.damage() == []
    opened.close()


@pytest.fixture
def most(soak: bool) -> int:
    """Calls of a kind that fail, of more of them a sample."""
    return 10**6 if soak else 4


def test_index(process: FaultyProcess, made: Path, tmp_path: Path, most: int, note: Note) -> None:
    expected, store = rows_of(made / "store"), tmp_path / "s"

    def prepare() -> Arguments:
        shutil.rmtree(store, ignore_errors=True)
        return index(made / "photos", store)

    def require_whole() -> None:
        if (store / "rows.sqlite").exists() and (store / "rows.sqlite").stat().st_size:
            try:
                require_no_damage(store)
            except Exception as error:
                assert "not a store" in str(error), error  # noqa: PT017  (it has no tables yet)
                return
            assert within(rows_of(store), expected)

    def require_equal() -> None:
        require_no_damage(store)
        assert same(rows_of(store), expected)

    found = Campaign(process, tmp_path, prepare, require_whole, require_equal).run(most)
    note("one system call fails: index", found, "0 tracebacks, 0 lost, equal")


def test_index_prune(process: FaultyProcess, made: Path, tmp_path: Path, most: int, note: Note) -> None:
    few, store = made / "few.txt", tmp_path / "s"
    few.write_text("\n".join(str(path) for path in sorted((made / "photos").iterdir())[::2]))
    before = rows_of(made / "store")
    expected = {path: row for path, row in before.items() if int(path[0]) % 2 == 0}

    def prepare() -> Arguments:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(made / "store", store)
        return index(few, store, "--prune")

    def require_whole() -> None:
        require_no_damage(store)
        found = rows_of(store)
        assert same(found, before) or same(found, expected)

    found = Campaign(process, tmp_path, prepare, require_whole, lambda: require_equal(store, expected)).run(
        most
    )
    note("one system call fails: index --prune", found, "0 tracebacks, 0 lost, equal")


def require_equal(store: Path, expected: dict) -> None:
    require_no_damage(store)
    assert same(rows_of(store), expected)


def test_embed(process: FaultyProcess, made: Path, tmp_path: Path, most: int, note: Note) -> None:
    out = tmp_path / "d.npz"
    arguments = ("embed", MODEL, made / "photos", "--out", out, "--engine", "torch")
    assert process.run(tmp_path, Fault(), *arguments).status == 0
    expected = np.load(out)["vectors"]

    def prepare() -> Arguments:
        out.unlink(missing_ok=True)
        return arguments

    def require_whole() -> None:
        if out.exists():
            np.testing.assert_allclose(np.load(out)["vectors"], expected, atol=1e-5)

    def require_same() -> None:
        np.testing.assert_allclose(np.load(out)["vectors"], expected, atol=1e-5)

    found = Campaign(process, tmp_path, prepare, require_whole, require_same).run(most)
    note("one system call fails: embed", found, "0 tracebacks, 0 lost, equal")


def test_names(process: FaultyProcess, made: Path, tmp_path: Path, most: int, note: Note) -> None:
    store, table = tmp_path / "s", made / "names.csv"
    table.write_text("path,name\n" + "".join(f"{number}.png,thing {number // 2}\n" for number in range(8)))
    before = rows_of(made / "store")

    def prepare() -> Arguments:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(made / "store", store)
        return ("names", "import", store, table)

    def names() -> set[str]:
        require_no_damage(store)
        opened = open_store(store)
        entries = opened.journal()
        opened.close()
        return {str(one.data["name"]) for one in entries if one.kind == "name" and one.data.get("name")}

    whole = {f"thing {number}" for number in range(4)}

    def require_whole() -> None:
        assert same(rows_of(store), before)
        assert names() in (set(), whole)

    def require_same() -> None:
        assert names() == whole

    found = Campaign(process, tmp_path, prepare, require_whole, require_same).run(most)
    note("one system call fails: names import", found, "0 tracebacks, 0 lost, equal")


def test_train(process: FaultyProcess, made: Path, tmp_path: Path, soak: bool, note: Note) -> None:
    run = tmp_path / "run"
    changes = [word for change in SETTINGS.split() for word in ("--set", change)]
    arguments: Arguments = ("train", made / "photos", "--recipe", "fast", *changes, "--out", run)
    ended = process.run(tmp_path, Fault(), *arguments)
    assert ended.status == 0, ended.said
    expected = safetensors.numpy.load_file(run / "model.safetensors")

    def prepare() -> Arguments:
        shutil.rmtree(run, ignore_errors=True)
        return arguments

    def require_whole() -> None:
        if (run / "model.safetensors").exists():
            load_model(run / "model.safetensors")

    def require_same() -> None:
        found = safetensors.numpy.load_file(run / "model.safetensors")
        assert all(np.array_equal(found[key], expected[key]) for key in expected)

    # 17 pairs of a kind and an error: 200 faults
    found = Campaign(process, tmp_path, prepare, require_whole, require_same).run(12 if soak else 2)
    note("one system call fails: train fast", found, "0 tracebacks, 0 lost, equal")
