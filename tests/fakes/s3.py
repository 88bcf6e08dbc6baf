"""A proxy in front of moto's S3 that delays, refuses and cuts off answers on purpose."""

import contextlib
import random
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests
from moto.server import ThreadedMotoServer


class Faults(ThreadingHTTPServer):
    """Passes requests for .bin and .txt on, and spoils each answer in one of `kinds`."""

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream, self.dice = upstream, random.Random(0)
        self.kinds: list[str] = []
        self.done = {"500": 0, "truncated": 0, "slow": 0}
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Faults
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        kinds = self.server.kinds if ".bin" in self.path or ".txt" in self.path else []
        kind = self.server.dice.choice(kinds) if kinds else "fine"
        if kind != "fine":
            self.server.done[kind] += 1
        if kind == "500":
            return self.send_error(500)
        passed = {k: v for k, v in self.headers.items() if k.lower() != "host"}
        answer = requests.get(self.server.upstream + self.path, headers=passed)
        body = answer.content
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if kind == "slow":
            time.sleep(0.05)
        if kind == "truncated":
            body = body[: len(body) // 2]
            self.close_connection = True
        self.wfile.write(body)


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """moto, AWS's services in this process; its address."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def upload(client: Any, folder: Path) -> None:
    """Put shards at s3://bucket/shards."""
    for path in [*folder.glob("*.bin"), *folder.glob("*.npy"), folder / "index.json"]:
        client.put_object(Bucket="bucket", Key=f"shards/{path.name}", Body=path.read_bytes())
