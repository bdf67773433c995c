"""Model files that were made up or damaged: one sentence, whatever their digest says."""

import json
import resource
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from insclr.errors import UserError
from insclr.model.model_file import load_model, save_model, weights_of
from insclr.model.network import create_network
from insclr.model.stored import digest
from insclr.recipe import NetworkRecipe, Recipe


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Recipe(network=NetworkRecipe(dim=16))
    file = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(file, create_network(recipe.network), recipe, {"images": "3"})
    return file


def changed(good: Path, out: Path, metadata: dict[str, str], drop: str = "", **add: torch.Tensor) -> Path:
    """The model with other metadata and tensors, and a digest that fits them."""
    with safetensors.safe_open(good, "pt") as opened:
        kept = dict(opened.metadata()) | metadata
        weights = {key: opened.get_tensor(key) for key in opened.keys() if key != drop}  # noqa: SIM118
    del kept["digest"]
    weights |= add
    kept["digest"] = digest(weights_of(weights), kept)
    safetensors.torch.save_file(weights, out, kept)
    return out


@pytest.mark.parametrize("notes", ["", "{", "[]", "3", "null", '"text"', "[" * 100_000])
def test_bad_notes_are_reported(good: Path, tmp_path: Path, notes: str) -> None:
    with pytest.raises(UserError, match="no recipe that can be read"):
        load_model(changed(good, tmp_path / "m", {"notes": notes}))


@pytest.mark.parametrize(
    "recipe", ["name = ", "", "x" * 1000, "[network]\ndim = 'many'", "[network]\nwhat = 1"]
)
def test_bad_recipes_are_reported(good: Path, tmp_path: Path, recipe: str) -> None:
    with pytest.raises(UserError):
        load_model(changed(good, tmp_path / "m", {"recipe": recipe, "format": "insclr-1"}))
    if recipe:
        with pytest.raises(UserError):
            load_model(changed(good, tmp_path / "m", {"recipe": recipe}))


def test_a_size_that_no_machine_holds_is_refused_before_it_is_made(good: Path, tmp_path: Path) -> None:
    large = "[network]\ndim = 1000000000000\n[descriptor]\nscales = [1.0]\n"
    for text, kind in ((f'name = "x"\n{large}', "insclr-1"), (large, "insclr-2")):
        with pytest.raises(UserError, match=r"no recipe that can be read|network.dim"):
            load_model(changed(good, tmp_path / "m", {"recipe": text, "format": kind}))


def test_a_small_file_that_names_a_giant_is_refused_before_it_is_built(good: Path, tmp_path: Path) -> None:
    """27 GB of weights by its name: shapes are compared before any of it is built."""
    with safetensors.safe_open(good, "pt") as opened:
        recipe = opened.metadata()["recipe"].replace("efficientnet_lite0", "vit_7b_patch16_dinov3")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match="are not those of its recipe"):
        load_model(changed(good, tmp_path / "m", {"recipe": recipe}))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


def test_missing_unknown_and_misshapen_tensors_are_named(good: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"1 missing \(fc.weight\)"):
        load_model(changed(good, tmp_path / "m", {}, drop="fc.weight"))
    with pytest.raises(UserError, match=r"1 unknown \(extra\)"):
        load_model(changed(good, tmp_path / "m", {}, extra=torch.ones(1)))
    with pytest.raises(UserError, match=r"1 of another shape \(fc.weight\)"):
        load_model(changed(good, tmp_path / "m", {}, **{"fc.weight": torch.ones(3, 4)}))  # type: ignore[arg-type]


def test_weights_that_are_not_finite_are_refused(good: Path, tmp_path: Path) -> None:
    bias = torch.full((16, 1280), float("nan"))
    with pytest.raises(UserError, match="not finite"):
        load_model(changed(good, tmp_path / "m", {}, **{"fc.weight": bias}))  # type: ignore[arg-type]


@pytest.mark.parametrize("line", ["size = 1000000", "scales = [1e9]", "scales = [0.0]", "zoom = -4.0"])
def test_sizes_that_no_memory_could_hold_are_refused(good: Path, tmp_path: Path, line: str) -> None:
    with safetensors.safe_open(good, "pt") as opened:
        recipe = opened.metadata()["recipe"]
    key = line.split(" =", maxsplit=1)[0]
    lines = recipe.splitlines()
    at = lines.index("[descriptor]")
    place = next(i for i in range(at, len(lines)) if lines[i].startswith(f"{key} ="))
    lines[place] = line
    with pytest.raises(UserError):
        load_model(changed(good, tmp_path / "m", {"recipe": "\n".join(lines)}))


@pytest.mark.parametrize("length", [0, 4, 8, 100, 5000])
def test_a_cut_model_file_is_reported(good: Path, tmp_path: Path, length: int) -> None:
    (tmp_path / "m").write_bytes(good.read_bytes()[:length])
    with pytest.raises(UserError, match="not a whole model file"):
        load_model(tmp_path / "m")


def test_a_giant_header_is_reported(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes((2**60).to_bytes(8, "little") + json.dumps({}).encode())
    with pytest.raises(UserError, match="not a whole model file"):
        load_model(tmp_path / "m")
