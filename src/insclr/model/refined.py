"""A layer refined by a square one on top of it, folded into one when the training is over."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class RefinedLinear(nn.Module):
    """A fixed layer and, trained, a square one that starts as the identity.

    Behind a whitening all directions weigh the same, so that one learning rate suits them; the entries of the
    whitening itself differ by orders of magnitude.
    """

    def __init__(self, fixed: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", fixed.weight.detach().clone())
        self.register_buffer("bias", fixed.bias.detach().clone())
        self.top = nn.Linear(fixed.out_features, fixed.out_features).to(fixed.weight.device)
        with torch.no_grad():
            self.top.weight.copy_(torch.eye(fixed.out_features))
            self.top.bias.zero_()

    def forward(self, features: Tensor) -> Tensor:
        """Map (..., C) to (..., D)."""
        return self.top(functional.linear(features, self.weight, self.bias))  # type: ignore[arg-type, no-any-return]

    def folded(self) -> nn.Linear:
        """One layer that does the same."""
        dim, channels = self.weight.shape  # type: ignore[misc]
        fixed = nn.Linear(int(channels), int(dim)).to(self.top.weight.device)
        with torch.no_grad():
            fixed.weight.copy_(self.weight)  # type: ignore[arg-type]
            fixed.bias.copy_(self.bias)  # type: ignore[arg-type]
        return compose(fixed, self.top)


@torch.no_grad()
def compose(first: nn.Linear, second: nn.Linear) -> nn.Linear:
    """One layer that does what `first` and then `second` do."""
    both = nn.Linear(first.in_features, second.out_features).to(first.weight.device)
    both.weight.copy_(second.weight @ first.weight)
    both.bias.copy_(second.weight @ first.bias + second.bias)
    return both
