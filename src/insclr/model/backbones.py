"""Backbones: any timm model that gives a feature map or tokens, each with its own input normalisation."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from huggingface_hub import constants as hub_constants
from torch import Tensor, nn

from insclr.errors import UserError
from insclr.model.embedded import embedded_weights
from insclr.model.layer_split import LayerSplit, split_layers
from insclr.model.weights import fit_weights, fitting_weights, read_weights
from insclr.recipe.backbone_names import EMBEDDED, full_name
from insclr.torchvision_import import import_timm

timm: Any = import_timm()

_TIMM_NAME = {EMBEDDED: "tf_efficientnet_lite0"}


@dataclass(frozen=True)
class FeatureMap:
    """What a backbone sees in a batch: the last map, and the class token of those that have one."""

    map: Tensor  # (batch, channels, height, width)
    cls: Tensor | None  # (batch, channels)


class Backbone(nn.Module):
    """A timm network cut before its classifier; takes pixels 0..255 and normalises them itself."""

    def __init__(self, name: str, trunk: Any, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.name = name
        self.trunk = trunk
        self.channels = int(trunk.num_features)
        has_cls = getattr(trunk, "cls_token", None) is not None
        self.prefix_tokens = int(getattr(trunk, "num_prefix_tokens", has_cls))
        self.stride = _stride(trunk)
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    @property
    def own_side(self) -> int:
        """Side of the images that its weights were made for."""
        return int(self.trunk.pretrained_cfg.get("input_size", (3, 224, 224))[-1])

    def forward(self, images: Tensor) -> FeatureMap:
        """Features of `images` (batch, 3, height, width), uint8 or float, in the range 0..255."""
        with self._sizes_refused(images):
            features = self.trunk.forward_features(self._normalise(images))
        return self._as_map(features, images.shape[-2:])

    def _normalise(self, images: Tensor) -> Tensor:
        pixels: Tensor = (images.to(self.mean.dtype) - self.mean) / self.std  # type: ignore[operator, arg-type]
        return pixels if self.prefix_tokens else pixels.contiguous(memory_format=torch.channels_last)

    @contextmanager
    def _sizes_refused(self, images: Tensor) -> Iterator[None]:
        """UserError where the trunk cannot take images of this size; each family raises another error."""
        try:
            yield
        except (AssertionError, RuntimeError) as error:
            if "memory" in str(error):
                raise
            height, width = images.shape[-2:]
            raise UserError(
                f"The backbone {self.name} cannot take images of {width} x {height} pixels: "
                f"choose --size {self.own_side}, which it was made for."
            ) from error

    def early(self, images: Tensor) -> Tensor:
        """What enters the late layers; for backbones that `has_late`."""
        with self._sizes_refused(images):
            return self._split.early(self._normalise(images))

    def late(self, maps: Tensor, side: int) -> FeatureMap:
        """What `forward` gives, from what `early` gave of square images of this side."""
        return self._as_map(self._split.late(maps, side), torch.Size((side, side)))

    @property
    def has_late(self) -> bool:
        """Whether the backbone falls into early and late layers."""
        return self._found_split is not None

    @property
    def _split(self) -> LayerSplit:
        assert self._found_split is not None, "ask has_late first"
        return self._found_split

    @cached_property
    def _found_split(self) -> LayerSplit | None:
        return split_layers(self.trunk)

    def late_parameters(self) -> list[nn.Parameter]:
        """What training the late layers changes: all but depthwise kernels, few weights that cost most on a CPU."""
        convolutions = [module for module in self.trunk.modules() if isinstance(module, nn.Conv2d)]
        depthwise = [one for one in convolutions if one.groups == one.in_channels > 1]
        frozen = {id(parameter) for module in depthwise for parameter in module.parameters()}
        return [one for one in self._split.late_parameters() if id(one) not in frozen]

    def early_state(self) -> dict[str, Tensor]:
        """The weights themselves that the early map depends on."""
        return self._split.early_state()

    def _as_map(self, features: Tensor, size: torch.Size) -> FeatureMap:
        """The features of images of this size, which a trunk gives as a map or as tokens."""
        if features.dim() == 3:
            return self._map_of_tokens(features, size)
        channels_are_last = getattr(self.trunk, "output_fmt", "NCHW") == "NHWC"
        return FeatureMap(features.permute(0, 3, 1, 2) if channels_are_last else features, None)

    def _map_of_tokens(self, tokens: Tensor, size: torch.Size) -> FeatureMap:
        patches = tokens[:, self.prefix_tokens :]  # (batch, patches, channels)
        height = (size[0] + self.stride - 1) // self.stride
        columns = (size[1] + self.stride - 1) // self.stride
        # -1 for the batch: its length would become a constant of an exported graph.
        grid = patches.transpose(1, 2).reshape(-1, patches.shape[2], height, columns)
        return FeatureMap(grid, tokens[:, 0] if self.prefix_tokens else None)


def create_backbone(name: str, weights: str | Path | None = None, pretrained: bool = True) -> Backbone:
    """The backbone `name` with its weights from a file, the embedded package, or timm's hub.

    `pretrained=False` leaves the weights random, for a model file to fill.
    """
    name = full_name(name)
    trunk = _create_trunk(name)
    if name == EMBEDDED:
        # What its weights were trained with: (x - 127) / 128.
        mean, std = (127.0,) * 3, (128.0,) * 3
    else:
        config = trunk.pretrained_cfg
        mean = tuple(255.0 * value for value in config.get("mean", (0.485, 0.456, 0.406)))
        std = tuple(255.0 * value for value in config.get("std", (0.229, 0.224, 0.225)))
    if weights:
        fit_weights(trunk, read_weights(Path(weights)), source=str(weights))
    elif pretrained and name == EMBEDDED:
        weights_of_ours = {name: torch.from_numpy(value) for name, value in embedded_weights().items()}
        fit_weights(trunk, weights_of_ours, source="the embedded weights")
    elif pretrained:
        _load_from_hub(trunk, name)
    return Backbone(name, trunk, mean, std)


def _create_trunk(name: str) -> Any:
    timm_name = _TIMM_NAME.get(name, name)
    if timm_name.split(".")[0] not in timm.list_models():
        close = timm.list_models(f"*{timm_name.split('.')[0][:8]}*")[:5]
        hint = f" Close names: {', '.join(close)}." if close else ""
        raise UserError(
            f"No backbone is called {name!r}.{hint} insclr backbones lists short names; any timm name works."
        )
    options: dict[str, Any] = {"pretrained": False, "num_classes": 0, "global_pool": ""}
    # Transformers take other image sizes than the one they were trained at only when asked to: Swin, then ViT.
    for sizes in ({"strict_img_size": False}, {"dynamic_img_size": True, "dynamic_img_pad": True}):
        with suppress(TypeError):
            return timm.create_model(timm_name, **options, **sizes)
    try:
        return timm.create_model(timm_name, **options)
    except AssertionError as error:
        raise UserError(
            f"The backbone {name} gives no feature map: choose another, such as {EMBEDDED}."
        ) from error


def _load_from_hub(trunk: Any, name: str) -> None:
    offline = hub_constants.HF_HUB_OFFLINE
    try:
        # Without a network the hub client would retry for most of a minute; its cache works all the same.
        hub_constants.HF_HUB_OFFLINE = offline or not _reachable(hub_constants.ENDPOINT)
        source = f"the weights of {name!r} from the model hub"
        timm.models.load_pretrained(
            trunk,
            num_classes=0,
            filter_fn=lambda found, _: fitting_weights(trunk, found, source),
            strict=False,
        )
    except (OSError, RuntimeError, ValueError) as error:
        config = trunk.pretrained_cfg
        file = str(config.get("url") or "its state dict")
        if config.get("hf_hub_id"):
            file = config.get("hf_hub_filename") or "model.safetensors"
            file += f" of the hub repository {config['hf_hub_id']}"
        raise UserError(
            f"The weights of {name!r} could not be fetched from the model hub ({type(error).__name__}). "
            f"Fetch {file} where there is a network and pass it with "
            f"--weights FILE, or use the embedded backbone {EMBEDDED}."
        ) from error
    finally:
        hub_constants.HF_HUB_OFFLINE = offline


def _reachable(address: str) -> bool:
    try:
        socket.getaddrinfo(urlsplit(address).hostname, 443)
    except OSError:
        return False
    return True


def _stride(trunk: Any) -> int:
    if getattr(trunk, "num_prefix_tokens", 0) or not getattr(trunk, "feature_info", None):
        patch = getattr(getattr(trunk, "patch_embed", None), "patch_size", None)
        if patch is None:
            raise UserError(f"{type(trunk).__name__} gives no map of known stride: choose another backbone.")
        return int(patch[0] if isinstance(patch, tuple) else patch)
    return int(trunk.feature_info[-1]["reduction"])
