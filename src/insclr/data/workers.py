"""The number of cores and of decoding workers, and a pool of decoding threads."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def usable_cores() -> int:
    """The cores that this process may use; OMP_NUM_THREADS, where set, is the user's word on it."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) else _cores()


def default_workers() -> int:
    """Processes or threads that decode while the network computes: one a core, up to eight."""
    return min(8, _cores())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(job: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """The job's results in order, some begun ahead; 0 workers: in this thread.

    For jobs that leave Python's lock most of the time, as decoding, hashing and engines do.
    """
    if not workers:
        yield from map(job, items)
        return
    begun: list[Future[Result]] = []
    threads = ThreadPoolExecutor(workers, thread_name_prefix="describe")
    try:
        for item in items:
            begun.append(threads.submit(job, item))
            if len(begun) > 2 * workers:
                yield begun.pop(0).result()
        while begun:
            yield begun.pop(0).result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
