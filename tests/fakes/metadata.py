"""An instance metadata service on loopback: IMDSv2, a token required."""

from tests.fakes.http import FakeServer, Request


class MetadataServer(FakeServer):
    """Serves `spot/instance-action` once `notice` is set, and the rebalance path once `rebalance`
    is. `asked` lists what was asked for."""

    def __init__(self) -> None:
        self.notice: str | None = None
        self.rebalance: str | None = None
        self.asked: list[str] = []
        super().__init__()

    def respond(self, request: Request) -> tuple[int, bytes]:
        if request.method == "PUT":
            wanted = request.path == "/latest/api/token"
            lifetime = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            return (200, b"secret") if wanted and lifetime else (400, b"")
        self.asked.append(request.path)
        if request.headers.get("X-aws-ec2-metadata-token") != "secret":
            return 401, b""
        bodies = {
            "/latest/meta-data/spot/instance-action": self.notice,
            "/latest/meta-data/events/recommendations/rebalance": self.rebalance,
        }
        body = bodies.get(request.path)
        return (404, b"") if body is None else (200, body.encode())
