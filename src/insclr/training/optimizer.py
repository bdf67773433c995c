"""What updates the weights: the optimizer of a round, the EMA teacher, and batch norm over all ranks."""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from insclr.model.network import DescriptorNetwork, RefinedLinear
from insclr.ranks import Ranks
from insclr.recipe import RoundRecipe

_MOMENTUM = 0.9  # of SGD and LARS
_TRUST = 0.001  # of LARS, as published


class Lars(torch.optim.SGD):
    """SGD whose rate is, for each matrix of weights, in proportion to |w| / |gradient| (You et al. 2017).

    Biases and the weights of batch-norm keep the plain rate and have no weight decay, as SimCLR and BYOL have it.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Scale the gradients, then step as SGD without weight decay."""
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None or weight.dim() < 2:
                    continue
                weight.grad.add_(weight, alpha=group["weight_decay"])
                size, pull = weight.norm(), weight.grad.norm()
                weight.grad.mul_(torch.where((size > 0) & (pull > 0), _TRUST * size / pull, 1.0))
            group["weight_decay"] = 0.0
        result = super().step(closure)
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        return result


def create_optimizer(
    recipe: RoundRecipe, network: DescriptorNetwork, of_method: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """The recipe's optimizer on the layers that the round trains; all other parameters are frozen."""
    fc = network.fc
    of_fc = (
        fc.trained_parameters()
        if isinstance(fc, RefinedLinear)
        else []
        if fc is None
        else list(fc.parameters())
    )
    groups: list[dict[str, Any]] = [
        {"params": params, "base_lr": recipe.fc_lr or recipe.lr} for params in (of_fc, of_method)
    ]
    if recipe.train != "fc":
        layers = (
            network.backbone.parameters() if recipe.train == "all" else network.backbone.late_parameters()
        )
        groups.append({"params": list(layers), "base_lr": recipe.lr})
    groups = [group for group in groups if group["params"]]
    network.requires_grad_(False)
    for group in groups:
        for parameter in group["params"]:
            parameter.requires_grad_(True)
    if not recipe.decay_biases:
        groups = [part for group in groups for part in _split_biases(group, network)]
    lr, decay = recipe.lr, recipe.weight_decay
    if recipe.optimizer == "adam":
        return torch.optim.Adam(groups, lr=lr, weight_decay=decay)
    made = torch.optim.SGD if recipe.optimizer == "sgd" else Lars
    return made(groups, lr=lr, momentum=_MOMENTUM, weight_decay=decay)


def _split_biases(group: dict[str, Any], network: DescriptorNetwork) -> list[dict[str, Any]]:
    """The group's weights, and its biases without weight decay."""
    biases = {id(one) for name, one in network.named_parameters() if name.endswith("bias")}
    parts = ([p for p in group["params"] if (id(p) in biases) == is_bias] for is_bias in (False, True))
    made = [{**group, "params": part} for part in parts]
    made[1]["weight_decay"] = 0.0
    return [part for part in made if part["params"]]


def rate_factor(recipe: RoundRecipe, step: int, steps: int) -> float:
    """The share of the base learning rate at `step` (from 0) of `steps`."""
    warm = min(1.0, (step + 1) / recipe.warmup) if recipe.warmup else 1.0
    if recipe.schedule == "step":
        return warm * 0.1 ** sum(step >= milestone for milestone in recipe.milestones)
    if recipe.schedule == "cosine":
        return warm * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
    return warm


def average_gradients(parameters: list[nn.Parameter], ranks: Ranks) -> None:
    """Give every rank the mean of all ranks' gradients, in one message."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if ranks.alone or not gradients:
        return
    mean = ranks.sum(torch.cat([one.flatten() for one in gradients])) / ranks.world
    for one, part in zip(gradients, mean.split([one.numel() for one in gradients]), strict=True):
        one.copy_(part.view_as(one))


class EmaTeacher:
    """A copy of the network whose trained weights w follow its own v: w <- decay * w + (1 - decay) * v.

    It describes in eval mode: batch-norm uses the running statistics, which are the network's own.
    """

    def __init__(self, network: DescriptorNetwork, decay: float) -> None:
        self.network = copy.deepcopy(network).requires_grad_(False).eval()
        self._student = network
        self._decay = decay

    @torch.no_grad()
    def update(self) -> None:
        """Move one step towards the network."""
        own = dict(self.network.named_parameters())
        for name, value in self._student.named_parameters():
            if value.requires_grad:
                own[name].lerp_(value, 1 - self._decay)
        statistics = dict(self.network.named_buffers())
        for name, statistic in self._student.named_buffers():
            statistics[name].copy_(statistic)

    def state_dict(self) -> dict[str, Tensor]:
        """Its trained weights: everything else is the network's."""
        trained = {name for name, one in self._student.named_parameters() if one.requires_grad}
        return {name: value for name, value in self.network.state_dict().items() if name in trained}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a checkpoint, after the network has been restored."""
        self.network.load_state_dict({**self._student.state_dict(), **state})


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
