"""A proxy in front of moto's S3 that delays, refuses and cuts off answers on purpose."""

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
from moto.server import ThreadedMotoServer

from tests.fakes.http import FakeServer, Request


class Faults(FakeServer):
    """Passes requests on, and spoils each answer about files in one of `kinds`."""

    protocol = "HTTP/1.1"  # else a client waits a second before each upload
    spoiled = (".bin", ".txt", "/state_dict.pth", ".distcp", "/manifest.json")

    def __init__(self, upstream: str) -> None:
        self.upstream, self.dice = upstream, random.Random(0)
        self.kinds: list[str] = []
        self.done = {"500": 0, "truncated": 0, "slow": 0}
        super().__init__()

    def respond(self, request: Request) -> tuple[int, bytes, dict[str, str]]:
        kinds = self.kinds if any(name in request.path for name in self.spoiled) else []
        kind = self.dice.choice(kinds) if kinds else "fine"
        if kind != "fine":
            self.done[kind] += 1
        if kind == "500":
            return 500, b"", {}
        passed = {k: v for k, v in request.headers.items() if k.lower() != "host"}
        send = {"params": request.query, "data": request.body, "headers": passed}
        answer = requests.request(request.method, self.upstream + request.path, **send)
        dropped = "content-length", "connection", "transfer-encoding"
        headers = {k: v for k, v in answer.headers.items() if k.lower() not in dropped}
        body = answer.content
        headers["Content-Length"] = str(len(body))
        time.sleep(0.05 * (kind == "slow"))
        if kind == "truncated":
            body, headers["Connection"] = body[: len(body) // 2], "close"
        return answer.status_code, body, headers


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """moto, AWS's services in this process; its address."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@contextlib.contextmanager
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Faults]]:
    """(client, faults): moto with a bucket, behind a proxy that AWS's clients are told of."""
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    for name, value in {**keys, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    with moto_server() as moto, Faults(moto) as faults:
        client = boto3.client("s3", endpoint_url=moto)
        requests.post(f"{moto}/moto-api/reset")  # its state is the process's
        client.create_bucket(Bucket="bucket")
        monkeypatch.setenv("AWS_ENDPOINT_URL", faults.url)
        yield client, faults


def upload(client: Any, folder: Path) -> None:
    """Put shards at s3://bucket/shards."""
    for path in [*folder.glob("*.bin"), *folder.glob("*.npy"), folder / "index.json"]:
        client.put_object(Bucket="bucket", Key=f"shards/{path.name}", Body=path.read_bytes())
