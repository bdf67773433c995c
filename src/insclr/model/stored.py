"""Read and write a model file without torch, for searches that need only the settings and the last layer."""

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from insclr.data.formats import what_is
from insclr.errors import UserError
from insclr.files import whole_file
from insclr.recipe import DescriptorRecipe, NetworkRecipe, Recipe, from_table, rename_old_keys, to_toml
from insclr.recipe.backbone_names import EMBEDDED

MODEL_NAME = "model.safetensors"
PRETRAINED = "pretrained:"
FORMAT = "insclr-2"
_OLDER_FORMAT = "insclr-1"  # its rounds are written in words of then
_MAX_SIZE, _MAX_SCALES = 4096, 16
# A pretrained network outside a run: whole images at the size the embedded backbone is quick and good at.
_PRETRAINED_DESCRIPTOR = {"size": 224, "fit": "square", "scales": [1.0]}

Weights = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class StoredModel:
    """The weights by their names, the recipe they came from, and a digest of exactly this content."""

    weights: Weights
    recipe: Recipe
    digest: str
    notes: Mapping[str, str] = field(default_factory=dict)
    format: str = FORMAT

    @property
    def fingerprint(self) -> str:
        """The digest as far as it takes to tell models apart."""
        return self.digest[:16]


def find_model_file(name: str | Path) -> Path | None:
    """The model file that a user names, itself or by its run folder; None for a pretrained backbone."""
    if str(name).startswith(PRETRAINED):
        return None
    path = Path(name)
    if (kind := what_is(path)) in ("a store", "a folder of photos", "a photo"):
        raise UserError(
            f"{path} is {kind}, not a model: give a run folder of `insclr train`, a model file, or pretrained:NAME."
        )
    if path.is_dir():
        if not (path / MODEL_NAME).is_file():
            raise UserError(
                f"{path} holds no {MODEL_NAME}: is its training finished? (insclr train --resume)"
            )
        path = path / MODEL_NAME
    if not path.exists():
        raise UserError(
            f"There is no model {name}: give a run folder, a {MODEL_NAME} file, or pretrained:NAME "
            f"(for example pretrained:{EMBEDDED})."
        )
    return path


def with_weights(name: str | Path, weights: str | Path = "") -> str:
    """The name of a pretrained backbone with the file that its weights are in: pretrained:BACKBONE@FILE.

    A store keeps this name, so the file is found again from any folder.
    """
    if not weights or "@" in str(name):
        return str(name)
    if not str(name).startswith(PRETRAINED):
        raise UserError(
            f"--weights goes with a model named pretrained:NAME, not with {str(name) or 'none'!r}: "
            "a trained model has weights of its own."
        )
    return f"{name}@{Path(weights).absolute()}"


def pretrained_recipe(name: str) -> Recipe:
    """The recipe of `pretrained:BACKBONE` or `pretrained:BACKBONE@WEIGHTS`, which no run has made."""
    backbone, _, weights = name.removeprefix(PRETRAINED).partition("@")
    network = {"backbone": backbone, "weights": weights, "dim": 0}
    return _describing_recipe(name, network, _PRETRAINED_DESCRIPTOR)


