"""A fixed layer with a trained square layer after it, folded into one layer after training."""

import torch
from torch import Tensor, nn


class RefinedLinear(nn.Module):
    """A fixed layer and, trained, a square one that starts as the identity.

    Behind a whitening all directions weigh the same, so that one learning rate suits them; the entries of the
    whitening itself differ by orders of magnitude.
    """

    def __init__(self, fixed: nn.Linear) -> None:
        super().__init__()
        self.fixed = fixed.requires_grad_(False)
        dim, bias = fixed.out_features, fixed.bias is not None
        self.top = nn.Linear(dim, dim, bias=bias).to(fixed.weight.device)
        with torch.no_grad():
            self.top.weight.copy_(torch.eye(dim))
            if bias:
                self.top.bias.zero_()

    def forward(self, features: Tensor) -> Tensor:
        """Map (..., C) to (..., D)."""
        refined: Tensor = self.top(self.fixed(features))
        return refined

    def trained_parameters(self) -> list[nn.Parameter]:
        """What training changes: the square layer."""
        return list(self.top.parameters())

    def fold(self) -> nn.Linear:
        """One layer that does the same."""
        return compose(self.fixed, self.top)


@torch.no_grad()
def compose(first: nn.Linear, second: nn.Linear) -> nn.Linear:
    """One layer that does what `first` and then `second` do."""
    biases: list[Tensor] = []
    if getattr(first, "bias", None) is not None:
        biases.append(second.weight @ first.bias)
    if getattr(second, "bias", None) is not None:
        biases.append(second.bias)
    both = nn.Linear(first.in_features, second.out_features, bias=bool(biases)).to(first.weight.device)
    both.weight.copy_(second.weight @ first.weight)
    if biases:
        both.bias.copy_(torch.stack(biases).sum(0))
    return both
