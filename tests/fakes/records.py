"""A Determined master on loopback that recorded experiments: what `reports` asks of it.

It answers with what Determined's client must find, and as a real 0.38.1 does: a task's
allocations have neither slots nor exit reason nor a time zone, raw entries do not name the trial,
agents and instances stand among them as "username", and one CSV has every task's allocations.
The row of an instance that EC2 takes stays open (ScaleDecider drops it), its agent's row ends.
Agents log in no allocation's name, 30 ms before the master records its start; a container reports
its machine once it runs.

Of the two experiments that are there by default, 7 had 16 slots on two spot machines, i-a and i-b,
and ended well. Its first allocation failed 30 min after a checkpoint; of the second nothing was
lost, but i-b was taken and i-c came. Experiment 8 has 8 slots on demand on i-d, since 12:00.
"""

import json
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from determined.common.api import bindings

from tests.fakes.http import FakeServer, Request, blank, trial_json, validation_json

TOKEN = "user-token"
DAY = "2026-11-20"
SPOT, ON_DEMAND = "aws-spot-p3-16xlarge", "aws-p3-16xlarge"


def at(clock: str, zone: str = "Z") -> str | None:
    """12:30 of the day, or a whole time; None where it is empty."""
    text = clock if "T" in clock else f"{DAY}T{clock}:00"
    return f"{text}.000000{zone}" if clock else None


class Held(NamedTuple):
    """One allocation; `end` is empty while it runs."""

    id: str
    start: str
    end: str
    machines: list[str]
    pool: str = SPOT
    exit: str = ""  # its exit reason; empty where the master recorded none
    log: str = ""  # who requested its end
    launched: str = ""  # when its script was started
    silent: bool = False  # its containers did not come up, so they reported no machine

    @property
    def task(self) -> str:
        return self.id.rpartition(".")[0]


class Kept(NamedTuple):
    """One trial. Reports: time, steps done, windows a second."""

    held: list[Held]
    checkpoints: list[str] = []
    reports: list[tuple[str, int, float]] = []
    state: str = "COMPLETED"
    scores: dict[str, float] | None = None
    steps: int | None = None
    restarts: int = 0
    hparams: dict[str, Any] = {}  # of its own


class Ran(NamedTuple):
    """One experiment, or (`kind` given) another task or one that was deleted, by its trials."""

    trials: list[Kept]
    slots: int = 8
    user: str = "ada"
    labels: list[str] = []
    hyperparameters: dict[str, Any] = {"global_batch_size": 256, "model": "albert-xxlarge-v2"}
    data: dict[str, Any] = {"train": "rajpurkar/squad_v2"}
    kind: str = "TRIAL"
    name: str = "albert-squad"
    config: dict[str, Any] = {"entrypoint": "python3 train.py"}

    @property
    def held(self) -> list[Held]:
        return [held for trial in self.trials for held in trial.held]


class Cluster(NamedTuple):
    ran: dict[int, Ran]
    instances: list[tuple[str, str, str]] = []  # machine, launch, end; ends as the master sees them
    agents: list[tuple[str, str, str]] = []  # machine, first and last contact
    work: list[tuple[int, str, str, str]] = []  # experiment, kind, from, to
    hidden: tuple[str, ...] = ()  # tasks that the user may not see
    pool: dict[str, Any] = {}  # of all pools, in place of the usual
    slots: dict[str, int] = {}  # of machines that have not 8
    aws: dict[str, dict[str, Any]] = {}  # of pools on EC2, by name; more than the usual two, too
    projects: dict[tuple[str, str], list[int]] = {}  # (workspace, project) -> its experiments


