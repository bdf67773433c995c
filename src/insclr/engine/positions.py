"""Learned positions of transformers at other sizes, in operations that a graph has: two products of matrices."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from insclr.engine.view_graph import cubic, number, resize_matrix

_NAME = "resample_abs_pos_embed"  # timm's function; its models import it by name


@contextmanager
def exportable_positions() -> Iterator[None]:
    """Have timm's transformers resample their positions so that a graph can, too, at any size."""
    models = [
        one for name, one in sys.modules.items() if name.startswith("timm.models") and hasattr(one, _NAME)
    ]
    # torch's exporter of repeat_interleave, which rotary positions use, changes other constants of the graph.
    patches = [(torch.Tensor, "repeat_interleave", _repeat), *((model, _NAME, _resample) for model in models)]
    with ExitStack() as stack:
        for owner, name, function in patches:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, function)
        yield


def _repeat(values: Tensor, repeats: int, dim: int) -> Tensor:
    """Every value so many times, along the last dimension."""
    assert dim == -1
    return torch.stack([values] * repeats, -1).flatten(-2)


def _resample(
    positions: Tensor,
    new_size: Sequence[Any],
    old_size: Sequence[int] | None = None,
    num_prefix_tokens: int = 1,
    **_: Any,
) -> Tensor:
    """Positions (1, prefix + height * width, channels) for a grid of `new_size`: bicubic, antialiased."""
    prefix, grid = positions[:, :num_prefix_tokens], positions[0, num_prefix_tokens:]
    height, width = old_size or (math.isqrt(len(grid)),) * 2
    channels = grid.shape[1]
    rows = _weights(height, new_size[0]) @ grid.reshape(height, width * channels)
    made = _weights(width, new_size[1]) @ rows.reshape(
        -1, width, channels
    )  # (new height, new width, channels)
    return torch.cat([prefix, made.reshape(1, -1, channels)], dim=1)


def _weights(old: int, new: Any) -> Tensor:
    """The share (new, old) of every old place in every new one; the identity where nothing changes."""
    return resize_matrix(old, number(old), 0, number(new), cubic)
