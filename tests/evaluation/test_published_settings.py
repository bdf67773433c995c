"""A protocol brings the size, fit and scales of its published numbers, unless flags say otherwise."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import insclr
from insclr.cli import app, evaluation, training  # noqa: F401  (registers the commands)
from insclr.data.decode import decode
from insclr.describe.pipeline import decoded_longest
from insclr.evaluation.protocol import find_benchmark
from insclr.recipe import DescriptorRecipe

PRETRAINED = "pretrained:efficientnet_lite0"


@pytest.fixture
def roxford(tmp_path: Path) -> Path:
    """Six photos of 60 x 40 px in the layout of ROxford, one of them a query with a box."""
    names = [f"image_{number}" for number in range(5)]
    truth = [{"bbx": [10, 5, 40, 35], "easy": [0], "hard": [1], "junk": [2]}]
    content = {"imlist": names, "qimlist": ["asked"], "gnd": truth}
    (tmp_path / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(content))
    (tmp_path / "jpg").mkdir()
    for number, name in enumerate(["asked", *names]):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "jpg" / f"{name}.jpg")
    return tmp_path


@pytest.mark.parametrize("name", ["roxford5k", "rparis6k", "oxford5k", "paris6k", "instre", "gldv2"])
def test_published_sizes(name: str) -> None:
    published = find_benchmark(name).descriptor
    assert published.size == (256 if name == "instre" else 1024)
    assert published.scales == pytest.approx((2**0.5, 1, 2**-0.5))
    assert published.fit == "thumbnail"


def test_a_protocol_brings_its_settings_to_a_pretrained_network(roxford: Path) -> None:
    result = insclr.evaluate(PRETRAINED, protocol="roxford5k", root=roxford)
    told = json.loads(json.dumps(result.to_json()))
    assert (told["size"], told["fit"]) == (1024, "thumbnail")
    assert told["scales"] == pytest.approx([2**0.5, 1, 2**-0.5])
    assert "described at 1024 px, thumbnail, scales 1.41, 1, 0.707" in result.table()


def test_flags_win_over_the_protocol(roxford: Path, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    asked = ["evaluate", PRETRAINED, "--protocol", "roxford5k", "--root", str(roxford), "--size", "64"]
    shown = CliRunner().invoke(app, [*asked, "--scales", "1", "--json", str(numbers)])
    assert shown.exit_code == 0, shown.output
    told = json.loads(numbers.read_text())
    assert (told["size"], told["fit"], told["scales"]) == (64, "thumbnail", [1.0])


def test_a_whitening_is_learned_as_the_protocol_describes(roxford: Path, tmp_path: Path) -> None:
    white = insclr.whiten(
        PRETRAINED, roxford / "jpg", tmp_path / "white.safetensors", protocol="instre", dim=2
    )
    assert white.recipe.descriptor == find_benchmark("instre").descriptor


def test_a_thumbnail_is_made_from_all_pixels(tmp_path: Path) -> None:
    file = tmp_path / "large.jpg"
    Image.new("RGB", (800, 600)).save(file)
    assert decode(file, decoded_longest(DescriptorRecipe(size=64, fit="thumbnail"))).size == (800, 600)
    assert decode(file, decoded_longest(DescriptorRecipe(size=64))).size == (100, 75)
