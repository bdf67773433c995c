"""`insclr whiten`: a whitening that is folded into the model."""

from pathlib import Path

import torch

from insclr.data.images import list_images
from insclr.describe.pipeline import describe_images
from insclr.jobs.whiten import whiten_model
from insclr.model.model_file import load_model, resolve_model


def test_whitening_is_folded_into_the_model(small_collection: Path, tmp_path: Path) -> None:
    model = resolve_model("pretrained:efficientnet_lite0")
    images = list_images(small_collection)
    whiten_model(model, images, tmp_path / "white.safetensors", dim=32, power=0.5)
    white = load_model(tmp_path / "white.safetensors")
    described = torch.from_numpy(describe_images(white, images))
    assert described.shape == (48, 32)
    # Whitened and centred: before they are made unit vectors the axes have one variance; after, random pairs
    # are unrelated on average.
    assert abs(float((described @ described.T).fill_diagonal_(0).mean())) < 0.05
    # A second whitening composes with the first layer; full whitening of whitened features keeps their order.
    whiten_model(white, images, tmp_path / "again.safetensors", dim=32, power=0.0)
    again = torch.from_numpy(describe_images(load_model(tmp_path / "again.safetensors"), images))
    torch.testing.assert_close(again @ again.T, described @ described.T, rtol=0, atol=2e-3)
