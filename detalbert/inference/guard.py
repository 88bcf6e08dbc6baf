"""Access to a server: requests for host names that it serves, with its token if it has one.

A foreign web page can point its own name at this machine (DNS rebinding) and so reach a server that
trusts its network; its requests then carry that name.
"""

import hmac
import os
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer

from detalbert.errors import UserError, first_line
from detalbert.inference.meters import Meters
from detalbert.inference.web import problem

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
OPEN = ("/", "/health")  # asked for without the token: the page holds nothing, and asks for it
_find_token = HTTPBearer(auto_error=False)


@dataclass(frozen=True)
class Access:
    """Host header names that are served, and the bearer token that is required, if any."""

    names: tuple[str, ...] = LOOPBACK
    token: str | None = None

    @classmethod
    def of(cls, host: str, names: list[str], token: str | None) -> "Access":
        """Return the access for a server on `host`: loopback's names, its own and `names`."""
        own = f"[{host}]" if ":" in host else host
        return cls((*LOOPBACK, own.lower(), *(name.lower() for name in names)), token)

    async def refuse(self, request: Request) -> JSONResponse | None:
        """Return 421 for another Host, 401 without the token, else None."""
        hosts = request.headers.getlist("host")
        name = host_name(hosts[0]) if len(hosts) == 1 else ""
        if name not in self.names:
            return problem(421, f"not served under {name[:80]!r}; see --host-name")
        if self.token is None or request.url.path in OPEN:
            return None
        given = await _find_token(request)
        if given and hmac.compare_digest(self.token.encode(), given.credentials.encode("latin-1")):
            return None
        challenge = {"WWW-Authenticate": "Bearer"}
        return problem(
            401, "the token is missing or wrong: Authorization: Bearer TOKEN", **challenge
        )


LOCAL = Access()


def host_name(host: str) -> str:
    """Return a Host header without its port, in lower case: "[::1]:8000" gives "[::1]"."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdecimal() else host.strip().lower()


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
    """Middleware that counts requests, rejects those that `access` refuses, and bounds bodies.

    Args:
        body: most bytes of a body. Content-Length may be missing or wrong, so bytes are counted.
        paths: the paths that are counted separately.
    """

    def __init__(
        self, app: Any, access: Access, meters: Meters, body: int, paths: frozenset[str]
    ) -> None:
        self.app, self.access, self.meters, self.body, self.paths = app, access, meters, body, paths

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, size = time.monotonic(), "none", 0

        async def receive_bounded() -> dict[str, Any]:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size <= self.body:
                return message
            # Most clients read a response only after sending, so some of the rest is dropped first.
            while message.get("more_body") and size <= 32 * self.body:
                message = await receive()
                size += len(message.get("body", b""))
            raise HTTPException(413, f"at most {self.body:,} bytes are read; cut the text")

        async def send_counted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        path = scope["path"] if scope["path"] in self.paths else "other"
        try:
            refusal = await self.access.refuse(Request(scope))
            await (refusal or self.app)(scope, receive_bounded, send_counted)
        finally:
            self.meters.requests.labels(path, status).inc()
            self.meters.seconds.labels(path).observe(time.monotonic() - began)
