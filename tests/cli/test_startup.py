"""What a command loads before it answers: a search needs no torch, a usage error next to nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from insclr.model.model_file import save_model
from insclr.model.network import create_network
from insclr.options import Reranker
from insclr.recipe import load_recipe

_HEAVY = (
    *("torch", "timm", "torchvision", "scipy", "pyarrow.parquet", "openvino", "onnxruntime", "faiss"),
    *("numpy.ma", "numpy.random", "insclr.store.milvus"),
)


def _loaded(*arguments: str | Path) -> tuple[int, str, list[str], float]:
    """Status, messages, the heavy modules a command loaded, and its processor time in seconds."""
    before = os.times()
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "insclr", *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    after = os.times()
    spent = after.children_user - before.children_user + after.children_system - before.children_system
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("import time:")]
    # A package that `import_module` loads is seen by its modules alone.
    loaded = [
        name for name in _HEAVY if re.search(rf"\| +{re.escape(name)}(\.|$)", ended.stderr, re.MULTILINE)
    ]
    return ended.returncode, "\n".join(lines) + ended.stdout, loaded, spent


@pytest.fixture(scope="module")
def store(small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("startup") / "store"
    status, said, *_ = _loaded("index", "pretrained:efficientnet_lite0", small_collection, "--store", folder)
    assert status == 0, said
    return folder


@pytest.fixture(scope="module")
def store_of_two_views(small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model as `fast` leaves it for photos that are large enough."""
    folder = tmp_path_factory.mktemp("two-looks")
    recipe = load_recipe("fast", ("descriptor.size=224", "descriptor.zoom=0.7"))
    save_model(folder / "model.safetensors", create_network(recipe.network), recipe)
    status, said, *_ = _loaded("index", folder, small_collection, "--store", folder / "store")
    assert status == 0, said
    return folder / "store"


@pytest.mark.parametrize("engine", ["auto", "onnx"])
@pytest.mark.parametrize("name", ["store", "store_of_two_views"])
def test_a_search_loads_no_more_than_it_needs(
    request: pytest.FixtureRequest, small_collection: Path, name: str, engine: str
) -> None:
    store, photo = request.getfixturevalue(name), small_collection / "thing3-1.png"
    status, said, loaded, spent = _loaded("search", store, photo, "--top", "3", "--engine", engine)
    assert status == 0, said
    assert "1.000  query  thing3-1.png" in said
    # OpenVINO would take longer to start than to describe; the last two come with matched points.
    assert set(loaded) - {"numpy.ma", "numpy.random"} == {"onnxruntime", "faiss"}
    assert len(re.findall("INFO: photos are described by ", said)) == 1
    assert spent < 1.5  # 0.6 s and what writing the import times takes


def test_a_search_in_python_loads_no_torch(store: Path, small_collection: Path) -> None:
    code = "import insclr, sys; print(insclr.search(*sys.argv[1:])[0].path, 'torch' in sys.modules)"
    photo = small_collection / "thing3-1.png"
    said = subprocess.run([sys.executable, "-c", code, store, photo], capture_output=True, text=True)
    assert said.stdout == "thing3-1.png False\n", said.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("search nowhere photo.jpg", "does not exist"),
        ("search {store} photo.jpg --rerank magic", "'magic' is not one of"),
        ("search {store} {photo} --engine tpu", "no engine 'tpu'"),
        ("search {store} {photo} --device tpu", "no device 'tpu'"),
        ("index nowhere {photos} --store s", "no model nowhere"),
        ("index {photo} {photos} --store s --weights w.pth", "--weights goes with"),
        ("watch {photos} --store s --model nowhere", "no model nowhere"),
        ("watch {photos} --store s --model pretrained:x --engine tpu", "no engine 'tpu'"),
        ("embed nowhere {photos} --out v.npz", "no model nowhere"),
        ("evaluate nowhere", "Say what to measure"),
        ("evaluate nowhere --labels {photos}/labels.csv", "no model nowhere"),
        ("evaluate pretrained:x --labels nowhere.csv", "nowhere.csv"),
        ("compare nowhere elsewhere --labels {photos}/labels.csv", "no model nowhere"),
        ("train nowhere --out run", "nowhere does not exist"),
        ("train {photos} --out run --recipe none", "none"),
        ("train {photos} --out run --engine tpu", "no engine 'tpu'"),
        ("whiten nowhere {photos} --out w", "no model nowhere"),
        ("export nowhere --onnx m.onnx", "no model nowhere"),
        ("push nowhere me/things", "no model nowhere"),
        ("push {photo} things", "not the name of a repository"),
        ("push {photos}/labels.csv me/things --results nowhere.json", "no results file nowhere.json"),
        ("pull things --out m.safetensors", "not the name of a repository"),
        ("pull me/things --out {photos}", "is a folder"),
        ("paper nothing --data {photos}/labels.csv --out a", "no table 'nothing'"),
        ("report nowhere", "nowhere is not a run folder"),
        ("demo --recipe none --out demo", "none"),
        ("frobnicate", "No such command"),
        ("search --frobnicate", "No such option"),
        ("search {store} {photo} --rerank kreciprocal", "'kreciprocal' is not one of"),
        ("search {store} {photo} --rerank dsm", "'dsm' is not one of"),
        ("search {store} {photo} --ranking asmk", "'asmk' is not one of 'global', 'regions'"),
        (
            "evaluate nowhere --labels {photos}/labels.csv --ranking asmk",
            "'asmk' is not one of 'global', 'regions'",
        ),
        ("index nowhere {photos} --store s --asmk", "No such option"),
        ("index nowhere {photos} --store s --local-features disk.pth", "No such option"),
    ],
)
def test_a_usage_error_is_reported_before_anything_heavy_is_loaded(
    store: Path, small_collection: Path, arguments: str, expected: str
) -> None:
    photo = small_collection / "thing3-1.png"
    words = arguments.format(store=store, photo=photo, photos=small_collection).split()
    status, said, loaded, _ = _loaded(*words)
    assert status == 2, said
    assert expected in said
    assert not set(loaded) - {"faiss"}  # the store's, where there is one
    assert "Traceback" not in said


def test_names_that_are_checked_early_are_all_there_are() -> None:
    from insclr.retrieval.rerank import RERANKERS

    assert ("", *RERANKERS) == get_args(Reranker)
