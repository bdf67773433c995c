"""The recipes of CONTRIBUTING.md are true: they are followed to the letter in a copy of the source."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import insclr

_ROOT = Path(__file__).parents[1]
_PAGE = (_ROOT / "CONTRIBUTING.md").read_text()
_BLOCK = re.compile(r"```(?:python|toml)\n# (\S+)(?: after: ([^\n]+))?\n(.*?)```", re.DOTALL)

# What a person would try with the three additions; 48 drawn images in argv[1], a new folder in argv[2].
_TRIAL = """
import json, sys
from pathlib import Path
import torch
from insclr.evaluation.protocol import load_protocol
from insclr.model.backbones import create_backbone
from insclr.tracking import read_metrics
from insclr.training.run import train

photos, out = map(Path, sys.argv[1:3])
train(photos, out / "run", "toy", changes=tuple(sys.argv[3:]), labels=photos / "labels.csv")
records = read_metrics(out / "run")
assert 0 < records[-1]["map"] <= 100, records[-1]

(out / "gnd_toy.json").write_text(json.dumps({"database": ["a.jpg", "b.jpg"], "queries": ["q.jpg"], "right": [[1]]}))
benchmark = load_protocol("toy", out)
assert benchmark.metric([[1, 0]], benchmark.settings["all"]).means["map"] == 1.0
assert benchmark.metric([[0, 1]], benchmark.settings["all"]).means["map"] == 0.25  # trapezoid: (0 + 1/2) / 2

backbone = create_backbone("toy_net", pretrained=False)
assert backbone(torch.zeros(2, 3, 32, 48)).map.shape == (2, 24, 2, 3)
print("all three work")
"""
_SMALL = (
    "workers=0",
    "network.dim=32",
    "descriptor.size=64",
    "rounds.augmented_size=48",
    "rounds.plain_size=48",
    "rounds.cached_views=2",
    "rounds.epochs=0",
    "rounds.steps=3",
    "rounds.tuples=8",
)


def _follow(page: str, root: Path) -> None:
    """Write every block of the page into the files that it names."""
    for path, after, block in _BLOCK.findall(page):
        file = root / path
        if not after:
            assert not file.exists(), f"{path} is there already"
            file.write_text(block)
            continue
        lines = file.read_text().splitlines(keepends=True)
        (place,) = [number for number, line in enumerate(lines) if after in line]
        lines.insert(place + 1, block)
        file.write_text("".join(lines))


def test_the_recipes_work_as_written(small_collection: Path, tmp_path: Path) -> None:
    shutil.copytree(
        _ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(_ROOT / name, tmp_path)
    _follow(_PAGE, tmp_path)
    # What `pip install -e` does to make entry points known.
    install = [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "egg_info"]
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True)
    (out := tmp_path / "out").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _TRIAL, str(small_collection), str(out), *_SMALL],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all three work\n")


def test_the_files_that_it_names_exist() -> None:
    named = set(re.findall(r"`((?:src|tests|docs)/[^`\s]*)`", _PAGE))
    assert "tests/helpers/store_fixtures.py" in named
    for path in named:
        assert "toy" in path or (_ROOT / path).exists(), path


def test_the_citation_has_the_version_of_the_package() -> None:
    assert f"\nversion: {insclr.__version__}\n" in (_ROOT / "CITATION.cff").read_text()
