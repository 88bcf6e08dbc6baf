"""A proxy in front of moto's S3 that delays, refuses and cuts off answers on purpose."""

import contextlib
import random
import time

import boto3
import requests
from moto.server import ThreadedMotoServer

from tests.fakes.http import FakeServer


class Faults(FakeServer):
    """Passes requests on, and spoils each answer about files in one of `kinds`."""

    protocol = "HTTP/1.1"  # else a client waits a second before each upload
    spoiled = (".npy", ".txt", "/state_dict.pth", ".safetensors", "/manifest.json")

    def __init__(self, upstream):
        self.upstream = upstream
        self.dice = random.Random(0)
        self.kinds = []
        self.done = {"500": 0, "truncated": 0, "slow": 0}
        super().__init__()

    def respond(self, request):
        fault = self.draw(request)
        if fault == "500":
            return 500, b"", {}

        response = requests.request(
            request.method,
            self.upstream + request.path,
            params=request.query,
            data=request.body,
            headers=without(request.headers, "host", "transfer-encoding"),
        )
        body = response.content
        headers = without(response.headers, "content-length", "connection", "transfer-encoding")
        headers["Content-Length"] = str(len(body))
        if request.method == "HEAD":  # whose answer has no body
            headers["Content-Length"] = response.headers.get("Content-Length", "0")
        if fault == "slow":
            time.sleep(0.05)
        elif fault == "truncated":
            body = body[: len(body) // 2]
            headers["Connection"] = "close"
        return response.status_code, body, headers

    def draw(self, request):
        """Draw and count what happens to a request: "fine", unless it is about a file."""
        if not self.kinds or not any(name in request.path for name in self.spoiled):
            return "fine"
        fault = self.dice.choice(self.kinds)
        if fault != "fine":
            self.done[fault] += 1
        return fault


def without(headers, *names):
    """Return headers without some, which are given in lower case."""
    return {name: value for name, value in headers.items() if name.lower() not in names}


@contextlib.contextmanager
def moto_server():
    """Serve AWS's services in this process, by moto; yield the address."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@contextlib.contextmanager
def bucket(monkeypatch):
    """Yield (client, faults): moto with a bucket, behind a proxy that AWS's clients are told of."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with moto_server() as moto, Faults(moto) as faults:
        client = boto3.client("s3", endpoint_url=moto)
        requests.post(f"{moto}/moto-api/reset")  # its state is the process's
        client.create_bucket(Bucket="bucket")
        monkeypatch.setenv("AWS_ENDPOINT_URL", faults.url)
        yield client, faults


def upload(client, folder):
    """Put shards at s3://bucket/shards."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            key = f"shards/{path.relative_to(folder)}"
            client.put_object(Bucket="bucket", Key=key, Body=path.read_bytes())