# Exit reasons and log lines of a real 0.38.1; LOST and KILLED as its source has them.
FAILED = (
    "allocation failed: resources failed with non-zero exit code: container failed with non-zero "
    "exit code: 137 (exit code 137)"
)
LEFT = "allocation preempted after all resources exited: resources exited successfully with a "
LEFT += "zero exit code"
LOST = "allocation failed due to agent failure: agent failed while the container was running"
KILLED = "allocation killed after resources were killed"
STOPPING = "gracefully terminating allocation's remaining resources (reason: {})"
PAUSE, SCHEDULER = map(STOPPING.format, ("user requested pause", "preempted by the scheduler"))
SEVEN = Kept(
    [
        Held("7.task.0", "10:10", "11:10", ["i-a", "i-b"], exit=FAILED),
        Held("7.task.1", "11:20", "11:50", ["i-a", "i-b"], exit=LOST),
        Held("7.task.2", "12:00", "12:31", ["i-a", "i-c"]),
    ],
    ["10:40", "11:50", "12:30"],
    [("10:35", 200, 200 * 256 / 1200), ("11:45", 300, 100 * 256 / 1200),
     ("12:20", 400, 100 * 256 / 900)],
    scores={"exact": 86.0, "f1": 89.0, "loss": 0.5},
    restarts=1,
)  # fmt: skip
EIGHT = Kept([Held("8.task.0", "12:00", "", ["i-d"], ON_DEMAND)], state="RUNNING", steps=100)
DEFAULT = Cluster(
    {7: Ran([SEVEN], 16, labels=["squad"]), 8: Ran([EIGHT], user="bob")},
    [("i-a", "10:00", "12:40"), ("i-b", "10:00", ""), ("i-c", "11:55", "12:40"),
     ("i-d", "11:50", "")],
    [("i-a", "10:09", "12:41"), ("i-b", "10:09", "11:51"), ("i-c", "11:59", "12:41"),
     ("i-d", "11:59", "")],
    [
        (7, "imagepulling", "10:10", "10:15"),
        (7, "training", "10:15", "10:35"),
        (7, "checkpointing", "10:35", "10:40"),
        (7, "training", "10:40", "11:00"),  # rolled back
        (7, "training", "11:20", "11:45"),
        (7, "checkpointing", "11:45", "11:50"),
        (7, "training", "12:00", "12:20"),
        (7, "validation", "12:20", "12:25"),
        (7, "checkpointing", "12:25", "12:30"),
        (8, "training", "12:05", "12:50"),
    ],
)  # fmt: skip


def _experiment(number: int, ran: Ran) -> dict[str, Any]:
    config: dict[str, Any] = {"data": ran.data, "resources": {"slots_per_trial": ran.slots}}
    config |= ran.config
    running = any(trial.state == "RUNNING" for trial in ran.trials)
    facts = {"id": number, "name": ran.name, "labels": ran.labels, "username": ran.user}
    facts |= {"state": "STATE_ACTIVE" if running else "STATE_COMPLETED", "startTime": at("10:00")}
    facts |= {"resourcePool": ran.held[0].pool if ran.held else SPOT, "config": config}
    return {"experiment": blank(bindings.v1Experiment, **facts)}


def _trial(number: int, experiment: int, ran: Ran, trial: Kept) -> dict[str, Any]:
    tasks = list(dict.fromkeys(held.task for held in trial.held)) or [f"{experiment}.task"]
    steps = max((n for _, n, _ in trial.reports), default=0) if trial.steps is None else trial.steps
    best = validation_json(trial.scores, steps, at("12:25")) if trial.scores else None
    more = {"startTime": at("10:10"), "state": f"STATE_{trial.state}", "taskIds": tasks}
    more |= {"totalBatchesProcessed": steps, "bestValidation": best, "taskId": tasks[0]}
    more |= {"restarts": trial.restarts, "hparams": {**ran.hyperparameters, **trial.hparams}}
    return trial_json(number, experiment, **more)


def _task(task: str, held: list[Held]) -> dict[str, Any]:
    allocations = []
    for a in reversed(held):
        facts = {"taskId": task, "state": "STATE_TERMINATED" if a.end else "STATE_RUNNING"}
        facts |= {"startTime": at(a.start, ""), "endTime": at(a.end, ""), "allocationId": a.id}
        allocations.append(blank(bindings.v1Allocation, **facts))
    facts = {"taskId": task, "taskType": "TASK_TYPE_TRIAL", "allocations": allocations}
    return {"task": blank(bindings.v1Task, startTime=at("10:10"), **facts)}


