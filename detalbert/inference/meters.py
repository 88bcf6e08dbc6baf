"""Prometheus metrics of a server: requests, latency, queue, tokens per row."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)


class Meters:
    """Metrics of one server; `waiting` returns how many questions wait now."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        kept: dict[str, Any] = {"registry": self.registry}
        labels = ["path", "status"]
        self.requests = Counter("requests", "Requests by path and status", labels, **kept)
        said = "From a request's headers to its answer's last byte"
        self.seconds = Histogram("request_seconds", said, ["path"], buckets=SECONDS, **kept)
        queue = Gauge("waiting", "Requests that wait for the model", **kept)
        queue.set_function(waiting)
        self.row_tokens = Histogram(
            "row_tokens", "Real tokens of a packed row", buckets=TOKENS, **kept
        )
