"""Calls to the Determined master from inside a task, besides those by Determined itself."""

from typing import Any, cast

import determined
from determined.common.api import authentication, certs

TIMEOUT = 10  # seconds to connect, and again to answer


def task() -> determined.ClusterInfo:
    """Return Determined's facts on this task; for code that runs in a task only."""
    return cast(determined.ClusterInfo, determined.get_cluster_info())


def call(method: str, path: str, **arguments: Any) -> Any:
    """Return the response's JSON, without retries. Raises an Exception if the call fails.

    Exceptions have no common base (`determined.common.api.errors`). Determined's `bindings` are not
    used: their calls have no timeout, so a dead connection would block indefinitely.
    """
    address = task().master_url
    session = authentication.login_from_task(address, certs.default_load(address)).with_retry(0)
    return getattr(session, method)(path, timeout=TIMEOUT, **arguments).json()