def _logs(held: Held, query: dict[str, str]) -> bytes:
    """The lines of one allocation that are asked for; the master's name neither it nor an agent."""
    lines = [{"source": "master", "log": held.log}]
    for machine in held.machines if held.start else ():
        found = datetime.fromisoformat(str(at(held.start))) - timedelta(milliseconds=30)
        facts = {"source": "agent", "agentId": machine, "log": "image already found"}
        lines.append({**facts, "timestamp": found.isoformat()})
    if held.launched:
        words = "[7] determined: Launching: ['sh', '-c', 'python3 predict.py']"
        lines.append({"source": "task", "log": words, "timestamp": at(held.launched)})
    said = b""
    for line in lines:
        named = query.get("sources", line["source"]) == line["source"]
        if line["log"] and named and query.get("searchText", "") in line["log"]:
            facts = {"id": "1", "timestamp": at(held.end or held.start), "level": "LOG_LEVEL_INFO"}
            facts |= {"taskId": held.task, "message": line["log"], **line}
            said += json.dumps({"result": facts}).encode() + b"\n"
    return said


def _accelerators(held: list[Held]) -> dict[str, Any]:
    facts = {"containerId": "c", "taskId": "", "acceleratorUuids": [], "acceleratorType": "cuda"}
    held = [a for a in held if a.start and not a.silent]
    pairs = [({"allocationId": a.id, "resourcePool": a.pool}, m) for a in held for m in a.machines]
    return {"acceleratorData": [{**facts, **on, "nodeName": machine} for on, machine in pairs]}


def _checkpoints(trial: Kept) -> dict[str, Any]:
    facts = {"uuid": "u", "state": "STATE_COMPLETED", "training": {}}
    stored = [blank(bindings.v1Checkpoint, reportTime=at(x), **facts) for x in trial.checkpoints]
    return {"checkpoints": stored, "pagination": {}}


def _metrics(number: int, trial: Kept) -> dict[str, Any]:
    facts = {"trialId": number, "archived": False, "id": 1, "trialRunId": 1, "group": "training"}
    reports = []
    for clock, steps, speed in trial.reports:
        metrics = {"avg_metrics": {"examples_per_second": speed, "loss": 1.0, "epochs": 0.5}}
        reports.append({**facts, "endTime": at(clock), "totalBatches": steps, "metrics": metrics})
    return {"result": {"metrics": reports}}


def _raw(cluster: Cluster) -> dict[str, Any]:
    ran = [(kind, n, cluster.ran[n].user, *span) for n, kind, *span in cluster.work]
    ran += [("instance", 0, *life) for life in cluster.instances]
    ran += [("agent", 0, *life) for life in cluster.agents]
    keys = "kind", "experimentId", "username", "startTime", "endTime"
    entries = []
    for *facts, start, end in ran:
        entry = dict(zip(keys, (*facts, at(start), at(end)), strict=True))
        if entry["kind"] in ("agent", "instance"):
            entry["slots"] = cluster.slots.get(entry["username"], 8)
        entries.append(entry)
    return {"resourceEntries": entries}


def _csv(cluster: Cluster, after: str) -> str:
    lines = ["allocation_id,task_type,username,experiment_id,slots,start_time,end_time"]
    lines[0] += ",resource_pool"
    for number, ran in cluster.ran.items():
        shown = number if ran.kind in ("TRIAL", "DELETED") else 0
        for a in ran.held:
            if not a.end or str(at(a.end))[:19] > after[:19]:
                facts = a.id, ran.kind, ran.user, shown, ran.slots, at(a.start), at(a.end), a.pool
                lines.append(",".join("" if fact is None else str(fact) for fact in facts))
    return "\n".join(lines) + "\n"


def _pool(cluster: Cluster, name: str) -> dict[str, Any]:
    aws = {"spotEnabled": name == SPOT, "instanceType": "p3.16xlarge"} | cluster.aws.get(name, {})
    details = {"aws": blank(bindings.v1ResourcePoolAwsDetail, **aws)}
    facts = {"name": name, "type": "RESOURCE_POOL_TYPE_AWS", "details": details}
    facts |= {"schedulerType": "SCHEDULER_TYPE_PRIORITY", "instanceType": aws["instanceType"]}
    facts |= {"schedulerFittingPolicy": "FITTING_POLICY_BEST", "maxAgentStartingPeriod": 1200}
    facts |= {"slotType": "TYPE_CUDA", "maxIdleAgentPeriod": 600}
    return blank(bindings.v1ResourcePool, **{**facts, **cluster.pool})


def _workspaces(cluster: Cluster) -> list[str]:
    return list(dict.fromkeys(workspace for workspace, _ in cluster.projects))


