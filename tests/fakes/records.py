"""A Determined master on loopback that recorded what ran: what `reports` asks of it.

It answers as a real 0.38.1 does (`assert_recorded` compares the shapes): a task's allocations have
neither exit reason nor time zone; agents and instances stand among the raw entries as "username";
one CSV has every task's allocations. The record of an instance that EC2 takes stays open, that of
its agent ends. An agent logs 30 ms before the master records a start.
"""

import json
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from determined.common.api import bindings

from tests.fakes.http import FakeServer, blank, trial_json, validation_json

TOKEN = "user-token"
DAY = "2026-11-20"
SPOT, ON_DEMAND = "aws-spot-p3-16xlarge", "aws-p3-16xlarge"
# Exit reasons of a real 0.38.1.
FAILED = (
    "allocation failed: resources failed with non-zero exit code: container failed with ... 137"
)
LEFT = "allocation preempted after all resources exited: resources exited successfully with a ..."
LOST = "allocation failed due to agent failure: agent failed while the container was running: ..."
GONE = (
    "allocation failed due to restore error: RM failed to restore the allocation: container is "
    "gone on reattachment"
)
KILLED = "allocation killed after all resources exited: resources were killed"
# Recorded of a real 0.38.1.
CSV = (
    "allocation_id,task_type,username,workspace_name,experiment_id,slots,start_time,end_time,"
    "imagepulling_time,slot_hours,resource_pool"
)


class Held(NamedTuple):
    """One allocation; `end` is empty while it runs."""

    id: str
    start: str
    end: str
    machines: list[str]
    pool: str = SPOT
    exit: str = ""
    silent: bool = False  # its containers did not start, so they named no machine

    @property
    def task(self):
        return self.id.rpartition(".")[0]


class Tried(NamedTuple):
    """One trial. Reports: time, steps done, windows per second."""

    held: list[Held]
    checkpoints: list[str] = []
    reports: list[tuple[str, int, float]] = []
    state: str = "COMPLETED"
    scores: dict[str, float] | None = None
    hparams: dict[str, Any] = {}  # of its own


class Ran(NamedTuple):
    """One experiment, or (`kind` given) another task or one that was deleted, by its trials."""

    trials: list[Tried]
    slots: int = 8
    user: str = "ada"
    labels: list[str] = []
    kind: str = "TRIAL"
    name: str = "albert-squad"
    place: tuple[str, str] = ("Uncategorized", "Uncategorized")  # workspace and project
    searcher: dict[str, Any] = {}

    @property
    def held(self):
        return [held for trial in self.trials for held in trial.held]


class Cluster(NamedTuple):
    ran: dict[int, Ran]
    instances: list[tuple[str, str, str]] = []  # machine, launch, end
    agents: list[tuple[str, str, str]] = []  # machine, first and last contact
    slots: dict[str, int] = {}  # of machines that have not 8
    own: bool = False  # whether its pools are of one's own machines


SEVEN = Tried(
    held=[
        Held("7.task.0", "10:10", "11:10", ["i-a", "i-b"], exit=FAILED),
        Held("7.task.1", "11:20", "11:50", ["i-a", "i-b"], exit=LOST),
        Held("7.task.2", "12:00", "12:31", ["i-a", "i-c"]),
    ],
    checkpoints=["10:40", "11:50", "12:30"],
    reports=[
        ("10:35", 200, 200 * 256 / 1200),
        ("11:45", 300, 100 * 256 / 1200),
        ("12:20", 400, 100 * 256 / 900),
    ],
    scores={"exact": 86.0, "f1": 89.0, "loss": 0.5},
)
EIGHT = Tried([Held("8.task.0", "12:00", "", ["i-d"], ON_DEMAND)], state="RUNNING")
# Experiment 7 had two spot machines. Its first allocation failed 30 min after a checkpoint; then
# i-b was taken, and i-c came. Experiment 8 has i-d, on demand, since 12:00.
DEFAULT = Cluster(
    ran={7: Ran([SEVEN], 16, labels=["squad"]), 8: Ran([EIGHT], user="bob")},
    instances=[
        ("i-a", "10:00", "12:40"),
        ("i-b", "10:00", ""),
        ("i-c", "11:55", "12:40"),
        ("i-d", "11:50", ""),
    ],
    agents=[
        ("i-a", "10:09", "12:41"),
        ("i-b", "10:09", "11:51"),
        ("i-c", "11:59", "12:41"),
        ("i-d", "11:59", ""),
    ],
)


