"""Access to a server: requests for host names that it serves, with its token if it has one.

A foreign web page can point its own name at this machine (DNS rebinding) and so reach a server that
trusts its network; its requests then carry that name.
"""

import hmac
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detalbert.errors import UserError, first_line
from detalbert.inference.web import problem

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
OPEN = ("/", "/health")  # asked for without the token: the page holds nothing, and asks for it


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


LOCAL = Access()


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
    """Middleware that rejects requests unread: 421 for another Host, 401 without the token."""

    def __init__(self, app: Any, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        refused = self._refuse(scope) if scope["type"] == "http" else None
        await (refused or self.app)(scope, receive, send)

    def _refuse(self, scope: dict[str, Any]) -> Any:
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value.decode("latin-1"))
        hosts = headers.get(b"host", [])
        name = host_name(hosts[0]) if len(hosts) == 1 else ""
        if name not in self.access.names:
            return problem(421, f"not served under {name[:80]!r}; see --host-name")
        if self.access.token is None or scope["path"] in OPEN:
            return None
        scheme, _, given = headers.get(b"authorization", [""])[0].partition(" ")
        right = hmac.compare_digest(self.access.token.encode(), given.encode("latin-1"))
        if right and scheme.lower() == "bearer":  # RFC 9110: in any case
            return None
        challenge = {"WWW-Authenticate": "Bearer"}
        return problem(
            401, "the token is missing or wrong: Authorization: Bearer TOKEN", **challenge
        )


def host_name(host: str) -> str:
    """Return a Host header without its port, in lower case: "[::1]:8000" gives "[::1]"."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdecimal() else host.strip().lower()
