"""The n-th write, fsync, open, rename, unlink, mmap, truncate, read or mkdir of a command fails.

Afterwards: exit status 0 or 2 with one sentence, what was there before is whole, and the repeated command ends like
one that nothing disturbed.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from helpers.fault_campaign import Arguments, Campaign
from helpers.faults import ACTS, Ended, Fault, FaultyProcess, faulty_process
from helpers.killing import MODEL, Note, rows_of, same, within
from insclr.model.model_file import load_model
from insclr.store import Entry, open_store
from insclr.store.local import LocalStore
from insclr.store.store_models import model_folder, read_models

SETTINGS = "workers=0 checkpoint_every=5 rounds.steps=10 rounds.epochs=0 rounds.tuples=4 network.dim=16"
SETTINGS += " descriptor.size=32 rounds.plain_size=32 rounds.augmented_size=32 rounds.method.neighbours=2"
SETTINGS += " rounds.method.pool=6"
CHANGES = [word for change in SETTINGS.split() for word in ("--set", change)]


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


def require_no_damage(store: Path) -> None:
    opened = LocalStore(store)
    assert opened.damage() == []
    opened.close()


@pytest.fixture
def some(soak: bool) -> int | None:
    """How many faults of a command are tried; all with `make soak`."""
    return None if soak else 40


def test_index(process: FaultyProcess, made: Path, tmp_path: Path, some: int | None, note: Note) -> None:
    expected, store = rows_of(made / "store"), tmp_path / "s"

    def prepare() -> Arguments:
        shutil.rmtree(store, ignore_errors=True)
        return index(made / "photos", store)

    def require_whole(_: Ended) -> None:
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

    found = Campaign("index", process, tmp_path, prepare, require_whole, require_equal).run(some)
    note("one system call fails: index", found, "0 tracebacks, 0 lost, equal")


def test_index_prune(
    process: FaultyProcess, made: Path, tmp_path: Path, some: int | None, note: Note
) -> None:
    few, store = made / "few.txt", tmp_path / "s"
    few.write_text("\n".join(str(path) for path in sorted((made / "photos").iterdir())[::2]))
    before = rows_of(made / "store")
    expected = {path: row for path, row in before.items() if int(path[0]) % 2 == 0}

    def prepare() -> Arguments:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(made / "store", store)
        return index(few, store, "--prune")

    def require_whole(_: Ended) -> None:
        require_no_damage(store)
        found = rows_of(store)
        assert same(found, before) or same(found, expected)

    def require_pruned() -> None:
        require_no_damage(store)
        assert same(rows_of(store), expected)

    found = Campaign("prune", process, tmp_path, prepare, require_whole, require_pruned).run(some)
    note("one system call fails: index --prune", found, "0 tracebacks, 0 lost, equal")


def test_embed(process: FaultyProcess, made: Path, tmp_path: Path, some: int | None, note: Note) -> None:
    out = tmp_path / "d.npz"
    arguments = ("embed", MODEL, made / "photos", "--out", out, "--engine", "torch")
    assert process.run(tmp_path, Fault(), *arguments).status == 0
    expected = np.load(out)["vectors"]

    def prepare() -> Arguments:
        out.unlink(missing_ok=True)
        return arguments

    def require_whole(_: Ended) -> None:
        if out.exists():
            np.testing.assert_allclose(np.load(out)["vectors"], expected, atol=1e-5)

    def require_same() -> None:
        np.testing.assert_allclose(np.load(out)["vectors"], expected, atol=1e-5)

    found = Campaign("embed", process, tmp_path, prepare, require_whole, require_same).run(some)
    note("one system call fails: embed", found, "0 tracebacks, 0 lost, equal")


@pytest.fixture(scope="module")
def named(made: Path, process: FaultyProcess) -> Path:
    """The store, its photos named two by two."""
    table, store = made / "names.csv", made / "named"
    table.write_text("path,name\n" + "".join(f"{number}.png,thing {number // 2}\n" for number in range(8)))
    shutil.copytree(made / "store", store)
    ended = process.run(made / "nothing", Fault(), "names", "import", store, table)
    assert ended.status == 0, ended.said
    return store


def names_in(store: Path) -> set[str]:
    require_no_damage(store)
    return {str(one.data["name"]) for one in journal_of(store) if one.kind == "name" and one.data.get("name")}


def journal_of(store: Path) -> list[Entry]:
    opened = open_store(store)
    try:
        return opened.journal()
    finally:
        opened.close()


def test_names(
    process: FaultyProcess, made: Path, named: Path, tmp_path: Path, some: int | None, note: Note
) -> None:
    store, before, whole = tmp_path / "s", rows_of(made / "store"), names_in(named)

    def prepare() -> Arguments:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(made / "store", store)
        return ("names", "import", store, made / "names.csv")

    def require_whole(_: Ended) -> None:
        assert same(rows_of(store), before)
        assert names_in(store) in (set(), whole)

    def require_same() -> None:
        assert names_in(store) == whole

    found = Campaign("names", process, tmp_path, prepare, require_whole, require_same).run(some)
    note("one system call fails: names import", found, "0 tracebacks, 0 lost, equal")


def test_train(process: FaultyProcess, made: Path, tmp_path: Path, soak: bool, note: Note) -> None:
    run = tmp_path / "run"
    arguments: Arguments = ("train", made / "photos", "--recipe", "fast", *CHANGES, "--out", run)
    ended = process.run(tmp_path, Fault(), *arguments)
    assert ended.status == 0, ended.said
    expected = safetensors.numpy.load_file(run / "model.safetensors")

    def prepare() -> Arguments:
        shutil.rmtree(run, ignore_errors=True)
        return arguments

    def resumed(arguments: Arguments) -> Arguments:
        return (*arguments, "--resume") if (run / "recipe.toml").exists() else arguments

    def require_whole(_: Ended) -> None:
        if (run / "model.safetensors").exists():
            load_model(run / "model.safetensors")

    def require_same() -> None:
        found = safetensors.numpy.load_file(run / "model.safetensors")
        assert all(np.array_equal(found[key], expected[key]) for key in expected)

    campaign = Campaign("train", process, tmp_path, prepare, require_whole, require_same, resumed)
    note(
        "one system call fails: train fast", campaign.run(200 if soak else 20), "0 tracebacks, 0 lost, equal"
    )


def learned_weights(store: Path) -> dict[str, np.ndarray]:
    """Those of the model that the store is searched with, which must have been learned."""
    run = model_folder(store, read_models(store).current) / "run"
    return safetensors.numpy.load_file(run / "model.safetensors")


def test_learn(process: FaultyProcess, named: Path, tmp_path: Path, soak: bool, note: Note) -> None:
    store, unbroken = tmp_path / "s", tmp_path / "unbroken"
    before, journal = rows_of(named), journal_of(named)
    options = ("--recipe", "fast", "--engine", "torch", *CHANGES)
    shutil.copytree(named, unbroken)
    ended = process.run(tmp_path / "nothing", Fault(), "learn", unbroken, *options)
    assert ended.status == 0, ended.said
    expected, weights = rows_of(unbroken), learned_weights(unbroken)

    def prepare() -> Arguments:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(named, store)
        return ("learn", store, *options)

    def require_whole(_: Ended) -> None:
        """The first model's rows and the names are as before; the store has the first model or the learned one."""
        require_no_damage(store)
        assert same(rows_of(store / "models" / "1"), before)
        assert journal_of(store) == journal
        if read_models(store).current != 1:
            require_learned()

    def require_learned() -> None:
        assert same(rows_of(store), expected)
        found = learned_weights(store)
        assert all(np.array_equal(found[key], weights[key]) for key in weights)

    found = Campaign("learn", process, tmp_path, prepare, require_whole, require_learned).run(
        200 if soak else 30
    )
    note("one system call fails: learn", found, "0 tracebacks, 0 lost, equal")


def test_serve(process: FaultyProcess, named: Path, tmp_path: Path, some: int | None, note: Note) -> None:
    """What a person writes on the page: an act that was answered with 200 is kept, others are whole or not there."""
    store, before, journal = tmp_path / "s", rows_of(named), journal_of(named)

    def prepare() -> Arguments:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(named, store)
        return ("serve", store, "--engine", "torch")

    def require_whole(ended: Ended) -> None:
        require_no_damage(store)
        assert same(rows_of(store), before)
        now = journal_of(store)
        assert now[: len(journal)] == journal
        written = iter(entry.kind for entry in now[len(journal) :])
        answers = [line.split() for line in ended.said.splitlines() if line.startswith("act ")]
        for _, act, status, *_ in answers:
            assert status in ("200", "409", "503", "507"), ended.said
            if status == "200" and act in ACTS:
                assert act in written, f"{act} is lost: {ended.said}"

    def require_same() -> None:
        kinds = [entry.kind for entry in journal_of(store)]
        assert set(ACTS) <= set(kinds), kinds

    found = Campaign("serve", process, tmp_path, prepare, require_whole, require_same).run(some)
    note("one system call fails: serve, nine acts", found, "0 tracebacks, 0 lost, equal")
