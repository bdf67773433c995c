"""Read and write model files: weights, with the recipe and a digest in the metadata."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from insclr.errors import UserError
from insclr.model.network import DescriptorNetwork, create_network
from insclr.model.stored import (
    MODEL_NAME,
    StoredModel,
    digest,
    find_model_file,
    pretrained_recipe,
    read_model_file,
    trunk_digest,
    write_model_file,
)
from insclr.model.weights import misfits
from insclr.recipe import NetworkRecipe, Recipe

__all__ = ["MODEL_NAME", "Model", "as_model", "load_model", "resolve_model", "save_model", "weights_of"]


class NetworkDigests:
    """Digests of the weights of a network that is trained; computed again after a change only."""

    def __init__(self, recipe: NetworkRecipe) -> None:
        self._recipe = recipe
        self._known: dict[bool, tuple[list[tuple[int, int]], str]] = {}  # with the versions of the weights

    def of(self, network: DescriptorNetwork, *, early: bool = False) -> str:
        """The digest of all weights before the FC, or of the early layers."""
        state = network.backbone.early_state() if early else network.state_dict(keep_vars=True)
        # Every write in place, by an optimizer or a load, counts the version of a tensor up.
        version = [(id(value), value._version) for name, value in state.items() if not name.startswith("fc.")]
        if early not in self._known or self._known[early][0] != version:
            weights = weights_of(state)
            found = digest(weights, {}) if early else trunk_digest(self._recipe, weights)
            self._known[early] = version, found
        return self._known[early][1]


@dataclass(frozen=True)
class Model:
    """A network ready to describe images, the recipe it came from, and a name for its exact weights.

    `source` is what `resolve_model` takes to find it again.
    """

    network: DescriptorNetwork
    recipe: Recipe
    fingerprint: str
    notes: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    def __repr__(self) -> str:
        return (
            f"Model({self.source or 'in memory'}: {self.recipe.network.backbone}, {self.network.dim} numbers)"
        )


def save_model(
    path: Path | str, network: DescriptorNetwork, recipe: Recipe, notes: Mapping[str, str] = {}
) -> str:
    """Write the model whole under `path` and give back its fingerprint; `notes` stand beside the recipe."""
    return write_model_file(path, weights_of(network.state_dict()), recipe, notes).fingerprint


def load_model(path: Path | str) -> Model:
    """Read a model file; one that was changed or cut short is refused."""
    return as_model(read_model_file(path), path)


def as_model(stored: StoredModel, path: Path | str) -> Model:
    """The model of what was read from `path`."""
    source = str(Path(path).absolute())
    return Model(_network(stored, path), stored.recipe, stored.fingerprint, stored.notes, source)


def _network(stored: StoredModel, path: Path | str) -> DescriptorNetwork:
    """The network of what was read from `path`; UserError where its tensors are not those of its recipe."""
    weights = {key: torch.from_numpy(value) for key, value in stored.weights.items()}
    # The shapes without the numbers: a small file may name a network that would fill the memory.
    with torch.device("meta"):
        wanted = create_network(stored.recipe.network, pretrained=False).state_dict()
    if what := misfits(weights, wanted, wanted):
        raise UserError(f"The tensors in {path} are not those of its recipe: {what}. Copy or train it again.")
    network = create_network(stored.recipe.network, pretrained=False)
    network.load_state_dict(weights)
    return network


def resolve_model(name: str | Path) -> Model:
    """The model a user names: a run folder, a model file, `pretrained:BACKBONE` or `pretrained:BACKBONE@WEIGHTS`."""
    path = find_model_file(name)
    if path is not None:
        return load_model(path)
    recipe = pretrained_recipe(str(name))
    network = create_network(recipe.network)
    return Model(network, recipe, digest(weights_of(network.state_dict()), {})[:16], source=str(name))


def weights_of(state: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """A state dict as arrays on the CPU."""
    return {key: value.detach().cpu().contiguous().numpy() for key, value in state.items()}
