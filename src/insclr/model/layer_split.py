"""Early and late layers of a timm network: maps of the early ones are cached, training changes the late ones."""

import math
from typing import Any

import torch
from torch import Tensor, nn

# What layers raise that a trunk does not call with the map alone.
_CALLED_OTHERWISE = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, AssertionError)


class StagedSplit:
    """Layers that follow each other: maps pass from one to the next."""

    def __init__(self, trunk: Any, early: list[str], late: list[str]) -> None:
        # By their names: batch norm shared by ranks takes the place of a layer.
        self._trunk, self._early, self._late = trunk, early, late
        self._channels_are_last = getattr(trunk, "output_fmt", "NCHW") == "NHWC"

    @property
    def early_layers(self) -> list[nn.Module]:
        """What makes the map."""
        return [self._trunk.get_submodule(name) for name in self._early]

    @property
    def late_layers(self) -> list[nn.Module]:
        """What makes the features of the map."""
        return [self._trunk.get_submodule(name) for name in self._late]

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
    """The split of a trunk by the structure that timm gives it; None where its layers do not follow each other."""
    if all(hasattr(trunk, name) for name in ("patch_embed", "_pos_embed", "norm_pre", "blocks", "norm")):
        return TransformerSplit(trunk)  # ViT, DeiT, CLIP, SigLIP, DINOv2, DINOv3, EVA, PE
    if all(hasattr(trunk, name) for name in ("conv_stem", "bn1", "blocks")):  # EfficientNet, MobileNet
        stages = [f"blocks.{number}" for number in range(len(trunk.blocks))]
        early = 4 * len(stages) // 7
        last = ["conv_head", "bn2"] if hasattr(trunk, "bn2") else []
        return StagedSplit(trunk, ["conv_stem", "bn1", *stages[:early]], [*stages[early:], *last])
    return _split_stages(trunk)


@torch.no_grad()
def _split_stages(trunk: Any) -> StagedSplit | None:
    """The layers before and from the last one that reduces the map; None if they in turn do not give the features.

    This is tried with one image of the size that the network was made for.
    """
    sequences = (nn.Sequential, nn.ModuleList)
    layers: dict[str, nn.Module] = {}
    for name, child in trunk.named_children():
        inside = child.named_children() if isinstance(child, sequences) else ()
        layers |= {f"{name}.{number}": layer for number, layer in inside} or {name: child}
    training = [module for module in trunk.modules() if module.training]
    place = next(trunk.parameters()).device
    channels_are_last = getattr(trunk, "output_fmt", "NCHW") == "NHWC"
    side = trunk.pretrained_cfg.get("input_size", (3, 224, 224))[-1]
    x = torch.linspace(-1, 1, 3 * side * side, device=place).sin().view(1, 3, side, side)
    cells, reducing, end = side * side, [], 0
    trunk.eval()
    try:
        features = trunk.forward_features(x)
        for number, layer in enumerate(layers.values()):
            before, x = x, layer(x)
            of_layer = (x[..., 0] if channels_are_last else x[:, 0]).numel()
            if of_layer < cells and number:
                reducing.append(number)
            cells = of_layer
            # The last one that gives the features: with weights at random, the block before may give them, too.
            at_work = x is not before and (
                any(True for _ in layer.parameters()) or not torch.equal(x, before)
            )
            if at_work and x.shape == features.shape and torch.allclose(x, features, rtol=1e-3, atol=1e-4):
                end = number + 1
    except _CALLED_OTHERWISE:
        pass
    finally:
        for module in training:  # batch norm may be frozen in a network that trains
            module.training = True
    names = list(layers)[:end]
    for start in reversed(reducing):  # VGG ends with a pooling, which has no weights
        if any(True for name in names[start:] for _ in layers[name].parameters()):
            return StagedSplit(trunk, names[:start], names[start:])
    return None
