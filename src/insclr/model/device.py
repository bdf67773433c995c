"""Where a network runs: the one place that chooses a device and what suits it."""

import re
from typing import TYPE_CHECKING

from insclr.errors import UserError

if TYPE_CHECKING:  # imported where it is used: a wrong name is reported before torch is loaded
    import torch
    from torch import nn

_NAMES = re.compile(r"cpu|mps(:0)?|cuda(:\d+)?")
_BATCH = {"cpu": 32, "cuda": 128, "mps": 64}


def require_device_name(name: str) -> None:
    """Refuse a name that no device has."""
    if name != "auto" and not _NAMES.fullmatch(name):
        raise UserError(f"There is no device {name!r}: choose auto, cpu, cuda, cuda:N or mps.")


def pick_device(name: str = "auto") -> "torch.device":
    """The device a user names: auto (the best there is), cpu, cuda, cuda:N or mps.

    A name that is unknown, and a device that is not there, is a UserError.
    """
    require_device_name(name)
    import torch

    if name == "auto":
        best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(best)
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(
                f"The device {name} is not there: PyTorch sees no NVIDIA GPU. Choose auto or cpu, or check "
                "the driver and that the installed PyTorch is built with CUDA."
            )
        count = torch.cuda.device_count()
        if device.index is not None and device.index >= count:
            raise UserError(f"The device {name} is not there: choose one of cuda:0 to cuda:{count - 1}.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("The device mps is not there: it needs a Mac with Apple silicon. Choose auto or cpu.")
    return device


def place(network: "nn.Module", device: "str | torch.device" = "auto") -> "torch.device":
    """Move all of a network to a device, given by itself or by the name a user would give."""
    chosen = pick_device(device) if isinstance(device, str) else device
    network.to(chosen)
    return chosen


def describing_autocast(device: "torch.device") -> "torch.autocast":
    """The precision to describe images in: float16 on a GPU, float32 on a CPU.

    Nothing is trained here, so float16's range suffices, and it is eight times finer than bfloat16.
    """
    import torch

    return torch.autocast(device.type, dtype=torch.float16, enabled=device.type != "cpu")


def describing_batch(device: "torch.device") -> int:
    """How many images of a usual size are described at once."""
    return _BATCH.get(device.type, _BATCH["cpu"])
