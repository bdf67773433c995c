"""A slow copy of a network, for methods that compare it with what it was a little while ago."""

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from insclr.model.network import DescriptorNetwork


class MomentumNetwork:
    """A copy whose trained weights follow those of the network: `rate` of themselves is kept in every step.

    It describes in eval mode: batch-norm uses the running statistics, which are the network's own.
    """

    def __init__(self, network: DescriptorNetwork, rate: float) -> None:
        self.network = copy.deepcopy(network).requires_grad_(False).eval()
        self._leader = network
        self._rate = rate

    @torch.no_grad()
    def follow(self) -> None:
        """Move one step towards the network."""
        for mine, theirs, is_trained in self._pairs():
            if is_trained:
                mine.lerp_(theirs, 1 - self._rate)
            else:
                mine.copy_(theirs)

    def state_dict(self) -> dict[str, Tensor]:
        """Its trained weights: everything else is the network's."""
        trained = {name for name, one in self._leader.named_parameters() if one.requires_grad}
        return {name: value for name, value in self.network.state_dict().items() if name in trained}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint, after the network has been restored."""
        self.network.load_state_dict({**self._leader.state_dict(), **state})

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor, bool]]:
        """(own, the network's, trained) of every trained weight and of all running statistics."""
        own = dict(self.network.named_parameters())
        for name, one in self._leader.named_parameters():
            if one.requires_grad:
                yield own[name], one, True
        statistics = dict(self.network.named_buffers())
        for name, value in self._leader.named_buffers():
            yield statistics[name], value, False
