"""A Determined master on loopback that recorded experiments: what `reports` asks of it.

It answers with what Determined's client must find, and as a real 0.38.1 does: a task's
allocations have neither slots nor exit reason nor a time zone, raw entries do not name the trial,
agents and instances stand among them as "username", and one CSV has every task's allocations.
The row of an instance that EC2 takes stays open (ScaleDecider drops it), its agent's row ends.
Agents log in no allocation's name, 30 ms before the master records its start; a container reports
its machine once it runs.
"""

from typing import Any

from tests.fakes.http import FakeServer, Request
from tests.fakes.recorded import (
    DEFAULT,
    FAILED,
    KILLED,
    LEFT,
    LOST,
    ON_DEMAND,
    PAUSE,
    SCHEDULER,
    SPOT,
    Cluster,
    Held,
    Kept,
    Ran,
    at,
)
from tests.fakes.records_json import (
    accelerators,
    allocation_json,
    allocations_csv,
    experiment_json,
    list_checkpoints,
    list_experiments,
    list_projects,
    list_trials,
    list_workspaces,
    logs,
    pool_json,
    raw_entries,
    task_json,
    tasks_by_id,
    training_metrics,
    trials_by_id,
)

# Callers have all of it from here.
__all__ = [
    "Cluster",
    "DEFAULT",
    "FAILED",
    "FakeRecords",
    "Held",
    "KILLED",
    "Kept",
    "LEFT",
    "LOST",
    "ON_DEMAND",
    "PAUSE",
    "Ran",
    "SCHEDULER",
    "SPOT",
    "TOKEN",
    "answer",
    "at",
]
TOKEN = "user-token"


def answer(cluster: Cluster, path: str, query: dict[str, str]) -> Any:
    """Return the master's answer at `path`; None where it has nothing."""
    if path == "/resources/allocation/allocations-csv":
        return allocations_csv(cluster, query["timestamp_after"]).encode()
    trials = trials_by_id(cluster)
    tasks = tasks_by_id(cluster)
    match path.removeprefix("/api/v1/").split("/"):
        case ["me"]:
            return {"user": {"id": 1, "username": "ada", "admin": False, "active": True}}
        case ["workspaces"]:
            return list_workspaces(cluster)
        case ["workspaces", number, "projects"]:
            return list_projects(cluster, int(number))
        case ["experiments"]:
            return list_experiments(cluster, query)
        case ["experiments", name] if _is_experiment(cluster, name):
            return experiment_json(int(name), cluster.ran[int(name)])
        case ["experiments", name, *_] if _is_experiment(cluster, name):
            return list_trials(cluster, int(name))
        case ["tasks", name, "logs"]:
            return b"".join(logs(held, query) for held in tasks[name])
        case ["allocations", name]:
            (held,) = (held for held in tasks[name[:-2]] if held.id == name)
            return allocation_json(held)
        case ["tasks", name] if name in tasks:
            return task_json(name, tasks[name])
        case ["tasks", name, *_] if name in tasks:
            return accelerators([] if name in _other_tasks(cluster) else tasks[name])
        case ["trials", "metrics", "training_metrics"]:
            number = int(query["trialIds"])
            return training_metrics(number, trials[number].kept)
        case ["trials", name, "checkpoints"]:
            return list_checkpoints(trials[int(name)].kept)
        case ["resource-pools"]:
            names = dict.fromkeys((SPOT, ON_DEMAND, *cluster.aws))
            pools = [pool_json(cluster, name) for name in names]
            return {"resourcePools": pools, "pagination": {}}
        case ["resources", "allocation", "raw"]:
            return raw_entries(cluster)
    return None


def _is_experiment(cluster: Cluster, name: str) -> bool:
    """Return whether an id is an experiment's, and not another task's or a deleted one's."""
    return int(name) in cluster.ran and cluster.ran[int(name)].kind == "TRIAL"


def _other_tasks(cluster: Cluster) -> set[str]:
    """Return tasks of another kind than trials, which have no accelerators on record."""
    tasks = set()
    for ran in cluster.ran.values():
        if ran.kind not in ("TRIAL", "DELETED"):
            tasks |= {held.task for held in ran.held}
    return tasks


class FakeRecords(FakeServer):
    """Serves the records. `hide`: refuse paths that end so, as strict permissions do."""

    def __init__(self, cluster: Cluster = DEFAULT, hide: tuple[str, ...] = ()) -> None:
        self.cluster = cluster
        self.hide = hide
        super().__init__()

    def respond(self, request: Request) -> Any:
        path = request.path
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"error": {"code": 16, "error": "no valid token"}}
        secret = any(f"/tasks/{task}/" in path for task in self.cluster.hidden)
        if secret or path.endswith(self.hide):
            return 403, {"error": {"code": 7, "error": "access denied"}}
        return answer(self.cluster, path, request.query)
