"""`pip install insclr` without torch: what works, and what the rest prints."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from insclr.model.model_file import save_model
from insclr.model.network import create_network
from insclr.recipe import load_recipe

_ROOT = Path(__file__).parents[1]
_PHOTO = "thing3-1.png"
# Hides what the extra `train` installs from this process, as if it were not there.
_HIDE = """
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.split(".")[0] in ("torch", "torchvision", "timm", "onnxscript")
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path[:] = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]
"""
_MAIN = "sys.argv[0] = 'insclr'\nfrom insclr.cli import main\nmain()"
# The page answers, and finds a photo that is uploaded.
_SERVE = """
from pathlib import Path
from fastapi.testclient import TestClient
from insclr.web.server import create_app, open_served
store, photo = map(Path, sys.argv[1:])
with TestClient(create_app(open_served([store])), base_url="http://localhost") as client:
    assert client.get("/").status_code == 200, client.get("/").text
    found = client.post("/api/search", files={"pictures": photo.read_bytes()})
print(found.json()["matches"][0]["path"])
"""

Run = Callable[..., tuple[int, str]]


def _run(*command: str | Path, cache: Path) -> tuple[int, str]:
    ended = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env=os.environ | {"INSCLR_CACHE": str(cache)},
        timeout=300,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A command where torch cannot be imported, with no graph prepared; `code` instead of a command is Python."""
    cache = tmp_path_factory.mktemp("cache")

    def call(*arguments: str | Path, code: str = _MAIN) -> tuple[int, str]:
        return _run(sys.executable, "-c", _HIDE + code, *arguments, cache=cache)

    return call


@pytest.fixture(scope="module")
def store(run: Run, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without-torch") / "store"
    status, said = run("index", "pretrained:lite0", small_collection, "--store", folder)
    assert status == 0, said
    return folder


def _fill_in(arguments: str, store: Path, photos: Path, out: Path) -> list[str]:
    return arguments.format(store=store, photos=photos, photo=photos / _PHOTO, out=out).split()


@pytest.mark.parametrize(
    "arguments",
    [
        "search {store} {photo} --top 2",
        "embed pretrained:lite0 {photos} --out {out}/v.npz",
        "check {photos}",
        "check {store}",
        "names list {store}",
        "models {store}",
        "duplicates {store}",
        "backbones",
    ],
)
def test_a_command_works(
    run: Run, store: Path, small_collection: Path, tmp_path: Path, arguments: str
) -> None:
    status, said = run(*_fill_in(arguments, store, small_collection, tmp_path))
    assert status == 0, said
    if arguments.startswith("search"):
        assert f"1.000  query  {_PHOTO}" in said


def test_the_page_searches(run: Run, store: Path, small_collection: Path) -> None:
    status, said = run(store, small_collection / _PHOTO, code=_SERVE)
    assert (status, said.splitlines()[-1:]) == (0, [_PHOTO]), said


def test_a_model_trained_elsewhere_gives_the_vectors_that_torch_gives(
    run: Run, small_collection: Path, tmp_path: Path
) -> None:
    recipe = load_recipe("fast", ("network.dim=32",))
    network = create_network(recipe.network)
    save_model(tmp_path / "model.safetensors", network, recipe)
    status, said = run("embed", tmp_path, small_collection, "--out", tmp_path / "here.npz")
    assert status == 0, said
    command = ("embed", tmp_path, small_collection, "--out", tmp_path / "torch.npz", "--engine", "torch")
    status, said = _run(sys.executable, "-m", "insclr", *command, cache=tmp_path)
    assert status == 0, said
    here, torch = (np.load(tmp_path / name)["vectors"] for name in ("here.npz", "torch.npz"))
    np.testing.assert_allclose(here, torch, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "arguments",
    [
        "train {photos} --out {out}/run",
        "demo --out {out}/demo",
        "learn {store}",
        "evaluate pretrained:lite0 --labels {photos}/labels.csv",
        "whiten pretrained:lite0 {photos} --out {out}/w.safetensors",
        "export pretrained:lite0 --onnx {out}/m.onnx",
        "embed pretrained:resnet50 {photos} --out {out}/v.npz",
        "search {store} {photo} --engine torch",
    ],
)
def test_what_needs_torch_reports_what_to_install(
    run: Run, store: Path, small_collection: Path, tmp_path: Path, arguments: str
) -> None:
    status, said = run(*_fill_in(arguments, store, small_collection, tmp_path))
    assert status == 2, said
    (line,) = [line for line in said.splitlines() if line.startswith("insclr: ")]
    assert "pip install 'insclr[train]'" in line
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())
    assert not (store / "models").exists()


def test_python_reports_it_too(run: Run) -> None:
    code = "import insclr\ntry:\n    insclr.train\nexcept insclr.UserError as error:\n    print(error)"
    status, said = run(code=code)
    assert (status, "pip install 'insclr[train]'" in said) == (0, True), said


@pytest.mark.slow
def test_a_fresh_environment_installs_no_torch(small_collection: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python, insclr = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "insclr"
    install = (python, "-m", "pip", "install", "--quiet", "-c", _ROOT / "constraints.txt", _ROOT)
    status, said = _run(*install, cache=tmp_path)
    if status and "No matching distribution" in said:
        pytest.skip("no package index can be reached")
    assert status == 0, said
    status, said = _run(python, "-c", "import torch", cache=tmp_path)
    assert "No module named 'torch'" in said
    photo, store = small_collection / _PHOTO, tmp_path / "store"
    for command in (
        ("demo-data", tmp_path / "drawn", "--things", "4", "--views", "2"),
        ("index", "pretrained:lite0", small_collection, "--store", store),
        ("search", store, photo),
        ("serve", "--help"),
        ("embed", "pretrained:lite0", small_collection, "--out", tmp_path / "v.npz"),
        ("check", store),
        ("names", "list", store),
    ):
        status, said = _run(insclr, *command, cache=tmp_path / "cache")
        assert status == 0, said
    assert _run(insclr, "train", small_collection, "--out", tmp_path / "run", cache=tmp_path)[0] == 2
