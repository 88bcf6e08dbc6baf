"""What a master keeps of a run beside its metrics, and what it tells of them at the end."""

import logging
from typing import Any

from detalbert.errors import first_line
from detalbert.training import master

log = logging.getLogger(__name__)


def keep_resolved(resolved: dict[str, Any]) -> None:
    """Make every value that the run uses readable in the WebUI, as the run's metadata.

    Written once; again where a continued experiment has other values. A master that does not take
    it is told of in the log: training goes on.
    """
    number = master.task().trial.trial_id  # of its run, too
    path = f"/api/v1/runs/{number}/metadata"
    try:
        kept = master.call("get", path).get("metadata") or {}
        if any(kept.get(name) != values for name, values in resolved.items()):
            merged = {**kept, **resolved}  # a call replaces all, what others wrote included
            master.call("post", path, json={"runId": number, "metadata": merged})
    except Exception as error:  # no common base, see `master.call`
        said = "the master does not keep the resolved config (%s); it is in this log only"
        log.warning(said, first_line(error))


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