def read_model_file(path: Path | str) -> StoredModel:
    """Read a model file; one that was changed or cut short is refused."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no model file {path}.")
    try:
        with safetensors.safe_open(path, framework="np") as opened:
            metadata = dict(opened.metadata() or {})
            weights = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a whole model file ({error}): copy or train it again.") from error
    if metadata.get("format") not in (FORMAT, _OLDER_FORMAT):
        raise UserError(f"{path} is not an InsCLR model; to start from its weights, pass it with --weights.")
    expected = metadata.pop("digest", "")
    if digest(weights, metadata) != expected:
        raise UserError(f"{path} was changed after it was written: copy or train it again.")
    broken = [name for name, value in weights.items() if not np.isfinite(value).all()]
    refuse_broken(broken, len(weights), str(path))
    try:
        recipe = _read_recipe(metadata)
        notes = {str(name): str(text) for name, text in json.loads(metadata["notes"]).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} has no recipe that can be read ({error}): copy or train it again."
        ) from error
    _require_sane(path, recipe.descriptor)
    return StoredModel(weights, recipe, expected, notes, metadata["format"])


def write_model_file(
    path: Path | str, weights: Weights, recipe: Recipe, notes: Mapping[str, str]
) -> StoredModel:
    """Write a model file whole under `path`; `notes` stand beside the recipe. What it holds."""
    metadata = {"format": FORMAT, "recipe": to_toml(recipe), "notes": json.dumps(dict(notes))}
    metadata["digest"] = digest(weights, metadata)
    with whole_file(path) as scratch:
        safetensors.numpy.save_file(dict(weights), scratch, metadata=metadata)
        _sort_header(scratch)
    return StoredModel(weights, recipe, metadata["digest"], notes)


def _sort_header(file: Path) -> None:
    """Sort the metadata of a safetensors file, which the library writes in an order of chance: equal models are equal
    files."""
    with file.open("r+b") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) <= size:
            opened.seek(8)
            opened.write(text.ljust(size))


def digest(weights: Weights, metadata: Mapping[str, str]) -> str:
    """A name for exactly these weights and texts."""
    found = hashlib.sha256()
    for key in sorted(metadata):
        found.update(f"{key}={metadata[key]}\n".encode())
    for key in sorted(weights):
        found.update(key.encode())
        found.update(np.ascontiguousarray(weights[key]).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def trunk_digest(recipe: NetworkRecipe, weights: Weights) -> str:
    """A name for backbone and pooling with these weights; the last layer, which training changes, is not in it."""
    trunk = {name: value for name, value in weights.items() if not name.startswith("fc.")}
    normalised = recipe.normalise_pooled or not recipe.dim
    settings = f"{recipe.backbone} {recipe.pooling} {recipe.gem_p} {normalised}"
    return hashlib.sha256(f"{settings} {digest(trunk, {})}".encode()).hexdigest()[:24]


def refuse_broken(broken: Sequence[str], total: int, source: str) -> None:
    """Refuse tensors with nan or inf where they come from: in training they would look like a wrong rate."""
    if broken:
        raise UserError(
            f"{source}: {len(broken)} of {total} tensors hold values that are not finite, such as "
            f"{broken[0]}. The file is damaged, or its training diverged: get another."
        )


def _read_recipe(metadata: Mapping[str, str]) -> Recipe:
    """The recipe in a model file; of an older one the parts that describing needs."""
    table = rename_old_keys(tomllib.loads(metadata["recipe"]))
    if metadata["format"] == _OLDER_FORMAT:
        network = {key: value for key, value in table["network"].items() if key in NetworkRecipe.model_fields}
        descriptor = {k: v for k, v in table["descriptor"].items() if k in DescriptorRecipe.model_fields}
        return _describing_recipe(table["name"], {"bias": True} | network, descriptor)
    return from_table(table, load_methods=False)


def _describing_recipe(name: str, network: Mapping[str, Any], descriptor: Mapping[str, Any]) -> Recipe:
    """The recipe of a network whose training is unknown."""
    table = {"name": name, "network": network, "descriptor": descriptor, "rounds": [{}]}
    return from_table(table, load_methods=False)


def _require_sane(path: Path, descriptor: DescriptorRecipe) -> None:
    """Refuse sizes that would make describing one image take all memory."""
    size, scales = descriptor.size, descriptor.scales
    sane = 1 <= size <= _MAX_SIZE and 1 <= len(scales) <= _MAX_SCALES and 0 <= descriptor.zoom <= 1
    if not sane or not all(0 < scale * size <= _MAX_SIZE for scale in scales):
        raise UserError(
            f"{path} describes images at size {size}, scales {scales}, zoom {descriptor.zoom}: sizes up to "
            f"{_MAX_SIZE} and {_MAX_SCALES} scales are possible. Train it again with other settings."
        )
