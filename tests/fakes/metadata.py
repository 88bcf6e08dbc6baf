"""An instance metadata service on loopback: IMDSv2, a token required."""

import http.server
import threading
from typing import Any


class MetadataServer:
    """Serves `spot/instance-action` once `notice` is set, and the rebalance path once `rebalance`
    is. `asked` lists what was asked for."""

    def __init__(self) -> None:
        self.notice: str | None = None
        self.rebalance: str | None = None
        self.asked: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                wanted = self.path == "/latest/api/token"
                lifetime = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
                self.answer(200 if wanted and lifetime else 400, "secret")

            def do_GET(self) -> None:
                outer.asked.append(self.path)
                if self.headers.get("X-aws-ec2-metadata-token") != "secret":
                    self.answer(401, "")
                    return
                bodies = {
                    "/latest/meta-data/spot/instance-action": outer.notice,
                    "/latest/meta-data/events/recommendations/rebalance": outer.rebalance,
                }
                body = bodies.get(self.path)
                self.answer(404 if body is None else 200, body or "")

            def answer(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
