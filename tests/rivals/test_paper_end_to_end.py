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
from safetensors.torch import load_file
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
    """GLDv2, ROxford, RParis, the classic Oxford5k and Paris6k, INSTRE and distractors, a handful of images each."""
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
    _classic(root)
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
    listed = ["list", "instre", root / "instre" / "gnd_instre.mat", "--root", root / "instre"]
    shown = CliRunner().invoke(app, [*map(str, listed), "--out", str(root / "instre.csv")])
    assert "24 images of 6 instances" in shown.output
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


def _classic(root: Path) -> None:
    """Both have 55 queries; here several of them are the same image."""
    for name, prefix in (("oxford5k", "oxc1_"), ("paris6k", "")):
        images = [f"{name}_{number:06}" for number in range(8)]
        for number, image in enumerate(images):
            _draw(root / name / "jpg" / f"{image}.jpg", number, 20 + number % 2)
        for q in range(55):
            kinds = {"good": images[q % 2 :: 4], "ok": images[q % 2 + 2 :: 4], "junk": images[7:]}
            kinds["ok"] = [image for image in kinds["ok"] if image not in kinds["junk"]]
            (root / name / f"hall_{q + 1}_query.txt").write_text(f"{prefix}{images[q % 2]} 4 4 60 44\n")
            for kind, listed in kinds.items():
                (root / name / f"hall_{q + 1}_{kind}.txt").write_text("".join(f"{one}\n" for one in listed))


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
    """The command of a table, on GLDv2 and the revisited benchmarks where it has no others of its own."""
    changes = ["--weights", str(world / "weights.pt")]
    changes += [part for change in _SMALL for part in ("--set", change)]
    images, protocols, labels = world / "train.csv", {"roxford5k": "roxford5k", "rparis6k": "rparis6k"}, True
    if table == "table4":
        protocols = {"oxford5k": "oxford5k", "paris6k": "paris6k"}
    if table == "table5":
        protocols = {"gldv2": "gldv2r"}
    if table == "table6":
        images, protocols, labels = world / "instre.csv", {"instre": "instre"}, False
    given = [str(images), *(f"--protocol={name}={world / root}" for name, root in protocols.items())]
    given += ["--labels", str(images)] if labels else []
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
        # The log has every tenth step.
        ("figure-mining", (*_POOL, "--set", "rounds.steps=20"), 1),
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
        assert "0.92 at the end" in shown


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
    shown = _run(_arguments(world, "table4", out, *_POOL, "--distractors", str(world / "far")))
    assert "| oxford5k | oxford5k+100k | paris6k | paris6k+100k |" in shown
    assert "| Iscen et al. 2018 | (78.2) | (72.6) | (85.1) | (78.0) |" in shown
    (ours,) = [row for row in json.loads((out / "table4.json").read_text())["rows"] if row["outcomes"]]
    measured = ours["outcomes"][0]["measured"]
    assert measured["oxford5k+100k"] <= measured["oxford5k"] + 1e-6
    shown = _run(_arguments(world, "table5", out, *_POOL))
    assert "| gldv2 public | gldv2 private |" in shown
    assert "| Weyand et al. 2020 | (23.3) | (25.57) |" in shown
    shown = _run(_arguments(world, "table6", out, *_POOL))
    assert "(76.2)" in shown
    assert "| Iscen et al. 2018 | (57.7) |" in shown


def test_the_first_results_of_two_models(world: Path, out: Path) -> None:
    shown = _run(_arguments(world, "figure-retrieval", out, "--rows", "InsCLR"))
    assert "First 5 results on roxford5k" in shown
    page = (out / "figure-retrieval.html").read_text()
    assert page.count('<article class="sample">') == 4
    assert "✓" in shown


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize("layers", ["late", "all"])
def test_the_comparison_with_rivals_on_an_own_set(
    world: Path, small_collection: Path, tmp_path: Path, layers: str
) -> None:
    common = ["paper", "rivals", "--data", str(small_collection / "labels.csv"), "--out", str(tmp_path)]
    common += ["--layers", layers, "--rows", "default,scan-nn,deepcluster", "--sample", "20"]
    measured = ["--protocol", f"roxford5k={world / 'roxford5k'}", *_MEASURED]
    shown = _run([*common, *measured])
    rows = {row["name"]: row for row in json.loads((tmp_path / f"rivals-{layers}.json").read_text())["rows"]}
    unguarded = rows["default without its guard"]
    assert list(rows) == [
        "pretrained", "D (fast)", "default", "default without its guard", "deepcluster", "scan-nn", "oracle"
    ]  # fmt: skip
    for name in ("scan-nn", "deepcluster"):
        assert rows[name]["rate"] == {"late": "0.0001, views", "all": "3e-05, views"}[layers]
        # A run has eight steps at least, and reads the clock once a step.
        assert rows[name]["seconds"] >= 0.5 * unguarded["seconds"]
    for row in rows.values():
        assert set(row["measured"]) == {f"roxford5k {setting}" for setting in ("easy", "medium", "hard")}
    assert f"| scan-nn | {small_collection.name}-20 | rival |" in shown
    # Several ranks read the runs of one, and write one table.
    assert _run_ranks([sys.executable, "-m", "insclr", *common, *measured]) == [shown, ""]


def _run_ranks(command: list[str]) -> list[str]:
    """What two ranks write to their output."""
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
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
    return shown


_ALIKE = (*_POOL, "--set", "rounds.batch_norm=frozen", "--set", "rounds.tuples=4")


@pytest.mark.parametrize(
    ("table", "more"),
    [
        ("table1", ("--rows", "ImageNet + PCA,D")),
        ("table2", ("--rows", "max threshold")),
        ("figure-batch", ("--rows", "plain 0.65")),
        ("neighbours", ("--rows", "N_b 1")),
        ("pool", ("--rows", "P 50")),
        ("table3", ("--rows", "InsCLR", "--distractors")),
        ("table4", ()),
        ("table5", ()),
        ("table6", ("--rows", "InsCLR")),
        ("figure-mining", ("--set", "rounds.steps=10")),
        ("figure-retrieval", ("--rows", "InsCLR")),
    ],
)
def test_two_ranks_make_the_table_of_one(
    world: Path, tmp_path: Path, table: str, more: tuple[str, ...]
) -> None:
    more = (*more, str(world / "far")) if "--distractors" in more else more
    alone = _run(_arguments(world, table, tmp_path / "alone", *_ALIKE, *more))
    command = [sys.executable, "-m", "insclr", *_arguments(world, table, tmp_path / "two", *_ALIKE, *more)]
    shown = _run_ranks(command)
    assert shown[1] == ""
    assert (tmp_path / "two" / f"{table}.md").read_text() == shown[0]
    assert alone.count("\n") == shown[0].count("\n")
    models = [sorted((tmp_path / name).glob("runs/*/*/model.safetensors")) for name in ("alone", "two")]
    assert [one.relative_to(tmp_path / "alone") for one in models[0]] == [
        one.relative_to(tmp_path / "two") for one in models[1]
    ]
    assert models[0]
    for one, other in zip(*models, strict=True):
        ours, theirs = load_file(one), load_file(other)
        apart = torch.cat(
            [(weights.float() - theirs[name].float()).abs().flatten() for name, weights in ours.items()]
        )
        # The first steps of Adam are as large for a gradient of nearly zero, whose sign rounding decides.
        assert float((apart > 1e-5).float().mean()) < 0.01
