"""Every table of the paper, from the published files to Markdown, JSON and HTML, on fake data in the real layouts."""

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from typer.testing import CliRunner

from insclr.cli import app, evaluation, training  # noqa: F401  (registers the commands)
from insclr.torchvision_import import import_timm

pytestmark = pytest.mark.slow

# A ResNet-18 at random, a step or two, small views.
_SMALL = (
    "workers=0",
    "network.backbone=resnet18",
    "network.dim=16",
    "rounds.steps=2",
    "rounds.tuples=3",
    "rounds.augmented_size=32",
    "rounds.plain_size=32",
)
_OF_INSCLR = ("rounds.method.pool=12",)
_MEASURED = ("--size", "48", "--scales", "1")


def _draw(file: Path, seed: int, instance: int) -> None:
    """A photo of 64 x 48 px: the pattern of its instance, moved and with noise."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pattern = np.random.default_rng(instance).integers(0, 256, (6, 8, 3))
    noise = np.random.default_rng(1000 + seed).integers(-30, 30, (48, 64, 3))
    pixels = np.kron(np.roll(pattern, seed % 3, axis=1), np.ones((8, 8, 1))) + noise
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLDv2, ROxford, RParis, the classic Oxford5k, INSTRE and distractors, a handful of images each."""
    root = tmp_path_factory.mktemp("world")
    torch.manual_seed(0)
    torch.save(import_timm().create_model("resnet18", num_classes=0).state_dict(), root / "weights.pt")

    landmarks = {str(number): [f"{number}{letter}f0" for letter in "abcdef"] for number in range(5)}
    for instance, images in landmarks.items():
        for seed, image in enumerate(images):
            _draw(
                root / "gldv2" / "train" / image[0] / image[1] / image[2] / f"{image}.jpg",
                seed,
                int(instance),
            )
    lines = ["landmark_id,images", *(f"{name},{' '.join(images)}" for name, images in landmarks.items())]
    (root / "gldv2" / "train_clean.csv").write_text("\n".join([*lines, "99,zzzz"]) + "\n")

    _revisited(root)
    _gldv2_retrieval(root / "gldv2r")
    _instre(root / "instre")
    for number in range(4):
        _draw(root / "far" / f"{number}.jpg", number, 50 + number)
    arguments = ["list", "gldv2", root / "gldv2" / "train_clean.csv", "--root", root / "gldv2" / "train"]
    shown = CliRunner().invoke(
        app, [*map(str, arguments), "--at-least", "3", "--out", str(root / "train.csv")]
    )
    assert shown.exit_code == 0, shown.output
    assert "30 images of 5 instances" in shown.output
    return root


def _revisited(root: Path) -> None:
    for name in ("roxford5k", "rparis6k"):
        names = [f"{name}_{number}" for number in range(8)]
        truth = [{"bbx": [4, 4, 60, 44], "easy": [q, q + 2], "hard": [q + 4], "junk": [7]} for q in range(2)]
        asked = [f"{name}_asked_{q}" for q in range(2)]
        content = {"imlist": names, "qimlist": asked, "gnd": truth}
        for number, image in enumerate(names):
            _draw(root / name / "jpg" / f"{image}.jpg", number, 10 + number % 2)
        for q, image in enumerate(asked):
            _draw(root / name / "jpg" / f"{image}.jpg", 20 + q, 10 + q)
        (root / name / f"gnd_{name}.pkl").write_bytes(pickle.dumps(content))


def _gldv2_retrieval(root: Path) -> None:
    index, queries = [f"{n}abc" for n in range(5)], ["qaaa", "qbbb"]
    for number, image in enumerate(index):
        _draw(root / "index" / image[0] / image[1] / image[2] / f"{image}.jpg", number, number % 2)
    for number, image in enumerate(queries):
        _draw(root / "test" / image[0] / image[1] / image[2] / f"{image}.jpg", 9, number)
    rows = ["id,images,Usage", "qaaa,0abc 2abc,Public", "qbbb,1abc,Private", "qccc,,Ignored"]
    (root / "retrieval_solution_v2.1.csv").write_text("\n".join(rows) + "\n")


def _instre(root: Path) -> None:
    database = [f"INSTRE-S1/{i}/{n:03}.jpg" for i in range(6) for n in range(4)]
    queries = [f"INSTRE-S1/{i}/900.jpg" for i in range(2)]
    for path in database + queries:
        _, instance, name = path.split("/")
        _draw(root / path, int(name.split(".")[0]), 30 + int(instance))
    truth = np.zeros((1, 2), dtype=[("ok", object), ("bbx", object)])
    truth[0, :] = [(np.array([[1 + 4 * i, 2 + 4 * i]]), np.array([[2, 2, 60, 40]])) for i in range(2)]
    names = {"imlist": np.array([database], dtype=object), "qimlist": np.array([queries], dtype=object)}
    scipy.io.savemat(root / "gnd_instre.mat", {**names, "gnd": truth})


def _arguments(world: Path, table: str, out: Path, *more: str) -> list[str]:
    both = [f"--protocol={name}={world / name}" for name in ("roxford5k", "rparis6k")]
    changes = ["--weights", str(world / "weights.pt")]
    changes += [part for change in _SMALL for part in ("--set", change)]
    given = [str(world / "train.csv"), *both, "--labels", str(world / "train.csv")]
    return ["paper", table, *given, "--out", str(out), *_MEASURED, *changes, *more]


