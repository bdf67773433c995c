"""The teacher copy of a network."""

from typing import Any

import torch
from torch import nn

from insclr.model.network import DescriptorNetwork, GeM
from insclr.training.optimizer import EmaTeacher


class _Backbone(nn.Module):
    channels = 4

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)


def _network() -> DescriptorNetwork:
    backbone: Any = _Backbone()
    return DescriptorNetwork(backbone, GeM(), dim=3)


def test_trained_weights_follow_statistics_are_copied_and_the_rest_stays() -> None:
    network = _network()
    network.backbone.early.requires_grad_(False)  # type: ignore[attr-defined]
    teacher = EmaTeacher(network, 0.9)
    start = {name: value.clone() for name, value in teacher.network.state_dict().items()}
    with torch.no_grad():
        for value in network.state_dict().values():
            value.add_(1)
    teacher.update()
    now = teacher.network.state_dict()
    torch.testing.assert_close(now["fc.weight"], start["fc.weight"] + 0.1)
    torch.testing.assert_close(now["backbone.norm.running_mean"], start["backbone.norm.running_mean"] + 1)
    assert torch.equal(now["backbone.early.weight"], start["backbone.early.weight"])
    assert "fc.weight" in teacher.state_dict()
    assert "backbone.early.weight" not in teacher.state_dict()
    again = EmaTeacher(network, 0.9)
    again.load_state_dict(teacher.state_dict())
    torch.testing.assert_close(again.network.state_dict()["fc.weight"], now["fc.weight"])
