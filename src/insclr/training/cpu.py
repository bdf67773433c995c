"""What makes a network faster on a CPU: memory that is kept, and short numbers where the processor has them."""

import ctypes
import sys
from collections.abc import Mapping
from typing import Any

import torch

from insclr.errors import UserError

# Names of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


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


def short_floats(precision: str, device: torch.device) -> torch.dtype | None:
    """The type of the numbers that convolutions are computed in; None is single precision.

    "auto" is bf16 on a CPU that multiplies it by itself, 1.3 to 2.2 times as fast; imitated, it is slower.
    """
    if precision == "auto":
        return torch.bfloat16 if device.type == "cpu" and _multiplies_bf16() else None
    if precision == "fp16" and device.type != "cuda":
        raise UserError("precision = fp16 needs an NVIDIA GPU: choose bf16, or auto.")
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def _multiplies_bf16() -> bool:
    # Older versions of torch do not tell.
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def computed_in(floats: torch.dtype | None, device: torch.device) -> torch.autocast:
    """A context in which the network computes in these numbers; its weights stay in single precision."""
    return torch.autocast(device.type, dtype=floats or torch.bfloat16, enabled=floats is not None)
