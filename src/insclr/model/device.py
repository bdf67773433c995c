"""Choose the device of a network, and the settings that suit it."""

import ctypes
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from insclr.errors import UserError

if TYPE_CHECKING:  # imported where it is used: a wrong name is reported before torch is loaded
    import torch

_NAMES = re.compile(r"cpu|mps(:0)?|cuda(:\d+)?")
# Names of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
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


def describing_autocast(device: "torch.device") -> "torch.autocast":
    """The precision to describe images in: float16 on a GPU, float32 on a CPU.

    Nothing is trained here, so float16's range suffices, and it is eight times finer than bfloat16.
    """
    import torch

    return torch.autocast(device.type, dtype=torch.float16, enabled=device.type != "cpu")


def describing_batch(device: "torch.device") -> int:
    """How many images of a usual size are described at once."""
    return _BATCH.get(device.type, _BATCH["cpu"])


def keep_freed_memory() -> None:
    """Let the process keep the memory of freed tensors for the next ones, as a GPU's allocator does.

    By default large tensors go back to the system at once, and their pages are cleared and mapped anew in every
    step: a third of the time of a training step. Costs a fifth more memory at the peak.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def short_floats(precision: str, device: "torch.device") -> "torch.dtype | None":
    """The type of the numbers that convolutions are computed in; None is single precision.

    "auto" is bf16 on a CPU that multiplies it by itself, 1.3 to 2.2 times as fast; imitated, it is slower.
    """
    import torch

    if precision == "auto":
        return torch.bfloat16 if device.type == "cpu" and _multiplies_bf16() else None
    if precision == "fp16" and device.type != "cuda":
        raise UserError("precision = fp16 needs an NVIDIA GPU: choose bf16, or auto.")
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def _multiplies_bf16() -> bool:
    import torch

    # Older versions of torch have no such function.
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def computed_in(floats: "torch.dtype | None", device: "torch.device") -> "torch.autocast":
    """A context in which the network computes in these numbers; its weights stay in single precision."""
    import torch

    return torch.autocast(device.type, dtype=floats or torch.bfloat16, enabled=floats is not None)
