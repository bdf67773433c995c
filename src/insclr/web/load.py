"""How much a server takes on at once, and the numbers it tells about itself."""

import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_MEMORY_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes that getrusage counts memory in
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


class Full(Exception):
    """There is no room for another one just now."""


class Room:
    """So many units (bytes, requests) may be taken at once; what does not fit is refused, never waits."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0
        self._lock = threading.Lock()

    def take(self, amount: int) -> None:
        """Take `amount`; Full when there is not so much left."""
        with self._lock:
            if self.taken + amount > self.size:
                raise Full
            self.taken += amount

    def give_back(self, amount: int) -> None:
        """Free what was taken."""
        with self._lock:
            self.taken -= amount

    @contextmanager
    def held(self, amount: int = 1) -> Iterator[None]:
        """Take `amount` for the time of the block."""
        self.take(amount)
        try:
            yield
        finally:
            self.give_back(amount)


class Numbers:
    """Requests by route and status and how long they took, in Prometheus' text format."""

    def __init__(self) -> None:
        self._began = time.time()
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[str, list[float]] = {}  # by route: a count a bucket, the sum, the count

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Note an answered request; `route` is a template, never a path with names or ids in it."""
        with self._lock:
            self._requests[method, route, status] += 1
            held = self._seconds.setdefault(route, [0.0] * (len(_BUCKETS) + 2))
            for place, bound in enumerate(_BUCKETS):
                held[place] += seconds <= bound
            held[-2] += seconds
            held[-1] += 1

    def text(self, gauges: dict[str, float]) -> str:
        """All numbers, `gauges` among them."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        gauges = gauges | {
            "process_start_time_seconds": self._began,
            "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
            "process_peak_memory_bytes": float(usage.ru_maxrss * _MEMORY_UNIT),
        }
        lines = ["# TYPE insclr_requests_total counter"]
        with self._lock:
            for (method, route, status), count in sorted(self._requests.items()):
                labels = f'method="{method}",route="{route}",status="{status}"'
                lines.append(f"insclr_requests_total{{{labels}}} {count}")
            lines.append("# TYPE insclr_request_seconds histogram")
            for route, held in sorted(self._seconds.items()):
                name = f'insclr_request_seconds_bucket{{route="{route}",le='
                for bound, under in zip((*_BUCKETS, "+Inf"), (*held[: len(_BUCKETS)], held[-1]), strict=True):
                    lines.append(f'{name}"{bound}"}} {under:g}')
                lines.append(f'insclr_request_seconds_sum{{route="{route}"}} {held[-2]:.6f}')
                lines.append(f'insclr_request_seconds_count{{route="{route}"}} {held[-1]:g}')
        for gauge, value in gauges.items():
            full = gauge if gauge.startswith("process_") else f"insclr_{gauge}"
            kind = "counter" if gauge.endswith("_total") else "gauge"
            lines += [f"# TYPE {full} {kind}", f"{full} {value:.6g}"]
        return "\n".join(lines) + "\n"
