"""Access to a server: requests for host names that it serves, with its token if it has one.

A foreign web page can point its own name at this machine (DNS rebinding) and so reach a server that
trusts its network; its requests then carry that name.
"""

import hmac
import os
import re
import socket
import time
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import Any

import psutil
from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry, Counter, Histogram

from detalbert.errors import UserError, first_line
from detalbert.inference import web

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
ANYWHERE = ("0.0.0.0", "::")  # hosts to serve on that are all addresses of this machine
OPEN = ("/", "/health")  # asked for without the token: the page holds nothing, and asks for it
PROBES = ("/health", "/metrics")  # for load balancers and monitors, by any name
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_find_token = HTTPBearer(auto_error=False)


def served_names(host: str, names: Iterable[str]) -> frozenset[str]:
    """Return the Host headers of a server on `host`: loopback's names, its own and `names`; of one
    on all addresses also the machine's, and its host name.
    """
    own = [host]
    if host in ANYWHERE:
        addresses = [each for card in psutil.net_if_addrs().values() for each in card]
        families = socket.AF_INET, socket.AF_INET6
        # A link-local IPv6 address has its interface behind a %, which no Host header has.
        own += [each.address.split("%")[0] for each in addresses if each.family in families]
        own += [socket.gethostname(), socket.getfqdn()]
    own = [f"[{name}]" if ":" in name else name for name in own]
    return LOOPBACK | {name.lower() for name in (*own, *names)}


def describe_access(host: str, names: frozenset[str], token: str | None) -> str:
    """Return who may ask a server on `host`, by `served_names`."""
    who = f"whoever reaches it as {', '.join(sorted(names - LOOPBACK - {'0.0.0.0', '[::]'}))}"
    if {host, f"[{host}]"} & LOOPBACK:
        who = "programs on this machine"
    return f"{who} may ask, {'with the token' if token else 'without a token'}"


def read_token(token: str | None, file: Path | None) -> str | None:
    """Return the token in `file`, else `token`, else that of the environment (ALBERT_TOKEN). Raises
    UserError if the file cannot be read, or the token is empty.
    """
    found = os.environ.get("ALBERT_TOKEN") if token is None else token
    if file is not None:
        try:
            found = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"--token-file {file}: cannot read it ({first_line(error)}); give a text file that "
                "this user may read"
            ) from None
    if found == "":
        raise UserError("--token: empty; give a token by --token-file, ALBERT_TOKEN or --token")
    return found


class Guard:
    """Middleware that counts requests, refuses those without access, and bounds bodies.

    Args:
        names: Host headers without ports that are served, in lower case.
        token: bearer token that is required, if any.
        registry: gets the metrics requests and request_seconds.
    """

    def __init__(
        self, app: Any, names: frozenset[str], token: str | None, registry: CollectorRegistry
    ) -> None:
        self.app, self.names, self.token = app, names, token
        kept: dict[str, Any] = {"registry": registry}
        labels = ["path", "status"]
        self.requests = Counter("requests", "Requests by path and status", labels, **kept)
        said = "From a request's headers to its answer's last byte"
        self.seconds = Histogram("request_seconds", said, ["path"], buckets=_SECONDS, **kept)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, size = time.monotonic(), "none", 0

        async def receive_bounded() -> dict[str, Any]:
            """Receive; bytes are counted, as Content-Length may be missing or wrong."""
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size <= web.BODY:
                return message
            # Most clients read a response only after sending, so some of the rest is dropped first.
            while message.get("more_body") and size <= 32 * web.BODY:
                message = await receive()
                size += len(message.get("body", b""))
            raise HTTPException(413, f"at most {web.BODY:,} bytes are read; cut the text")

        async def send_counted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        known = {route.path for route in scope["app"].routes}
        path = scope["path"] if scope["path"] in known else "other"
        try:
            refusal = await self._refuse(Request(scope))
            await (refusal or self.app)(scope, receive_bounded, send_counted)
        finally:
            self.requests.labels(path, status).inc()
            self.seconds.labels(path).observe(time.monotonic() - began)

    async def _refuse(self, request: Request) -> JSONResponse | None:
        """Return 421 for another Host, 401 without the token, else None."""
        hosts = request.headers.getlist("host")
        name = re.sub(r":\d+$", "", hosts[0].strip().lower()) if len(hosts) == 1 else ""
        if name not in self.names and request.url.path not in PROBES:
            return web.problem(421, f"not served under {name[:80]!r}; see --host-name")
        if self.token is None or request.url.path in OPEN:
            return None
        given = await _find_token(request)
        if given and hmac.compare_digest(self.token.encode(), given.credentials.encode("latin-1")):
            return None
        said = "the token is missing or wrong: Authorization: Bearer TOKEN"
        return web.problem(401, said, {"WWW-Authenticate": "Bearer"})
