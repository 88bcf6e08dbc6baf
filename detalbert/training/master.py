"""Calls to the Determined master from inside a task, besides those by Determined itself.

A request that fails never ends training: most are a warning then, and are not repeated. What was
traded: a name or a status in the WebUI may be an old one.
"""

import contextlib
import json
import logging
from typing import Any, Literal, cast

import determined
from determined.common.api import authentication, certs

from detalbert import hub
from detalbert.errors import first_line
from detalbert.redact import hide_secrets, masked
from detalbert.sums import Json

TIMEOUT = 10  # seconds to connect, and again to answer
log = logging.getLogger(__name__)


def task() -> determined.ClusterInfo:
    """Return Determined's facts on this task; for code that runs in a task only."""
    return cast(determined.ClusterInfo, determined.get_cluster_info())


def call(method: Literal["get", "post", "patch"], path: str, json: Json | None = None) -> Any:
    """Return the response's JSON, without retries.

    Calls of Determined's `bindings` have no timeout: a dead connection would block indefinitely.

    Args:
        path: of the master's REST API.
        json: body of the request.

    Raises:
        Exception: of any class; Determined's have no common base.
    """
    address = task().master_url
    certificate = certs.default_load(address)
    session = authentication.login_from_task(address, certificate).with_retry(0)
    send = getattr(session, method)
    arguments = {} if json is None else {"json": json}
    return send(path, timeout=TIMEOUT, **arguments).json()


def trial() -> Json:
    """Return the master's record of this task's trial. Raises an Exception as `call`."""
    return call("get", f"/api/v1/trials/{task().trial.trial_id}")["trial"]


def set_status(state: str) -> None:
    """Show `state` as the trial's runner state; it stays the last one if the request fails."""
    with contextlib.suppress(Exception):  # no common base, see `call`
        path = f"/api/v1/trials/{task().trial.trial_id}/runner/metadata"
        call("post", path, json={"state": state})


def keep_resolved(resolved: Json) -> None:
    """Store all values that the run uses as the run's metadata, for the WebUI, with the commits of
    its hub names, for a restart. If the master does not accept them, a warning lists them.
    """
    if hub.commits:
        resolved = {**resolved, "commits": hub.commits}
    resolved = masked(resolved)
    run_id = task().trial.trial_id
    try:
        metadata = _run_metadata()
        is_new = any(metadata.get(name) != values for name, values in resolved.items())
        if is_new:
            # A call replaces all, what others wrote included.
            merged = {**metadata, **resolved}
            call("post", _metadata_path(), json={"runId": run_id, "metadata": merged})
    except Exception as error:  # no common base, see `call`
        log.warning(
            "the master does not keep the resolved config (%s): %s",
            first_line(error),
            json.dumps(resolved),
        )


def extend_name(text: str) -> None:
    """Add `text` to the experiment's name, by which lists show it, unless it is there already."""
    experiment_id = task().trial.experiment_id
    path = f"/api/v1/experiments/{experiment_id}"
    text = hide_secrets(text)
    try:
        name = call("get", path)["experiment"]["name"]
        if text not in name:
            call("patch", path, json={"id": experiment_id, "name": f"{name}: {text}"})
    except Exception as error:  # no common base, see `call`
        log.warning("could not name the experiment after %s (%s)", text, first_line(error))


def kept_commits() -> dict[str, str]:
    """Return the commits that this trial's first start read from the hub, for `hub.commits`."""
    try:
        return _run_metadata().get("commits") or {}
    except Exception as error:
        log.warning(
            "could not read from the master which commits of the hub the run began with (%s)",
            first_line(error),
        )
        return {}


def _run_metadata() -> Json:
    """Return the metadata of the trial's run. Raises an Exception as `call`."""
    return call("get", _metadata_path()).get("metadata") or {}


def _metadata_path() -> str:
    run_id = task().trial.trial_id  # a trial's number is its run's
    return f"/api/v1/runs/{run_id}/metadata"
