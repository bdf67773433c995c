"""Files with the names of torchvision, Meta and transformers give the same network as one with timm's."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.model.backbones import Backbone, create_backbone

import torchvision  # isort: skip  (after insclr: it must be importable)

State = dict[str, Tensor]


def _backbone(name: str, state: State, folder: Path) -> Backbone:
    torch.save(state, folder / "weights.pth")
    return create_backbone(name, weights=folder / "weights.pth").eval()


@pytest.mark.parametrize(
    ("ours", "theirs"), [("vit_base_patch32_224", "vit_b_32"), ("convnext_tiny", "convnext_tiny")]
)
def test_a_file_of_torchvision_gives_its_features(ours: str, theirs: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    reference: Any = torchvision.models.get_model(theirs).eval()
    backbone = _backbone(ours, reference.state_dict(), tmp_path)
    photo = torch.randint(0, 256, (1, 3, 224, 224), dtype=torch.uint8)
    pixels = (photo - backbone.mean) / backbone.std  # type: ignore[operator]
    with torch.no_grad():
        seen = backbone(photo)
        if theirs.startswith("vit"):
            reference.heads = torch.nn.Identity()
            torch.testing.assert_close(seen.cls, reference(pixels), rtol=1e-3, atol=1e-3)
        else:
            torch.testing.assert_close(seen.map, reference.features(pixels), rtol=1e-3, atol=1e-3)


def _as_transformers_vit(state: State, *, own: Callable[[str], str]) -> State:
    """The names that transformers gives to the layers of a ViT, written down from its documentation."""
    found: State = {}
    for key, value in state.items():
        if ".qkv." in key:
            names = [
                key.replace("attn.qkv", f"attention.attention.{one}") for one in ("query", "key", "value")
            ]
            found |= {own(name): part.clone() for name, part in zip(names, value.chunk(3), strict=True)}
        else:
            found[own(key)] = value
    return found


def _dinov2_name(key: str) -> str:
    for pattern, name in (
        (r"^blocks\.", "encoder.layer."),
        (r"^patch_embed\.proj", "embeddings.patch_embeddings.projection"),
        (r"^cls_token", "embeddings.cls_token"),
        (r"^pos_embed", "embeddings.position_embeddings"),
        (r"attn\.proj", "attention.output.dense"),
        (r"ls([12])\.gamma", r"layer_scale\1.lambda1"),
        (r"^norm\.", "layernorm."),
    ):
        key = re.sub(pattern, name, key)
    return key


def _same_features(name: str, renamed: Callable[[State], State], folder: Path, side: int) -> None:
    torch.manual_seed(0)
    reference = create_backbone(name, pretrained=False).eval()
    backbone = _backbone(name, renamed(reference.trunk.state_dict()), folder)
    photo = torch.randint(0, 256, (1, 3, side, side), dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(backbone(photo).map, reference(photo).map)
        torch.testing.assert_close(backbone(photo).cls, reference(photo).cls, rtol=1e-3, atol=1e-3)


def test_a_dinov2_file_of_transformers(tmp_path: Path) -> None:
    def renamed(state: State) -> State:
        found = _as_transformers_vit(state, own=_dinov2_name)
        return found | {"embeddings.mask_token": torch.zeros(1, 384)}

    _same_features("vit_small_patch14_dinov2", renamed, tmp_path, 56)


def test_a_dinov2_file_of_meta_with_registers(tmp_path: Path) -> None:
    """Meta adds a position to the class token, and none to the registers."""

    def renamed(state: State) -> State:
        own = dict(state)
        position = torch.randn(1, 1, 384)
        own["cls_token"] = state["cls_token"] - position
        own["pos_embed"] = torch.cat([position, state["pos_embed"]], 1)
        own["register_tokens"] = own.pop("reg_token")
        return own | {"mask_token": torch.zeros(1, 384)}

    _same_features("vit_small_patch14_reg4_dinov2", renamed, tmp_path, 56)


def test_a_clip_file_of_transformers(tmp_path: Path) -> None:
    def clip_name(key: str) -> str:
        for pattern, name in (
            (r"^blocks\.", "encoder.layers."),
            (r"^patch_embed\.proj", "embeddings.patch_embedding"),
            (r"^cls_token", "embeddings.class_embedding"),
            (r"^pos_embed", "embeddings.position_embedding.weight"),
            (r"attention\.attention\.(\w)\w+", r"self_attn.\1_proj"),
            (r"attn\.proj", "self_attn.out_proj"),
            (r"(?<=\.)norm([12])", r"layer_norm\1"),
            (r"^norm_pre", "pre_layrnorm"),
            (r"^norm\.", "post_layernorm."),
        ):
            key = re.sub(pattern, name, key)
        return f"vision_model.{key}"

    def renamed(state: State) -> State:
        found = _as_transformers_vit(state, own=clip_name)
        found["vision_model.embeddings.class_embedding"] = state["cls_token"][0, 0]
        found["vision_model.embeddings.position_embedding.weight"] = state["pos_embed"][0]
        return found | {"text_model.final_layer_norm.weight": torch.ones(4), "logit_scale": torch.ones(())}

    _same_features("vit_xsmall_patch16_clip_224", renamed, tmp_path, 64)


def test_a_dinov3_file_of_transformers(tmp_path: Path) -> None:
    def dinov3_name(key: str) -> str:
        for pattern, name in (
            (r"^blocks\.", "layer."),
            (r"^patch_embed\.proj", "embeddings.patch_embeddings"),
            (r"^cls_token", "embeddings.cls_token"),
            (r"^reg_token", "embeddings.register_tokens"),
            (r"attention\.attention\.(\w)\w+", r"attention.\1_proj"),
            (r"attn\.proj", "attention.o_proj"),
            (r"mlp\.fc1", "mlp.up_proj"),
            (r"mlp\.fc2", "mlp.down_proj"),
            (r"gamma_([12])", r"layer_scale\1.lambda1"),
        ):
            key = re.sub(pattern, name, key)
        return key

    _same_features(
        "vit_small_patch16_dinov3",
        lambda state: _as_transformers_vit(state, own=dinov3_name),
        tmp_path,
        64,
    )


def test_the_attention_pooling_of_siglip_is_dropped(tmp_path: Path) -> None:
    _same_features(
        "vit_base_patch32_siglip_256",
        lambda state: state | {"attn_pool.latent": torch.zeros(1, 1, 768)},
        tmp_path,
        64,
    )


def test_weights_of_another_family_are_one_sentence(tmp_path: Path) -> None:
    state = torchvision.models.get_model("mobilenet_v3_small").state_dict()
    with pytest.raises(
        UserError, match=r"do not fit this backbone: .* Is it the right backbone\?$"
    ) as raised:
        _backbone("vit_small_patch14_dinov2", state, tmp_path)
    assert "\n" not in str(raised.value)
