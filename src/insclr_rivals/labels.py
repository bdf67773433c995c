"""Labels as the supervised methods use them."""

import torch
from torch import Tensor

from insclr.errors import UserError
from insclr.methods.method import Batch, RoundStart


def require_instances(start: RoundStart) -> Tensor:
    """The true instance of every image (N,), numbered without gaps, -1 where unknown."""
    if start.instances is None:
        raise UserError("This method learns from labels: pass --labels CSV.")
    known = start.instances >= 0
    numbers = torch.full_like(start.instances, -1)
    numbers[known] = start.instances[known].unique(return_inverse=True)[1]
    if int(numbers.max()) < 1:
        raise UserError("The labels name one instance only: there is nothing to tell it from.")
    return numbers


def labelled_images(batch: Batch, instances: Tensor) -> tuple[Tensor, Tensor]:
    """Descriptors (B, D) and instances (B,) of the images that have a label: all, but for stand-ins."""
    own = instances[batch.ids.flatten()]
    known = own >= 0
    return batch.augmented.flatten(0, 1)[known], own[known]
