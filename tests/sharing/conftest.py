"""A hub of our own, a login to it, and a small model to share."""

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
import torch

from helpers.hub_server import HubServer, running_hub
from insclr.model.model_file import save_model
from insclr.model.network import create_network
from insclr.recipe import DescriptorRecipe, NetworkRecipe, Recipe

PRIVATE = "/home/alice/customers/acme/resnet10t-special.pth"
RECIPE = Recipe(
    name="small",
    about="for tests",
    network=NetworkRecipe(backbone="test_resnet", dim=16),
    descriptor=DescriptorRecipe(size=64, fit="square", scales=(1.0,)),
)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """The stand-in, which everything in this process takes for the hub; alice is logged in."""
    constants = huggingface_hub.constants
    with running_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        for place in (constants, huggingface_hub.file_download):  # older versions keep a second one
            monkeypatch.setattr(place, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        # Older versions decide once a session whether they are offline.
        getattr(huggingface_hub.utils, "reset_sessions", lambda: None)()
        # The stand-in takes plain uploads: the chunk store of hf_xet is a service of its own.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "nobody" / "token"))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_alice")
        yield server


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file whose recipe says nothing private."""
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("small-model") / "model.safetensors"
    save_model(file, create_network(RECIPE.network, pretrained=False), RECIPE, {"images": "1234"})
    return file


@pytest.fixture(scope="session")
def private_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that started from a weights file in a folder with a telling name."""
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("private-model") / "mine.safetensors"
    recipe = RECIPE.with_(network=RECIPE.network.with_(weights=PRIVATE))
    save_model(file, create_network(RECIPE.network, pretrained=False), recipe)
    return file
