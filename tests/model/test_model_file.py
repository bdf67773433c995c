"""Model files: they describe as before, and a changed or damaged one is refused."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

import insclr
from insclr.errors import UserError
from insclr.model.model_file import load_model, resolve_model, save_model, weights_of
from insclr.model.network import DescriptorNetwork, create_network
from insclr.model.stored import digest
from insclr.recipe import NetworkRecipe, Recipe, to_toml

_RECIPE = Recipe(network=NetworkRecipe(dim=64))


@pytest.fixture(scope="module")
def network() -> DescriptorNetwork:
    torch.manual_seed(0)
    return create_network(_RECIPE.network)


def test_a_saved_model_describes_images_as_before(network: DescriptorNetwork, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    fingerprint = save_model(file, network, _RECIPE, {"images": "12"})
    loaded = insclr.load(file)
    photos = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(loaded.network(photos), network(photos), rtol=0, atol=0)
    assert to_toml(loaded.recipe) == to_toml(_RECIPE)
    assert loaded.fingerprint == fingerprint
    assert loaded.notes == {"images": "12"}


def test_equal_models_are_equal_files(network: DescriptorNetwork, tmp_path: Path) -> None:
    notes = {"images": "12", "labels": 'a "quoted" text, é and \n'}
    contents = set()
    for number in range(6):
        save_model(tmp_path / f"{number}.safetensors", network, _RECIPE, notes)
        contents.add((tmp_path / f"{number}.safetensors").read_bytes())
    assert len(contents) == 1
    assert load_model(tmp_path / "0.safetensors").notes == notes


def test_a_run_folder_is_a_model(network: DescriptorNetwork, tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", network, _RECIPE)
    assert to_toml(resolve_model(tmp_path).recipe) == to_toml(_RECIPE)


def test_a_truncated_file_is_refused(network: DescriptorNetwork, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_model(file, network, _RECIPE)
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(UserError, match="not a whole model file"):
        load_model(file)


def test_a_changed_weight_or_recipe_is_refused(network: DescriptorNetwork, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_model(file, network, _RECIPE)
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    (tmp_path / "weight.safetensors").write_bytes(content)
    with safetensors.safe_open(file, framework="pt") as opened:
        metadata = dict(opened.metadata())
        weights = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    metadata["recipe"] = metadata["recipe"].replace("gem_p = 3.0", "gem_p = 2.0")
    safetensors.torch.save_file(weights, tmp_path / "recipe.safetensors", metadata=metadata)
    for changed in ("weight", "recipe"):
        with pytest.raises(UserError, match="was changed"):
            load_model(tmp_path / f"{changed}.safetensors")


def test_other_files_and_missing_ones_say_what_to_do(tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"x": torch.zeros(1)}, other)
    with pytest.raises(UserError, match="not an InsCLR model"):
        load_model(other)
    with pytest.raises(UserError, match="pretrained:NAME"):
        resolve_model(tmp_path / "nothing")
    with pytest.raises(UserError, match="is its training finished"):
        resolve_model(tmp_path)


def test_metadata_is_readable_by_any_tool(network: DescriptorNetwork, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_model(file, network, _RECIPE)
    with safetensors.safe_open(file, framework="pt") as opened:
        assert json.loads(opened.metadata()["notes"]) == {}
        assert 'backbone = "efficientnet_lite0"' in opened.metadata()["recipe"]


def test_a_model_of_an_older_version_still_describes(tmp_path: Path) -> None:
    """Its rounds are written in keys that are gone; what describing needs is still there."""
    torch.manual_seed(1)
    network = create_network(NetworkRecipe(dim=32, bias=True))
    recipe = """
        name = "fast"
        guard = true
        [network]
        backbone = "efficientnet_lite0"
        dim = 32
        start = "views"
        [descriptor]
        size = 96
        fit = "square"
        scales = [1.0]
        zoom = 0.7
        [[rounds]]
        method = "D"
        members = "mined"
    """
    file = tmp_path / "model.safetensors"
    weights = {key: value.contiguous() for key, value in network.state_dict().items()}
    metadata = {"format": "insclr-1", "recipe": recipe, "notes": "{}"}
    metadata["digest"] = digest(weights_of(weights), metadata)
    safetensors.torch.save_file(weights, file, metadata)
    loaded = load_model(file)
    assert (loaded.recipe.descriptor.size, loaded.recipe.descriptor.zoom) == (96, 0.7)
    photos = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(loaded.network(photos), network(photos), rtol=0, atol=0)


def test_a_model_with_weights_that_are_not_finite_is_refused(
    network: DescriptorNetwork, tmp_path: Path
) -> None:
    broken = create_network(_RECIPE.network)
    broken.load_state_dict(network.state_dict())
    with torch.no_grad():
        broken.fc.weight[0, 0] = float("nan")  # type: ignore[operator, union-attr]
    file = tmp_path / "model.safetensors"
    save_model(file, broken, _RECIPE)
    with pytest.raises(UserError, match=r"not finite, such as fc\.weight"):
        load_model(file)
