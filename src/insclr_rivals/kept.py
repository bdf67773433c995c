"""What a method finds once, before training, and keeps for all rounds of a run."""

from collections.abc import Callable

import safetensors.torch
from torch import Tensor

from insclr.files import whole_file
from insclr.methods.method import RoundStart


def found_once(name: str, start: RoundStart, find: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What `find` gives in the first round of a run; every later round and a resumed run read it from a file.

    All ranks call `find` together, and have what the first one found.
    """
    file = (start.kept or start.folder) / f"{name}.safetensors"
    if not start.ranks.from_first(file.exists()):
        found = find()
        if start.ranks.first:
            with whole_file(file) as scratch:
                safetensors.torch.save_file(found, scratch)
        start.ranks.barrier()
    return safetensors.torch.load_file(file)
