"""The EMA teacher: an exponential moving average of the network, for methods that compare the two."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from insclr.model.network import DescriptorNetwork


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
