"""Calls to the Determined master from inside a task, beside those that the harness makes."""

from typing import Any, cast

import determined
from determined.common.api import authentication, certs

TIMEOUT = 10  # seconds to connect, and again to answer


def task() -> determined.ClusterInfo:
    """What Determined tells this task about itself; for code that runs in one only."""
    return cast(determined.ClusterInfo, determined.get_cluster_info())


def call(method: str, path: str, **arguments: Any) -> Any:
    """The answer's JSON. Asks once.

    Not by Determined's `bindings`: their calls have no timeout, so a dead connection would hold
    them for ever.

    Raises:
        Exception: the master gave no good answer; no common base (`determined.common.api.errors`).
    """
    address = task().master_url
    session = authentication.login_from_task(address, certs.default_load(address)).with_retry(0)
    return getattr(session, method)(path, timeout=TIMEOUT, **arguments).json()
