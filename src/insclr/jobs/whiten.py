"""Whiten a model on photos."""

import copy
from pathlib import Path

import torch
from torch import nn

from insclr.data.images import ImageList, Skipped
from insclr.describe.pipeline import Request, describe_files
from insclr.engine.opened import open_in_memory
from insclr.model.model_file import Model, save_model
from insclr.model.network import compose
from insclr.model.whitening import fold_into_fc, pca_whitening


def whiten_model(
    model: Model,
    images: ImageList,
    out: Path,
    *,
    dim: int = 0,
    power: float = 0.5,
) -> None:
    """Write `model` with a whitening learned on `images` folded into its fully connected layer.

    A PCA with `power`. The layer's output is whitened before it is normalised, so that both are one linear map.
    """
    settings, skipped = model.recipe.descriptor, Skipped()
    engine = open_in_memory(model).engine
    found = describe_files(engine, images, Request(settings, "pooled"), skipped=skipped).descriptors
    pooled = torch.from_numpy(found)
    network = copy.deepcopy(model.network).cpu()  # what is left is small; the caller's model stays as it is
    readable = [i for i, path in enumerate(images.paths) if path not in skipped]
    with torch.no_grad():
        features = network.fc(pooled[readable]) if network.fc is not None else pooled[readable]
        dim = dim or min(features.shape[1], len(features))
        layer = nn.Linear(features.shape[1], dim)
        fold_into_fc(layer, pca_whitening(features, dim, power))
        if isinstance(network.fc, nn.Linear):
            layer = compose(network.fc, layer)
    network.fc, network.dim = layer, dim
    layers = model.recipe.network.with_(dim=dim, bias=True, normalise_pooled=network.normalise_pooled)
    recipe = model.recipe.with_(network=layers)
    save_model(out, network, recipe, model.notes)
