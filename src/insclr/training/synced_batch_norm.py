"""Batch norm over ranks: every layer normalises by the statistics of the whole batch, on CPU and GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from insclr.model.network import DescriptorNetwork
from insclr.ranks import Ranks


@contextmanager
def synced_batch_norm(network: DescriptorNetwork, ranks: Ranks) -> Iterator[None]:
    """While training, batch-norm layers use the statistics of all ranks' images, as one rank would.

    The layers stay in evaluation mode; what enters them is changed so that normalising it by their running
    statistics equals normalising the original by the batch's. That works for any layer built on batch-norm.
    """
    if ranks.alone or network.frozen_batch_norm:
        yield
        return

    def normalise(layer: _BatchNorm, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        (x,) = inputs
        return (_as_if_running(layer, x, ranks) if network.training else x,)

    network.frozen_batch_norm = True
    layers = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    hooks = [layer.register_forward_pre_hook(normalise) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        network.frozen_batch_norm = False


def _as_if_running(layer: _BatchNorm, x: Tensor, ranks: Ranks) -> Tensor:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert layer.num_batches_tracked is not None
    shape = (1, -1, *[1] * (x.dim() - 2))
    others = [d for d in range(x.dim()) if d != 1]
    values = x.float()
    count = ranks.sum(values.new_tensor([float(x.numel() // x.shape[1])]))
    mean = ranks.sum(values.sum(others)) / count  # (channels,)
    centred = values - mean.view(shape)
    variance = ranks.sum(centred.square().sum(others)) / count

    layer.num_batches_tracked += 1
    rate = layer.momentum if layer.momentum is not None else 1.0 / float(layer.num_batches_tracked)
    with torch.no_grad():
        # New tensors: the old ones may still be needed by the backward pass of another batch.
        layer.running_mean = layer.running_mean.lerp(mean, rate)
        layer.running_var = layer.running_var.lerp(variance * count / (count - 1), rate)
    scale = ((layer.running_var + layer.eps) / (variance + layer.eps)).sqrt()
    return (centred * scale.view(shape) + layer.running_mean.view(shape)).to(x.dtype)
