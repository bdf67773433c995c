"""Short names of backbones stand for timm's, with the figures that timm's networks have."""

import pytest
import torch

from insclr.model.backbones import create_backbone
from insclr.model.stored import pretrained_recipe
from insclr.options import TrainOptions
from insclr.recipe import load_recipe
from insclr.recipe.backbone_names import KNOWN_BACKBONES
from insclr.torchvision_import import import_timm


@pytest.mark.parametrize("name", KNOWN_BACKBONES)
def test_the_figures_are_those_of_the_network(name: str) -> None:
    known = KNOWN_BACKBONES[name]
    timm = import_timm()
    with torch.device("meta"):
        backbone = create_backbone(name, pretrained=False)
    assert backbone.name == known.timm
    assert backbone.channels == known.features
    config = backbone.trunk.pretrained_cfg
    assert config["input_size"] == (3, known.side, known.side)
    if known.hub:
        assert config["hf_hub_id"] == known.hub
        with torch.device("meta"):
            whole = timm.create_model(known.timm)
        assert sum(4e-6 * one.numel() for one in whole.parameters()) == pytest.approx(known.megabytes, abs=1)


def test_a_short_name_chooses_backbone_and_pooling() -> None:
    recipe = load_recipe("fast", TrainOptions(backbone="dinov2-small").recipe_changes).network
    assert (recipe.backbone, recipe.pooling) == ("vit_small_patch14_dinov2.lvd142m", "cls")
    recipe = load_recipe("fast", TrainOptions(backbone="siglip2-base").recipe_changes).network
    assert (recipe.backbone, recipe.pooling) == ("vit_base_patch16_siglip_224.v2_webli", "spoc")
    assert pretrained_recipe("pretrained:lite0").network.backbone == "efficientnet_lite0"
    assert load_recipe("fast").network.pooling == "gem"