def at(clock, zone="Z"):
    """Return 12:30 of the day, or a whole time, as the master writes it; None if it is empty."""
    text = clock if "T" in clock else f"{DAY}T{clock}:00"
    return f"{text}.000000{zone}" if clock else None


def answer(cluster, path, query):
    """Return the master's answer at `path`; None where it has nothing."""
    experiments = {number: ran for number, ran in cluster.ran.items() if ran.kind == "TRIAL"}
    # A trial's id is ten times its experiment's, and on.
    trials = {}
    for number, ran in experiments.items():
        for index, trial in enumerate(ran.trials):
            trials[10 * number + index] = trial
    held = [item for ran in cluster.ran.values() for item in ran.held]
    match path.removeprefix("/api/v1/").split("/"):
        case ["me"]:
            return {"user": {"id": 1, "username": "ada", "admin": False, "active": True}}
        case ["experiments"]:
            listed = [_experiment(*item) for item in experiments.items()]
            return {"experiments": listed, "pagination": {}}
        case ["experiments", number] if int(number) in experiments:
            return {"experiment": _experiment(int(number), experiments[int(number)])}
        case ["experiments", number, "trials"]:
            listed = list(_trials(int(number), experiments[int(number)]))
            return {"trials": listed, "pagination": {}}
        case ["tasks", task]:
            return {"task": _task(task, [item for item in held if item.task == task])}
        case ["tasks", task, "acceleratorData"]:
            return {"acceleratorData": [e for h in held if h.task == task for e in _machines(h)]}
        case ["tasks", task, "logs"]:
            return b"".join(_log_line(item) for item in held if item.task == task)
        case ["allocations", name]:
            (reason,) = (item.exit or None for item in held if item.id == name)
            state = "STATE_TERMINATED"
            return {"allocation": blank(bindings.v1Allocation, state=state, exitReason=reason)}
        case ["trials", "metrics", "training_metrics"]:
            number = int(query["trialIds"])
            return {"result": {"metrics": list(_reports(number, trials[number]))}}
        case ["trials", number, "checkpoints"]:
            return {"checkpoints": list(_checkpoints(trials[int(number)])), "pagination": {}}
        case ["resource-pools"]:
            pools = dict.fromkeys([SPOT, ON_DEMAND, *(item.pool for item in held)])
            return {"resourcePools": [_pool(name, cluster.own) for name in pools], "pagination": {}}
        case ["resources", "allocation", "raw"]:
            return {"resourceEntries": list(_entries(cluster))}
        case [*_, "allocations-csv"]:
            return _csv(cluster).encode()
    return None


def _experiment(number, ran):
    workspace, project = ran.place
    return blank(
        bindings.v1Experiment,
        id=number,
        name=ran.name,
        labels=ran.labels,
        username=ran.user,
        state="STATE_COMPLETED",
        startTime=at("10:00"),
        resourcePool=ran.held[0].pool if ran.held else SPOT,
        workspaceName=workspace,
        projectName=project,
        config={"resources": {"slots_per_trial": ran.slots}, "searcher": ran.searcher},
    )


def _trials(number, ran):
    for index, trial in enumerate(ran.trials):
        steps = max((done for _, done, _ in trial.reports), default=0)
        best = None
        if trial.scores:
            best = validation_json(trial.scores, steps, at("12:25"))
        yield trial_json(
            10 * number + index,
            number,
            state=f"STATE_{trial.state}",
            taskIds=list(dict.fromkeys(held.task for held in trial.held)),
            totalBatchesProcessed=steps,
            bestValidation=best,
            hparams={"global_batch_size": 256, **trial.hparams},
        )


def _task(task, held):
    allocations = []
    for item in reversed(held):
        allocations.append(
            blank(
                bindings.v1Allocation,
                taskId=task,
                state="STATE_TERMINATED" if item.end else "STATE_RUNNING",
                startTime=at(item.start, zone=""),
                endTime=at(item.end, zone=""),
                allocationId=item.id,
            )
        )
    kind = "TASK_TYPE_TRIAL"
    start = at("10:10")
    return blank(
        bindings.v1Task, taskId=task, taskType=kind, allocations=allocations, startTime=start
    )


