"""Early and late layers of a timm network: maps of the early ones are cached, training changes the late ones."""

import math
from typing import Any

import torch
from torch import Tensor, nn

# Families whose stages follow each other: names of the first layers, of the stages, of the last layers.
_STAGED = (
    (("conv1", "bn1", "act1", "maxpool"), ("layer1", "layer2", "layer3", "layer4"), ()),  # ResNet
    (("stem",), ("stages",), ("norm_pre",)),  # ConvNeXt
    (("patch_embed",), ("layers",), ("norm",)),  # Swin
    (("stem",), ("s1", "s2", "s3", "s4"), ("final_conv",)),  # RegNet
)


class StagedSplit:
    """Layers that follow each other: maps pass from one to the next."""

    def __init__(self, early: list[nn.Module], late: list[nn.Module], *, channels_are_last: bool) -> None:
        self.early_layers, self.late_layers = early, late
        self._channels_are_last = channels_are_last

    def early(self, pixels: Tensor) -> Tensor:
        """The map (batch, channels, height, width) that enters the late layers."""
        x = pixels
        for layer in self.early_layers:
            x = layer(x)
        return x.permute(0, 3, 1, 2) if self._channels_are_last else x

    def late(self, maps: Tensor) -> Tensor:
        """What the trunk's `forward_features` gives."""
        x = maps.contiguous(memory_format=torch.channels_last)
        x = x.permute(0, 2, 3, 1) if self._channels_are_last else x
        for layer in self.late_layers:
            x = layer(x)
        return x


class TransformerSplit:
    """Blocks over tokens, with learned or rotary positions; the map of tokens is (batch, channels, tokens, 1)."""

    def __init__(self, trunk: Any) -> None:
        self._trunk = trunk
        self._blocks = list(trunk.blocks)
        self._early = len(self._blocks) - max(1, len(self._blocks) // 6)
        self.early_layers = [trunk.patch_embed, trunk.norm_pre, *self._blocks[: self._early]]
        self.late_layers = [*self._blocks[self._early :], trunk.norm]

    def early(self, pixels: Tensor) -> Tensor:
        """The tokens that enter the late blocks, as a map."""
        x, rotary = self._add_positions(self._trunk.patch_embed(pixels))
        x = self._run(self._trunk.norm_pre(x), rotary, range(self._early))
        return x.transpose(1, 2)[..., None]

    def late(self, maps: Tensor) -> Tensor:
        """What the trunk's `forward_features` gives; for square images, as all views in training are."""
        x = maps[..., 0].transpose(1, 2)
        rotary = None
        if getattr(self._trunk, "rope", None) is not None:
            side = math.isqrt(x.shape[1] - self._trunk.num_prefix_tokens)
            rotary = self._add_positions(x.new_zeros(1, side, side, x.shape[2]))[1]
        x = self._run(x, rotary, range(self._early, len(self._blocks)))
        tokens: Tensor = self._trunk.norm(x)
        return tokens

    def _add_positions(self, patches: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens with their positions, and the rotary positions of the networks that have them."""
        found = self._trunk._pos_embed(patches)
        return found if isinstance(found, tuple) else (found, None)

    def _run(self, x: Tensor, rotary: Tensor | None, blocks: range) -> Tensor:
        by_block = getattr(self._trunk, "rope_mixed", False)
        for i in blocks:
            named = {} if rotary is None else {"rope": rotary[i] if by_block else rotary}
            x = self._blocks[i](x, **named)
        return x


def split_layers(trunk: Any) -> StagedSplit | TransformerSplit | None:
    """The split of a trunk, by the structure that timm gives its family; None for a family not known here."""
    if _has(trunk, "patch_embed", "_pos_embed", "norm_pre", "blocks", "norm"):
        return TransformerSplit(trunk)  # ViT, DeiT, CLIP, SigLIP, DINOv2, DINOv3, EVA, PE
    if _has(trunk, "conv_stem", "bn1", "blocks"):  # EfficientNet, MobileNet
        stages, early = list(trunk.blocks), 4 * len(trunk.blocks) // 7
        last = [trunk.conv_head, trunk.bn2] if hasattr(trunk, "bn2") else []
        first = [trunk.conv_stem, trunk.bn1, *stages[:early]]
        return StagedSplit(first, [*stages[early:], *last], channels_are_last=False)
    for first_names, stage_names, last_names in _STAGED:
        if _has(trunk, *first_names, *stage_names, *last_names):
            first, stages, last = (
                [getattr(trunk, name) for name in names] for names in (first_names, stage_names, last_names)
            )
            stages = list(stages[0]) if len(stages) == 1 else stages
            channels_are_last = getattr(trunk, "output_fmt", "NCHW") == "NHWC"
            return StagedSplit(
                [*first, *stages[:-1]], [stages[-1], *last], channels_are_last=channels_are_last
            )
    return None


def _has(trunk: Any, *names: str) -> bool:
    return all(hasattr(trunk, name) for name in names)
