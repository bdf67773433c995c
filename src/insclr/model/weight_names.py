"""Names of tensors in files of Meta, transformers and torchvision, turned into timm's."""

import io
import re
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import Tensor

# Vision transformers of transformers (ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP) and torchvision: patterns in order.
_VIT = (
    (r"^(vit|deit|dinov2|dinov2_with_registers|dinov3_vit|model|vision_model|vision_tower)\.", ""),
    (r"^(vision_model|encoder|embeddings)\.", ""),
    (r"^(layers?|blocks)\.(encoder_layer_)?(?=\d)", "blocks."),
    (r"^(class_embedding|class_token)$", "cls_token"),
    (r"^(position_embeddings|position_embedding\.weight|pos_embedding)$", "pos_embed"),
    (r"^(patch_embeddings\.projection|patch_embeddings|patch_embedding|conv_proj)\.", "patch_embed.proj."),
    (r"^pre_layrnorm\.", "norm_pre."),
    (r"^(post_layernorm|layernorm|ln)\.", "norm."),
    (r"\.(layernorm_before|layer_norm1|ln_1)\.", ".norm1."),
    (r"\.(layernorm_after|layer_norm2|ln_2)\.", ".norm2."),
    (r"\.(attention\.attention|attention|self_attn|self_attention)\.(?!output)", ".attn."),
    (r"\.attn\.in_proj_", ".attn.qkv."),
    (r"\.attn\.(query|key|value)\.", lambda found: f".attn.{found[1][0]}_proj."),
    (r"\.(attention\.output\.dense|attn\.out_proj|attn\.o_proj)\.", ".attn.proj."),
    (r"\.(intermediate\.dense|mlp\.up_proj|mlp\.linear_1|mlp\.0)\.", ".mlp.fc1."),
    (r"\.(output\.dense|mlp\.down_proj|mlp\.linear_2|mlp\.3)\.", ".mlp.fc2."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
)
# ConvNeXt of torchvision.
_CONVNEXT = (
    (r"^features\.0\.", "stem."),
    (r"^features\.(\d)\.(\d+)\.block\.", lambda found: f"stages.{int(found[1]) // 2}.blocks.{found[2]}."),
    (
        r"^features\.(\d)\.(\d+)\.layer_scale$",
        lambda found: f"stages.{int(found[1]) // 2}.blocks.{found[2]}.gamma",
    ),
    (r"^features\.(\d)\.", lambda found: f"stages.{int(found[1]) // 2}.downsample."),
    (r"(?<=blocks\.)(\d+)\.0\.", r"\1.conv_dw."),
    (r"(?<=blocks\.)(\d+)\.2\.", r"\1.norm."),
    (r"(?<=blocks\.)(\d+)\.3\.", r"\1.mlp.fc1."),
    (r"(?<=blocks\.)(\d+)\.5\.", r"\1.mlp.fc2."),
    (r"^classifier\.0\.", "head.norm."),
)
_UNUSED = re.compile(r"^(text_model|text_projection|visual_projection|logit_scale|logit_bias|pooler)\b")


def timm_names(weights: Mapping[str, Tensor], trunk: Any) -> dict[str, Tensor]:
    """The tensors under the names of a timm network; what nobody here knows keeps its name."""
    named = {key: value for key, value in weights.items() if not _UNUSED.match(key)}
    if "features.0.0.weight" in named and hasattr(trunk, "stages"):
        renamed = {_rename(key, _CONVNEXT): value for key, value in named.items()}
        named = {key: value.flatten() if key.endswith(".gamma") else value for key, value in renamed.items()}
    elif hasattr(trunk, "blocks") and any(
        re.search(r"attention|self_attn|layer\.0\.norm1", key) for key in named
    ):
        named = _join_attention({_rename(key, _VIT): value for key, value in named.items()})
    if "norm.weight" not in named and "fc_norm.weight" in named:  # of a network that averages its patches
        named = {key.replace("fc_norm.", "norm."): value for key, value in named.items()}
    # What Meta, OpenAI and others published is converted by timm.
    convert = getattr(sys.modules[type(trunk).__module__], "checkpoint_filter_fn", None)
    if convert is None or trunk.state_dict().keys() <= named.keys():
        return named
    try:
        with redirect_stdout(io.StringIO()):
            found: dict[str, Tensor] = convert(named, trunk)
    except (KeyError, RuntimeError, AttributeError, IndexError, ValueError, TypeError):
        return named  # weights of another network: its names are reported as they are
    return found


def _rename(key: str, patterns: Any) -> str:
    for pattern, name in patterns:
        key = re.sub(pattern, name, key)
    return key


def _join_attention(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """One tensor for queries, keys and values; tokens and positions in timm's shapes; Meta's names of registers."""
    joined: dict[str, Tensor] = {}
    for key, value in named.items():
        if key == "register_tokens" and "pos_embed" not in named:
            key = "storage_tokens"
        if not (part := re.search(r"\.([qkv])_proj\.", key)):
            joined[key] = value
        elif part[1] == "q":
            others = (named.get(key.replace(".q_proj.", f".{one}_proj.")) for one in "kv")
            every = [value, *(torch.zeros_like(value) if other is None else other for other in others)]
            joined[key.replace(".q_proj.", ".qkv.")] = torch.cat(every)
    for key in ("cls_token", "pos_embed"):
        if key in joined:
            joined[key] = joined[key].reshape(1, -1, joined[key].shape[-1])
    return joined
