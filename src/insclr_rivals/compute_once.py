"""Tensors that a method computes once a run and keeps in a file for all rounds."""

from collections.abc import Callable

import safetensors.torch
from torch import Tensor

from insclr.files import whole_file
from insclr.methods.method import RoundStart


def compute_once(name: str, start: RoundStart, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The result of `compute` in the first round of a run; later rounds and a resumed run read it from a file.

    All ranks call `compute` together and use the result of the first one.
    """
    file = (start.kept or start.folder) / f"{name}.safetensors"
    if not start.ranks.from_first(file.exists()):
        found = compute()
        if start.ranks.first:
            with whole_file(file) as scratch:
                safetensors.torch.save_file(found, scratch)
        start.ranks.barrier()
    return safetensors.torch.load_file(file)
