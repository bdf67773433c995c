"""Short names of backbones, with what a user asks before the choice: licence, download, input size."""

from dataclasses import dataclass

EMBEDDED = "efficientnet_lite0"  # the backbone whose weights are installed with us


@dataclass(frozen=True)
class KnownBackbone:
    """A backbone of timm with weights; `hub` is the repository that has them, empty for installed ones."""

    timm: str
    licence: str  # of the weights
    megabytes: int  # of the file
    side: int  # of the square images that it was trained on, in pixels
    features: int
    hub: str = ""


def _on_hub(timm: str, licence: str, megabytes: int, side: int, features: int) -> KnownBackbone:
    return KnownBackbone(timm, licence, megabytes, side, features, f"timm/{timm}")


KNOWN_BACKBONES = {
    "lite0": KnownBackbone(EMBEDDED, "Apache-2.0", 0, 224, 1280),
    "resnet50": _on_hub("resnet50.a1_in1k", "Apache-2.0", 102, 224, 2048),
    "resnet101": _on_hub("resnet101.a1_in1k", "Apache-2.0", 178, 224, 2048),
    "convnext-tiny": _on_hub("convnext_tiny.fb_in22k_ft_in1k", "Apache-2.0", 114, 224, 768),
    "dinov2-small": _on_hub("vit_small_patch14_dinov2.lvd142m", "Apache-2.0", 88, 518, 384),
    "dinov2-base": _on_hub("vit_base_patch14_dinov2.lvd142m", "Apache-2.0", 346, 518, 768),
    "dinov3-small": _on_hub("vit_small_patch16_dinov3.lvd1689m", "DINOv3 License", 86, 256, 384),
    "dinov3-base": _on_hub("vit_base_patch16_dinov3.lvd1689m", "DINOv3 License", 343, 256, 768),
    "siglip2-base": _on_hub("vit_base_patch16_siglip_224.v2_webli", "Apache-2.0", 372, 224, 768),
    "pe-core-small": _on_hub("vit_pe_core_small_patch16_384.fb", "Apache-2.0", 95, 384, 384),
    "clip-base": KnownBackbone(
        *("vit_base_patch16_clip_quickgelu_224.openai", "MIT", 345, 224, 768),
        hub="timm/vit_base_patch16_clip_224.openai",
    ),
}


def full_name(backbone: str) -> str:
    """The name of timm that a short name stands for; any other name as it is."""
    known = KNOWN_BACKBONES.get(backbone)
    return known.timm if known else backbone
