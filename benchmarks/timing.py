"""Times that can be compared: rivals take turns in one process, and medians leave out what disturbed them.

On a busy machine INSCLR_BENCH_CLOCK=processor with OMP_NUM_THREADS=1 counts processor time instead.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping

_clock = time.process_time if os.environ.get("INSCLR_BENCH_CLOCK") == "processor" else time.perf_counter


def seconds(work: Callable[[], object]) -> float:
    began = _clock()
    work()
    return _clock() - began


def in_turns(
    rivals: Mapping[str, Callable[[], object]],
    turns: int,
    warm: int = 1,
    before: Callable[[str], object] = lambda _: None,
) -> dict[str, float]:
    """Median seconds of each rival over so many turns, after `warm` ones; `before` (its name) off the clock."""
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(warm + turns):
        for name, work in rivals.items():
            before(name)
            took = seconds(work)
            if turn >= warm:
                times[name].append(took)
    return {name: statistics.median(taken) for name, taken in times.items()}
