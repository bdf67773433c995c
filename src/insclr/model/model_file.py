"""One file a model: weights and, in its metadata, the recipe that made it and a digest of its content."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from insclr.errors import UserError
from insclr.files import whole_file
from insclr.model.network import DescriptorNetwork, create_network
from insclr.model.stored import (
    FORMAT,
    MODEL_NAME,
    PRETRAINED,
    StoredModel,
    digest,
    find_model_file,
    read_model_file,
)
from insclr.model.weights import misfits
from insclr.recipe import DescriptorRecipe, NetworkRecipe, Recipe, to_toml

__all__ = ["MODEL_NAME", "Model", "build_network", "load_model", "resolve_model", "save_model", "weights_of"]

# A pretrained network outside a run: whole images at the size the embedded backbone is quick and good at.
_PRETRAINED_DESCRIPTOR = DescriptorRecipe(size=224, fit="square", scales=(1.0,))


@dataclass(frozen=True)
class Model:
    """A network ready to describe images, the recipe it came from, and a name for its exact weights."""

    network: DescriptorNetwork
    recipe: Recipe
    fingerprint: str
    notes: Mapping[str, str] = field(default_factory=dict)


def save_model(
    path: Path | str, network: DescriptorNetwork, recipe: Recipe, notes: Mapping[str, str] = {}
) -> str:
    """Write the model whole under `path` and give back its fingerprint; `notes` stand beside the recipe."""
    weights = {key: value.detach().cpu().contiguous() for key, value in network.state_dict().items()}
    metadata = {"format": FORMAT, "recipe": to_toml(recipe), "notes": json.dumps(dict(notes))}
    metadata["digest"] = digest(weights_of(weights), metadata)
    with whole_file(path) as scratch:
        safetensors.torch.save_file(weights, scratch, metadata=metadata)
    return metadata["digest"][:16]


def load_model(path: Path | str) -> Model:
    """Read a model file; one that was changed or cut short is refused."""
    stored = read_model_file(path)
    return Model(build_network(stored, path), stored.recipe, stored.fingerprint, stored.notes)


def build_network(stored: StoredModel, path: Path | str) -> DescriptorNetwork:
    """The network of what was read from `path`; UserError where its tensors are not those of its recipe."""
    network = create_network(stored.recipe.network, pretrained=False)
    weights = {key: torch.from_numpy(value) for key, value in stored.weights.items()}
    wanted = network.state_dict()
    if what := misfits(weights, wanted, wanted):
        raise UserError(f"The tensors in {path} are not those of its recipe: {what}. Copy or train it again.")
    network.load_state_dict(weights)
    return network


def resolve_model(name: str | Path, weights: str = "") -> Model:
    """The model a user names: a run folder, a model file, or `pretrained:BACKBONE`."""
    path = find_model_file(name)
    if path is not None:
        return load_model(path)
    recipe = Recipe(
        name=str(name),
        network=NetworkRecipe(backbone=str(name).removeprefix(PRETRAINED), weights=weights, dim=0),
        descriptor=_PRETRAINED_DESCRIPTOR,
    )
    network = create_network(recipe.network)
    return Model(network, recipe, digest(weights_of(network.state_dict()), {})[:16])


def weights_of(state: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """A state dict as arrays on the CPU."""
    return {key: value.detach().cpu().contiguous().numpy() for key, value in state.items()}
