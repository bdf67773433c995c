"""Every family of backbones, with random weights from a file: train, index with regions, search."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

import insclr
from helpers.small_training import SHIPPED, trained_weights
from insclr.data.images import list_images
from insclr.errors import UserError
from insclr.model.backbones import create_backbone
from insclr.recipe import load_recipe

_FAMILIES = (
    "tf_efficientnetv2_b0",
    "mobilenetv3_small_050",
    "mobilenetv4_conv_small",
    "resnet18",
    "regnety_002",
    "convnext_atto",
    pytest.param("swin_tiny_patch4_window7_224", marks=pytest.mark.slow),
    "vit_tiny_patch16_224",
    "vit_xsmall_patch16_clip_224",
    "vit_small_patch14_reg4_dinov2",
    "vit_small_patch16_dinov3",
    pytest.param("vit_base_patch32_siglip_256", marks=pytest.mark.slow),
    "vit_pe_core_tiny_patch16_384",
    "eva02_tiny_patch14_224",
    pytest.param("deit3_small_patch16_224", marks=pytest.mark.slow),
    "xcit_nano_12_p16_224",
    pytest.param("nextvit_small", marks=pytest.mark.slow),
    "levit_128s",
    pytest.param("cait_xxs24_224", marks=pytest.mark.slow),
    pytest.param("beit_base_patch16_224", marks=pytest.mark.slow),
    pytest.param("coatnet_nano_rw_224", marks=pytest.mark.slow),
    pytest.param("volo_d1_224", marks=pytest.mark.slow),
    pytest.param("hiera_tiny_224", marks=pytest.mark.slow),
)
# Of their own size alone.
_AT_224 = ("swin", "levit", "cait", "beit", "coatnet", "volo", "hiera")


@pytest.mark.parametrize("name", _FAMILIES)
def test_a_family_is_trained_indexed_and_searched(name: str, small_collection: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights, run, store = tmp_path / "weights.safetensors", tmp_path / "run", tmp_path / "store"
    before = create_backbone(name, pretrained=False).trunk.state_dict()
    safetensors.torch.save_file(before, weights)
    photos = list_images(small_collection).subset(range(16))
    changes = (*SHIPPED, "guard=false", f"network.backbone={name}", "network.dim=512", "rounds.steps=1")
    recipe = load_recipe("default", changes)
    recipe = recipe.with_(rounds=recipe.rounds[:2])  # the FC, then the late layers
    recipe = recipe.at_size(224) if name.startswith(_AT_224) else recipe
    model = insclr.train(photos, run, recipe, weights=str(weights))
    after = trained_weights(run)
    changed = [key for key, value in before.items() if not torch.equal(after[f"backbone.trunk.{key}"], value)]
    assert changed
    assert len(changed) < len(before) / 2

    by_token = model.recipe.network.pooling == "cls"
    if by_token:
        with pytest.raises(UserError, match="has no regions"):
            insclr.index(run, photos, store, regions=True, engine="torch")
    insclr.index(run, photos, store, regions=not by_token, engine="torch")
    assert insclr.search(store, photos.file(5), top=1, engine="torch")[0].path == photos.paths[5]
