"""What a master keeps of a run beside its metrics, and what it tells of them at the end."""

import logging
from typing import Any

from detalbert import hub
from detalbert.errors import first_line
from detalbert.settings.experiment import masked
from detalbert.training import master

log = logging.getLogger(__name__)


def keep_resolved(resolved: dict[str, Any]) -> None:
    """Make every value that the run uses readable in the WebUI, as the run's metadata, and keep the
    commits of its hub names there for a restart.

    Written once; again where a continued experiment has other values. A master that does not take
    it is told of in the log: training goes on.
    """
    number, path = _metadata()
    resolved = masked({**resolved, "commits": hub.commits} if hub.commits else resolved)
    try:
        kept = master.call("get", path).get("metadata") or {}
        if any(kept.get(name) != values for name, values in resolved.items()):
            merged = {**kept, **resolved}  # a call replaces all, what others wrote included
            master.call("post", path, json={"runId": number, "metadata": merged})
    except Exception as error:  # no common base, see `master.call`
        said = "the master does not keep the resolved config (%s); it is in this log only"
        log.warning(said, first_line(error))


def kept_commits() -> dict[str, str]:
    """Return the commits that this trial's first start read from the hub, for `hub.commits`."""
    try:
        return (master.call("get", _metadata()[1]).get("metadata") or {}).get("commits") or {}
    except Exception as error:
        said = "could not read from the master which commits of the hub the run began with (%s)"
        log.warning(said, first_line(error))
        return {}


def _metadata() -> tuple[int, str]:
    """Return the trial's number, which is its run's, too, and the path of the run's metadata."""
    number = master.task().trial.trial_id
    return number, f"/api/v1/runs/{number}/metadata"


def best_validation() -> dict[str, float] | None:
    """The trial's best by the searcher's metric over all its starts, with its `steps`; None where
    the master names none."""
    number = master.task().trial.trial_id
    try:
        best = master.call("get", f"/api/v1/trials/{number}")["trial"]["bestValidation"]
    except Exception as error:
        log.warning("the master does not say the best validation (%s)", first_line(error))
        return None
    return best and {**best["metrics"]["avgMetrics"], "steps": best["totalBatches"]}