def _projects(cluster: Cluster, workspace: int) -> dict[str, Any]:
    """The projects of a workspace, of all for 0; ids count from 1 in order."""
    listed = []
    for number, (owner, name) in enumerate(cluster.projects, start=1):
        holder = _workspaces(cluster).index(owner) + 1
        if workspace in (0, holder):
            facts = {"id": number, "name": name, "workspaceId": holder, "notes": []}
            listed.append(blank(bindings.v1Project, **facts, state="WORKSPACE_STATE_UNSPECIFIED"))
    return {"projects": listed, "pagination": {}}


def answer(cluster: Cluster, path: str, query: dict[str, str]) -> Any:
    """What the master says at `path`; None where it has nothing."""
    each = [(n, i, t) for n, ran in cluster.ran.items() for i, t in enumerate(ran.trials)]
    trials = {n * 10 + i: (n, t) for n, i, t in each}
    shown = {n: ran for n, ran in cluster.ran.items() if ran.kind == "TRIAL"}
    others = [h for r in cluster.ran.values() if r.kind not in ("TRIAL", "DELETED") for h in r.held]
    tasks: dict[str, list[Held]] = {}
    for held in (held for ran in cluster.ran.values() for held in ran.held):
        tasks.setdefault(held.task, []).append(held)
    if path == "/resources/allocation/allocations-csv":
        return _csv(cluster, query["timestamp_after"]).encode()
    match path.removeprefix("/api/v1/").split("/"):
        case ["me"]:
            return {"user": {"id": 1, "username": "ada", "admin": False, "active": True}}
        case ["workspaces"]:
            named = enumerate(_workspaces(cluster), start=1)
            state = {"state": "WORKSPACE_STATE_UNSPECIFIED"}
            listed = [blank(bindings.v1Workspace, id=n, name=name, **state) for n, name in named]
            return {"workspaces": listed, "pagination": {}}
        case ["workspaces", number, "projects"]:
            return _projects(cluster, int(number))
        case ["experiments"]:
            held_in = list(cluster.projects.values())[int(query["projectId"]) - 1]
            # A page of 100 if none is asked for; -1 is all of them.
            listed = [_experiment(n, cluster.ran[n])["experiment"] for n in held_in]
            return {"experiments": listed if query["limit"] == "-1" else [], "pagination": {}}
        case ["experiments", name, *what] if int(name) in shown:
            ran = shown[int(name)]
            mine = [(key, t) for key, (n, t) in trials.items() if n == int(name)]
            listed = [_trial(key, int(name), ran, t) for key, t in mine]
            return {"trials": listed, "pagination": {}} if what else _experiment(int(name), ran)
        case ["tasks", name, "logs"]:
            return b"".join(_logs(held, query) for held in tasks[name])
        case ["allocations", name]:  # with an exit reason
            (ended,) = (held.exit or None for held in tasks[name[:-2]] if held.id == name)
            facts = {"state": "STATE_TERMINATED", "exitReason": ended}
            return {"allocation": blank(bindings.v1Allocation, **facts)}
        case ["tasks", name, *what] if name in tasks:
            silent = name in {held.task for held in others}
            held = [] if silent else tasks[name]
            return _accelerators(held) if what else _task(name, tasks[name])
        case ["trials", "metrics", "training_metrics"]:
            return _metrics(int(query["trialIds"]), trials[int(query["trialIds"])][1])
        case ["trials", name, "checkpoints"]:
            return _checkpoints(trials[int(name)][1])
        case ["resource-pools"]:
            names = dict.fromkeys((SPOT, ON_DEMAND, *cluster.aws))
            pools = [_pool(cluster, name) for name in names]
            return {"resourcePools": pools, "pagination": {}}
        case ["resources", "allocation", "raw"]:
            return _raw(cluster)
    return None


class FakeRecords(FakeServer):
    """Serves the records. `hide`: refuse paths that end so, as strict permissions do."""

    def __init__(self, cluster: Cluster = DEFAULT, hide: tuple[str, ...] = ()) -> None:
        self.cluster, self.hide = cluster, hide
        super().__init__()

    def respond(self, request: Request) -> Any:
        path = request.path
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"error": {"code": 16, "error": "no valid token"}}
        secret = any(f"/tasks/{task}/" in path for task in self.cluster.hidden)
        if secret or path.endswith(self.hide):
            return 403, {"error": {"code": 7, "error": "access denied"}}
        return answer(self.cluster, path, request.query)