_POOL = tuple(part for change in _OF_INSCLR for part in ("--set", change))


def _run(arguments: list[str]) -> str:
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, f"{shown.output} {shown.exception!r}"
    return shown.stdout


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tables: they share runs."""
    return tmp_path_factory.mktemp("out")


@pytest.mark.parametrize(
    ("table", "more", "rows"),
    [
        # Rows of one setting are one run, which the tables share: little is trained twice.
        ("table1", ("--rows", "ImageNet,ImageNet + PCA,A,D", *_POOL), 4),
        ("table2", ("--rows", "max threshold,avg topk 4x", *_POOL), 2),
        ("figure-batch", ("--rows", "nn,plain 0.65", *_POOL), 2),
        ("neighbours", ("--rows", "N_b 1,N_b 3", *_POOL), 2),
        ("pool", ("--rows", "P 50"), 1),
        ("figure-mining", _POOL, 1),
    ],
)
def test_tables_of_the_method(world: Path, out: Path, table: str, more: tuple[str, ...], rows: int) -> None:
    shown = _run(_arguments(world, table, out, *more))
    content = json.loads((out / f"{table}.json").read_text())
    assert len(content["rows"]) == rows
    assert content["columns"] == [
        f"{n} {s}" for n in ("roxford5k", "rparis6k") for s in ("easy", "medium", "hard")
    ]
    for row in content["rows"]:
        for one in row["outcomes"]:
            assert all(0 <= value <= 100 for value in one["measured"].values())
    assert "roxford5k: images described at 48 px, thumbnail, scales 1." in shown
    assert (out / f"{table}.md").read_text() == shown
    page = (out / f"{table}.html").read_text()
    assert page.count("<svg") == len([one for one in content["figures"] if one["values"]])
    if table == "table1":
        assert "(73.1)" in shown
        # A second time nothing is trained or measured again.
        assert _run(_arguments(world, table, out, *more)) == shown
    if table == "figure-mining":
        assert "| nn (all of the tuple) |" in shown


def test_the_comparison_with_rivals_and_distractors(world: Path, out: Path) -> None:
    heads = ("--rows", "DeepCluster,SimCLR", "--distractors", str(world / "far"))
    shown = _run(_arguments(world, "table3", out, *heads, "--set", "rounds.epochs=0.0"))
    content = json.loads((out / "table3.json").read_text())
    assert [row["name"] for row in content["rows"]] == ["DeepCluster", "SimCLR"]
    assert "roxford5k+R1M medium" in content["columns"]
    assert "(9.4)" in shown  # SimCLR with R1M, as printed
    with_far = content["rows"][0]["outcomes"][0]["measured"]
    assert with_far["roxford5k+R1M medium"] <= with_far["roxford5k medium"] + 1e-6


def test_the_tables_of_other_benchmarks(world: Path, out: Path) -> None:
    common = ["--out", str(out), *_MEASURED, *_POOL]
    common += [part for change in _SMALL for part in ("--set", change)]
    common += ["--weights", str(world / "weights.pt")]
    shown = _run(
        ["paper", "table5", str(world / "train.csv"), f"--protocol=gldv2={world / 'gldv2r'}", *common]
    )
    assert "| gldv2 public | gldv2 private |" in shown
    assert "| Weyand et al. 2020 | (23.3) | (25.57) |" in shown
    arguments = ["list", "instre", world / "instre" / "gnd_instre.mat", "--root", world / "instre"]
    assert "24 images of 6 instances" in _run([*map(str, arguments), "--out", str(world / "instre.csv")])
    shown = _run(
        ["paper", "table6", str(world / "instre.csv"), f"--protocol=instre={world / 'instre'}", *common]
    )
    assert "(76.2)" in shown
    assert "| Iscen et al. 2018 | (57.7) |" in shown


def test_the_first_results_of_two_models(world: Path, out: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "other.toml"
    recipe.write_text('extends = "paper-gldv2"\n')
    shown = _run(_arguments(world, "figure-retrieval", out, "--rows", "InsCLR"))
    assert "First 5 results on roxford5k" in shown
    page = (out / "figure-retrieval.html").read_text()
    assert page.count('<article class="sample">') == 4
    assert "✓" in shown


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_two_ranks_make_the_table_of_one(world: Path, tmp_path: Path) -> None:
    more = ("--rows", "ImageNet + PCA,D", *_POOL, "--set", "rounds.batch_norm=frozen")
    alone = _run(_arguments(world, "table1", tmp_path / "alone", *more))
    port = _free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "insclr", *_arguments(world, "table1", tmp_path / "two", *more)],
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    shown = []
    for rank in ranks:
        written, message = rank.communicate(timeout=300)
        assert rank.returncode == 0, message
        shown.append(written)
    assert shown[1] == ""
    assert (tmp_path / "two" / "table1.md").read_text() == shown[0]
    measured = [
        [row["outcomes"][0]["measured"] for row in json.loads((folder / "table1.json").read_text())["rows"]]
        for folder in (tmp_path / "alone", tmp_path / "two")
    ]
    for ours, theirs in zip(*measured, strict=True):
        assert ours == pytest.approx(theirs, abs=15)  # eight images: a swap of two is many points
    assert alone.count("\n") == shown[0].count("\n")
