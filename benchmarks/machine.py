"""The machine that a table was measured on, in one line."""

import os
import platform
from datetime import date
from pathlib import Path

import torch


def describe() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        f"{date.today()}, {_processor()} ({capability}), {cores} cores, {memory:.0f} GB, {device}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
