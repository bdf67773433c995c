"""The optimizer of a round, its learning rate, and the averaging of gradients over ranks."""

import math
from typing import Any

import torch
from torch import nn

from insclr.model.network import DescriptorNetwork
from insclr.model.refined import RefinedLinear
from insclr.ranks import Ranks
from insclr.recipe import RoundRecipe


def create_optimizer(
    recipe: RoundRecipe, network: DescriptorNetwork, of_method: list[nn.Parameter]
) -> torch.optim.Adam:
    """Adam on the layers that the round trains; all other parameters of the network are frozen."""
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
        groups.append({"params": [*layers, *network.pooling.parameters()], "base_lr": recipe.lr})
    groups = [group for group in groups if group["params"]]
    network.requires_grad_(False)
    for group in groups:
        for parameter in group["params"]:
            parameter.requires_grad_(True)
    return torch.optim.Adam(groups, lr=recipe.lr, weight_decay=recipe.weight_decay)


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
