"""Load the weights of a backbone from a file or a hub."""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from insclr.errors import UserError
from insclr.model.stored import refuse_broken
from insclr.model.weight_names import timm_names

# Heads of the usual classifiers: a descriptor network has no use for them.
_CLASSIFIER = re.compile(r"^(fc|classifier|heads?|head_dist|_fc|attn_pool|fc_norm)\.|^(norm\.)?mask_token$")
_WRAPPERS = ("state_dict", "model_state_dict", "model", "state_dict_ema")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in `path` (.safetensors, or a torch file read without running code from it)."""
    if not path.is_file():
        raise UserError(f"There is no weights file {path}.")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # garbage makes torch's reader raise nearly anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # torch's own words advise to run what is in the file
            reason = "it is no torch file, or holds more than tensors"
        raise UserError(
            f"{path} is not a whole weights file: {reason}. Give a .safetensors file or a torch state dict."
        ) from error
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
            break
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{path} holds no state dict (a mapping of names to tensors).")
    return dict(content)


def fit_weights(trunk: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load `weights` into `trunk`, where they fit."""
    trunk.load_state_dict(fitting_weights(trunk, weights, source), strict=False)


def fitting_weights(trunk: nn.Module, weights: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The weights in timm's names; wrappers' prefixes and classifier heads are dropped, all else must fit.

    Their names may be those of timm, Meta, transformers or torchvision.
    """
    named = {key.removeprefix("module.").removeprefix("backbone."): value for key, value in weights.items()}
    named = timm_names(named, trunk)
    wanted = trunk.state_dict()
    named = {key: value for key, value in named.items() if key in wanted or not _CLASSIFIER.match(key)}
    needed = {key: value for key, value in wanted.items() if not key.endswith("num_batches_tracked")}
    if what := misfits(named, needed, allowed=wanted):
        raise UserError(
            f"The weights in {source} do not fit this backbone: {what}. Is it the right backbone?"
        )
    require_finite(named, source)
    return named


def misfits(
    weights: Mapping[str, Tensor], needed: Mapping[str, Tensor], allowed: Mapping[str, Tensor]
) -> str:
    """In words, which tensors are missing, unknown or of another shape; empty where all is well."""
    parts = {
        "missing": [key for key in needed if key not in weights],
        "unknown": [key for key in weights if key not in allowed],
        "of another shape": [
            key for key in allowed if key in weights and weights[key].shape != allowed[key].shape
        ],
    }
    return "; ".join(f"{len(keys)} {word} ({', '.join(keys[:3])})" for word, keys in parts.items() if keys)


def require_finite(weights: Mapping[str, Tensor], source: str) -> None:
    """Refuse weights with nan or inf where they come from: in training they would look like a wrong rate."""
    broken = [name for name, value in weights.items() if not bool(torch.isfinite(value).all())]
    refuse_broken(broken, len(weights), source)
