"""How many cores there are for us, and how many decode at a time."""

import os


def usable_cores() -> int:
    """The cores that this process may use; OMP_NUM_THREADS, where set, is the user's word on it."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdecimal() and int(told) else _cores()


def default_workers() -> int:
    """Processes or threads that decode while the network computes: one a core, up to eight."""
    return min(8, _cores())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
