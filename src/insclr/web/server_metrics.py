"""Metrics of a server for Prometheus: requests, how long they took, and what is in use."""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_MEMORY_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes that getrusage counts memory in
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds

disable_created_metrics()  # type: ignore[no-untyped-call]


class ServerMetrics(Collector):
    """Requests by method, route and status, and the values that `read` gives; counters end with `_total`."""

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read
        self._began = time.time()
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "insclr_requests", "answered requests", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "insclr_request_seconds", "duration", ["route"], buckets=_BUCKETS, registry=self._registry
        )
        self._registry.register(self)

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request; `route` is a template, never a path with names or ids in it."""
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """The values of this moment (called by Prometheus' client)."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        process = {
            "process_start_time_seconds": self._began,
            "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
            "process_peak_memory_bytes": usage.ru_maxrss * _MEMORY_UNIT,
        }
        for name, value in {**self._read(), **process}.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(name, name.replace("_", " "), value=value)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
