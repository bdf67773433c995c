"""One file a model: weights and, in its metadata, the recipe that made it and a digest of its content."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from insclr.errors import UserError
from insclr.files import whole_file
from insclr.model.network import DescriptorNetwork, create_network
from insclr.model.weights import misfits, require_finite
from insclr.recipe import DescriptorRecipe, NetworkRecipe, Recipe, from_table, to_toml

MODEL_NAME = "model.safetensors"
_PRETRAINED = "pretrained:"
_MAX_SIZE, _MAX_SCALES = 4096, 16
_FORMAT = "insclr-2"
_OLDER_FORMAT = "insclr-1"  # its rounds are written in words of then
# A pretrained network outside a run: whole images at the size the embedded backbone is quick and good at.
_PRETRAINED_DESCRIPTOR = DescriptorRecipe(size=224, fit="square", scales=(1.0,))


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


def save_model(
    path: Path | str, network: DescriptorNetwork, recipe: Recipe, notes: Mapping[str, str] = {}
) -> str:
    """Write the model whole under `path` and give back its fingerprint; `notes` stand beside the recipe."""
    weights = {key: value.detach().cpu().contiguous() for key, value in network.state_dict().items()}
    metadata = {"format": _FORMAT, "recipe": to_toml(recipe), "notes": json.dumps(dict(notes))}
    metadata["digest"] = _digest(weights, metadata)
    with whole_file(path) as scratch:
        safetensors.torch.save_file(weights, scratch, metadata=metadata)
    return metadata["digest"][:16]


def load_model(path: Path | str) -> Model:
    """Read a model file; one that was changed or cut short is refused."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no model file {path}.")
    try:
        with safetensors.safe_open(path, framework="pt") as opened:
            metadata = dict(opened.metadata() or {})
            weights = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a whole model file ({error}): copy or train it again.") from error
    if metadata.get("format") not in (_FORMAT, _OLDER_FORMAT):
        raise UserError(f"{path} is not an InsCLR model; to start from its weights, pass it with --weights.")
    expected = metadata.pop("digest", "")
    if _digest(weights, metadata) != expected:
        raise UserError(f"{path} was changed after it was written: copy or train it again.")
    require_finite(weights, str(path))
    try:
        recipe = _read_recipe(metadata)
        notes = {str(name): str(text) for name, text in json.loads(metadata["notes"]).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} has no recipe that can be read ({error}): copy or train it again."
        ) from error
    _require_sane(path, recipe.descriptor)
    network = create_network(recipe.network, pretrained=False)
    wanted = network.state_dict()
    if what := misfits(weights, wanted, wanted):
        raise UserError(f"The tensors in {path} are not those of its recipe: {what}. Copy or train it again.")
    network.load_state_dict(weights)
    return Model(network, recipe, expected[:16], notes, str(path.absolute()))


def with_weights(name: str | Path, weights: str | Path = "") -> str:
    """The name of a pretrained backbone with the file that its weights are in: pretrained:BACKBONE@FILE.

    A store keeps this name, so the file is found again from any folder.
    """
    if not weights or "@" in str(name):
        return str(name)
    if not str(name).startswith(_PRETRAINED):
        raise UserError(
            f"--weights goes with a model named pretrained:NAME, not with {str(name) or 'none'!r}: "
            "a trained model has weights of its own."
        )
    return f"{name}@{Path(weights).absolute()}"


def resolve_model(name: str | Path) -> Model:
    """The model a user names: a run folder, a model file, `pretrained:BACKBONE` or `pretrained:BACKBONE@WEIGHTS`."""
    if str(name).startswith(_PRETRAINED):
        backbone, _, weights = str(name).removeprefix(_PRETRAINED).partition("@")
        recipe = Recipe(
            name=str(name),
            network=NetworkRecipe(backbone=backbone, weights=weights, dim=0),
            descriptor=_PRETRAINED_DESCRIPTOR,
        )
        network = create_network(recipe.network)
        return Model(network, recipe, _digest(network.state_dict(), {})[:16], source=str(name))
    path = Path(name)
    if path.is_dir():
        if not (path / MODEL_NAME).is_file():
            raise UserError(
                f"{path} holds no {MODEL_NAME}: is its training finished? (insclr train --resume)"
            )
        path = path / MODEL_NAME
    if not path.exists():
        raise UserError(
            f"There is no model {name}: give a run folder, a {MODEL_NAME} file, or pretrained:NAME "
            f"(for example pretrained:efficientnet_lite0)."
        )
    return load_model(path)


def _read_recipe(metadata: Mapping[str, str]) -> Recipe:
    """The recipe in a model file; of an older one the parts that describing needs."""
    table = tomllib.loads(metadata["recipe"])
    if metadata["format"] == _OLDER_FORMAT:
        network = NetworkRecipe(bias=True).with_(**table["network"])
        descriptor = DescriptorRecipe().with_(
            **table["descriptor"] | {"scales": tuple(table["descriptor"]["scales"])}
        )
        return Recipe(name=table["name"], network=network, descriptor=descriptor)
    return from_table(table)


def _require_sane(path: Path, descriptor: DescriptorRecipe) -> None:
    """Refuse sizes that would make describing one image take all memory."""
    size, scales = descriptor.size, descriptor.scales
    sane = 1 <= size <= _MAX_SIZE and 1 <= len(scales) <= _MAX_SCALES and 0 <= descriptor.zoom <= 1
    if not sane or not all(0 < scale * size <= _MAX_SIZE for scale in scales):
        raise UserError(
            f"{path} describes images at size {size}, scales {scales}, zoom {descriptor.zoom}: sizes up to "
            f"{_MAX_SIZE} and {_MAX_SCALES} scales are possible. Train it again with other settings."
        )


def _digest(weights: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for key in sorted(metadata):
        digest.update(f"{key}={metadata[key]}\n".encode())
    for key in sorted(weights):
        digest.update(key.encode())
        digest.update(weights[key].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
