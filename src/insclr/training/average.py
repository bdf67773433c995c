"""A running mean of the weights: steadier than the last step's."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class WeightAverage:
    """Exponential moving average of a network's weights, with the bias of the first steps corrected."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.weights = {name: value.detach().clone() for name, value in network.state_dict().items()}

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take in the network's weights as they are now."""
        self.updates += 1
        # Early on the mean of all updates so far, later the exponential one.
        decay = min(self.decay, self.updates / (self.updates + 10))
        for name, value in network.state_dict().items():
            mean = self.weights[name]
            if mean.is_floating_point():
                mean.lerp_(value, 1 - decay)
            else:
                mean.copy_(value)

    def copy_to(self, network: nn.Module) -> None:
        """Give the network the averaged weights."""
        network.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return self.weights | {"#updates": torch.tensor(self.updates)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        self.updates = int(state["#updates"])
        for name, mean in self.weights.items():
            mean.copy_(state[name])