def _machines(held):
    for machine in held.machines if held.start and not held.silent else []:
        yield {
            "containerId": "c",
            "taskId": "",
            "allocationId": held.id,
            "resourcePool": held.pool,
            "nodeName": machine,
            "acceleratorUuids": [],
            "acceleratorType": "cuda",
        }


def _log_line(held):
    """Return the line of an allocation's agent, of which only the time says whose it is."""
    if not held.start:
        return b""
    begin = datetime.fromisoformat(str(at(held.start)))
    line = {
        "id": "1",
        "timestamp": (begin - timedelta(milliseconds=30)).isoformat(),
        "level": "LOG_LEVEL_INFO",
        "taskId": held.task,
        "message": "",
        "log": "image already found",
        "agentId": held.machines[0],
    }
    return json.dumps({"result": line}).encode() + b"\n"


def _reports(number, trial):
    for clock, steps, speed in trial.reports:
        # A report of these steps or fewer, by a later start, hides it.
        if any(at(later) > at(clock) and done <= steps for later, done, _ in trial.reports):
            continue
        yield {
            "trialId": number,
            "archived": False,
            "id": 1,
            "trialRunId": 1,
            "group": "training",
            "endTime": at(clock),
            "totalBatches": steps,
            "metrics": {"avg_metrics": {"examples_per_second": speed, "loss": 1.0}},
        }


def _checkpoints(trial):
    for clock in trial.checkpoints:
        yield blank(
            bindings.v1Checkpoint,
            uuid="u",
            state="STATE_COMPLETED",
            training={},
            reportTime=at(clock),
        )


def _pool(name, own):
    aws = {"spotEnabled": name == SPOT, "instanceType": "p3.16xlarge"}
    return blank(
        bindings.v1ResourcePool,
        name=name,
        type="RESOURCE_POOL_TYPE_AWS",
        details={"aws": None if own else blank(bindings.v1ResourcePoolAwsDetail, **aws)},
        schedulerType="SCHEDULER_TYPE_PRIORITY",
        schedulerFittingPolicy="FITTING_POLICY_BEST",
        slotType="TYPE_CUDA",
        maxAgentStartingPeriod=1200,
        maxIdleAgentPeriod=600,
    )


def _entries(cluster):
    for number, ran in cluster.ran.items():
        for trial in ran.trials if ran.kind == "TRIAL" else ():
            yield from _stretches(number, ran, trial)
    rows = [("instance", *row) for row in cluster.instances]
    rows += [("agent", *row) for row in cluster.agents]
    for kind, name, start, end in rows:
        yield {
            "kind": kind,
            "experimentId": 0,
            "username": name,
            "startTime": at(start),
            "endTime": at(end),
            "slots": cluster.slots.get(name, 8),
        }


def _stretches(number, ran, trial):
    """Yield what a trial did: each begins where what was before ends. Hidden reports are here."""
    ends = [(at(held.start), "") for held in trial.held if held.start]
    ends += [(at(clock), "training") for clock, _, _ in trial.reports]
    ends += [(at(clock), "checkpointing") for clock in trial.checkpoints]
    for (start, _), (end, kind) in pairwise(sorted(ends)):
        if kind:
            yield {
                "kind": kind,
                "experimentId": number,
                "username": ran.user,
                "startTime": start,
                "endTime": end,
                "slots": ran.slots,
            }


def _csv(cluster):
    lines = [CSV]
    for number, ran in cluster.ran.items():
        for held in ran.held:
            experiment = number if ran.kind in ("TRIAL", "DELETED") else ""
            cells = [held.id, ran.kind, ran.user, ran.place[0] * bool(experiment), experiment]
            cells += [ran.slots, at(held.start) or "", at(held.end) or "", 0.0, "", held.pool]
            lines.append(",".join(map(str, cells)))
    return "\n".join(lines) + "\n"


class FakeRecords(FakeServer):
    """Serves the records of a cluster."""

    def __init__(self, cluster=DEFAULT):
        self.cluster = cluster
        super().__init__()

    def respond(self, request):
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"error": {"code": 16, "error": "no valid token"}}
        return answer(self.cluster, request.path, request.query)
