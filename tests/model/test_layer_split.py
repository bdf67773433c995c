"""Early and late layers of every family make the whole backbone, and the late ones alone learn."""

import pytest
import torch

from insclr.model.backbones import create_backbone
from insclr.model.network import create_network
from insclr.recipe.recipe import NetworkRecipe

# Name and side of the images: of most a small one, of others the one that they were made for.
_FAMILIES = {
    "efficientnet_lite0": 96,
    "tf_efficientnetv2_b0": 64,
    "mobilenetv2_035": 64,
    "mobilenetv3_small_050": 64,
    "mobilenetv4_conv_small": 64,
    "resnet18": 64,
    "regnetx_002": 64,
    "regnety_002": 64,
    "convnext_atto": 64,
    "swin_tiny_patch4_window7_224": 224,
    "densenet121": 64,
    "hgnetv2_b0": 64,
    "vgg11_bn": 64,
    "fastvit_t8": 64,
    "davit_tiny": 224,
    "vit_tiny_patch16_224": 64,
    "vit_small_patch14_reg4_dinov2": 56,
    "vit_base_patch16_siglip_224": 64,
    "vit_base_patch16_clip_quickgelu_224": 64,
    "vit_small_patch16_dinov3": 64,
    "vit_pe_core_tiny_patch16_384": 64,
    "eva02_tiny_patch14_224": 56,
    "xcit_nano_12_p16_224": 64,
    "cait_xxs24_224": 224,
    "beit_base_patch16_224": 224,
    "levit_128s": 224,
    "nextvit_small": 64,
    "coatnet_nano_rw_224": 224,
    "volo_d1_224": 224,
    "hiera_tiny_224": 224,
}


@pytest.mark.parametrize("name", _FAMILIES)
def test_early_and_late_layers_make_the_whole_backbone(name: str) -> None:
    backbone = create_backbone(name, pretrained=False).eval()
    side = _FAMILIES[name]
    photos = torch.randint(0, 256, (3, 3, side, side), dtype=torch.uint8)
    with torch.no_grad():
        found, whole = backbone.late(backbone.early(photos), side), backbone(photos)
    torch.testing.assert_close(found.map, whole.map)
    assert (found.cls is None) == (whole.cls is None)
    if found.cls is not None and whole.cls is not None:
        torch.testing.assert_close(found.cls, whole.cls)
    late = {id(parameter) for parameter in backbone.late_parameters()}
    early = {id(value) for value in backbone.early_state().values()}
    assert late
    assert not late & early


def test_the_last_layers_that_reduce_the_map_learn() -> None:
    """Of networks whose last blocks add nothing as long as their weights are random, all blocks of the last stage."""
    trunk = (backbone := create_backbone("resnet18", pretrained=False)).trunk
    assert {id(one) for one in backbone.late_parameters()} == {id(one) for one in trunk.layer4.parameters()}
    trunk = (backbone := create_backbone("densenet121", pretrained=False)).trunk
    last = (trunk.features.transition3, trunk.features.denseblock4, trunk.features.norm5)
    assert {id(one) for one in backbone.late_parameters()} == {
        id(p) for one in last for p in one.parameters()
    }


def test_the_last_sixth_of_blocks_over_the_same_tokens_learns() -> None:
    trunk = (backbone := create_backbone("vit_tiny_patch16_224", pretrained=False)).trunk
    last = (*trunk.blocks[10:], trunk.norm)
    assert {id(one) for one in backbone.late_parameters()} == {
        id(p) for one in last for p in one.parameters()
    }


def test_only_late_layers_get_gradients_and_statistics_stay() -> None:
    backbone = create_backbone("levit_128s", pretrained=False).train()
    before = {name: value.clone() for name, value in backbone.early_state().items()}
    maps = backbone.early(torch.zeros(2, 3, 224, 224, dtype=torch.uint8)).detach()
    after_early = {name: value.clone() for name, value in backbone.early_state().items()}
    assert any(
        not torch.equal(before[name], value) for name, value in after_early.items()
    )  # batch norm trains
    backbone.late(maps, 224).map.square().sum().backward()
    assert all(value.grad is not None for value in backbone.late_parameters())
    state = backbone.early_state()
    assert all(value.grad is None for value in state.values())
    assert all(torch.equal(after_early[name], value) for name, value in state.items())
    assert backbone.training
    assert all(module.training for module in backbone.modules())


def test_a_network_whose_layers_do_not_follow_each_other_has_no_late_ones() -> None:
    assert not create_backbone("hrnet_w18_small", pretrained=False).has_late


@pytest.mark.parametrize(
    "name",
    ["vit_tiny_patch16_224", "vit_base_patch16_siglip_224", "convnext_atto", "caformer_s18", "resnet18"],
)
def test_the_pooling_of_each_family_takes_its_features(name: str) -> None:
    expected = {"vit_tiny_patch16_224": "cls", "resnet18": "gem"}.get(name, "spoc")
    recipe = NetworkRecipe(backbone=name, dim=0)
    assert recipe.pooling == expected
    network = create_network(recipe, pretrained=False)
    with torch.no_grad():
        features = network(torch.rand(2, 3, 64, 64) * 255)
    # A negative half that was set to zero would show as features without negative values.
    assert bool((features < -0.001).any()) == (name != "resnet18")


def test_a_pooling_that_is_given_holds() -> None:
    assert NetworkRecipe(backbone="vit_tiny_patch16_224", pooling="mac").pooling == "mac"
