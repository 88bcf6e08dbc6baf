"""Prometheus metrics of a server: requests, latency, queue, tokens per row."""

import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)


class Meters:
    """Metrics of one server; `waiting` returns how many requests wait now."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        kept: dict[str, Any] = {"registry": self.registry}
        labels = ["path", "status"]
        self.requests = Counter("requests", "Requests by path and status", labels, **kept)
        said = "From a request's first byte to its answer's last"
        self.seconds = Histogram("request_seconds", said, ["path"], buckets=SECONDS, **kept)
        queue = Gauge("waiting", "Requests that wait for the model", **kept)
        queue.set_function(waiting)
        self.row_tokens = Histogram(
            "row_tokens", "Real tokens of a packed row", buckets=TOKENS, **kept
        )


class Counted:
    """Middleware that counts the requests of an application; `paths` are counted separately."""

    def __init__(self, app: Any, meters: Meters, paths: frozenset[str]) -> None:
        self.app, self.meters, self.paths = app, meters, paths

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self.paths else "other"
        began, status = time.monotonic(), ["none"]  # the client left before it had one

        async def tell(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status[0] = str(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, tell)
        finally:
            self.meters.requests.labels(path, status[0]).inc()
            self.meters.seconds.labels(path).observe(time.monotonic() - began)


def show_meters(app: FastAPI, meters: Meters, facts: dict[str, Any]) -> None:
    """Add `/metrics` with the counts, and `/health` with `facts`, to the application."""

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(generate_latest(meters.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Return 200 as long as requests are answered."""
        return {"status": "ok", **facts}
