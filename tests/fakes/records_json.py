"""What a Determined master answers about its records, as JSON that its client reads."""

import json
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from determined.common.api import bindings

from tests.fakes.http import blank, trial_json, validation_json
from tests.fakes.recorded import SPOT, Cluster, Held, Kept, Ran, at


def experiment_json(number: int, ran: Ran) -> dict[str, Any]:
    running = any(trial.state == "RUNNING" for trial in ran.trials)
    experiment = blank(
        bindings.v1Experiment,
        id=number,
        name=ran.name,
        labels=ran.labels,
        username=ran.user,
        state="STATE_ACTIVE" if running else "STATE_COMPLETED",
        startTime=at("10:00"),
        resourcePool=ran.held[0].pool if ran.held else SPOT,
        config={"data": ran.data, "resources": {"slots_per_trial": ran.slots}, **ran.config},
    )
    return {"experiment": experiment}


def _trial(number: int, experiment: int, ran: Ran, trial: Kept) -> dict[str, Any]:
    tasks = list(dict.fromkeys(held.task for held in trial.held)) or [f"{experiment}.task"]
    steps = trial.steps
    if steps is None:
        steps = max((done for _, done, _ in trial.reports), default=0)
    return trial_json(
        number,
        experiment,
        startTime=at("10:10"),
        state=f"STATE_{trial.state}",
        taskIds=tasks,
        taskId=tasks[0],
        totalBatchesProcessed=steps,
        bestValidation=validation_json(trial.scores, steps, at("12:25")) if trial.scores else None,
        restarts=trial.restarts,
        hparams={**ran.hyperparameters, **trial.hparams},
    )


def task_json(task: str, held: list[Held]) -> dict[str, Any]:
    allocations = []
    for allocation in reversed(held):
        described = blank(
            bindings.v1Allocation,
            taskId=task,
            state="STATE_TERMINATED" if allocation.end else "STATE_RUNNING",
            startTime=at(allocation.start, zone=""),
            endTime=at(allocation.end, zone=""),
            allocationId=allocation.id,
        )
        allocations.append(described)
    described = blank(
        bindings.v1Task,
        taskId=task,
        taskType="TASK_TYPE_TRIAL",
        allocations=allocations,
        startTime=at("10:10"),
    )
    return {"task": described}


def _lines(held: Held) -> list[dict[str, Any]]:
    """Return the lines of one allocation; the master's name neither it nor an agent."""
    lines = [{"source": "master", "log": held.log}]
    if held.start:
        begin = datetime.fromisoformat(str(at(held.start)))
        before = (begin - timedelta(milliseconds=30)).isoformat()
        for machine in held.machines:
            line = {"source": "agent", "agentId": machine, "log": "image already found"}
            lines.append({**line, "timestamp": before})
    if held.launched:
        launch = "[7] determined: Launching: ['sh', '-c', 'python3 predict.py']"
        lines.append({"source": "task", "log": launch, "timestamp": str(at(held.launched))})
    return lines


def logs(held: Held, query: dict[str, str]) -> bytes:
    """Return those of an allocation's lines that the query selects."""
    content = b""
    for line in _lines(held):
        from_source = query.get("sources", line["source"]) == line["source"]
        has_text = query.get("searchText", "") in line["log"]
        if line["log"] and from_source and has_text:
            entry = {
                "id": "1",
                "timestamp": at(held.end or held.start),
                "level": "LOG_LEVEL_INFO",
                "taskId": held.task,
                "message": line["log"],
                **line,
            }
            content += json.dumps({"result": entry}).encode() + b"\n"
    return content


def accelerators(held: list[Held]) -> dict[str, Any]:
    entries = []
    for allocation in held:
        if not allocation.start or allocation.silent:
            continue
        for machine in allocation.machines:
            entry = {
                "containerId": "c",
                "taskId": "",
                "allocationId": allocation.id,
                "resourcePool": allocation.pool,
                "nodeName": machine,
                "acceleratorUuids": [],
                "acceleratorType": "cuda",
            }
            entries.append(entry)
    return {"acceleratorData": entries}


def list_checkpoints(trial: Kept) -> dict[str, Any]:
    checkpoints = []
    for clock in trial.checkpoints:
        checkpoint = blank(
            bindings.v1Checkpoint,
            uuid="u",
            state="STATE_COMPLETED",
            training={},
            reportTime=at(clock),
        )
        checkpoints.append(checkpoint)
    return {"checkpoints": checkpoints, "pagination": {}}


def training_metrics(number: int, trial: Kept) -> dict[str, Any]:
    reports = []
    for clock, steps, speed in trial.reports:
        report = {
            "trialId": number,
            "archived": False,
            "id": 1,
            "trialRunId": 1,
            "group": "training",
            "endTime": at(clock),
            "totalBatches": steps,
            "metrics": {"avg_metrics": {"examples_per_second": speed, "loss": 1.0, "epochs": 0.5}},
        }
        reports.append(report)
    return {"result": {"metrics": reports}}


def raw_entries(cluster: Cluster) -> dict[str, Any]:
    entries = []

    def add(kind: str, experiment: int, name: str, start: str, end: str) -> None:
        entry = {
            "kind": kind,
            "experimentId": experiment,
            "username": name,
            "startTime": at(start),
            "endTime": at(end),
        }
        if kind in ("agent", "instance"):
            entry["slots"] = cluster.slots.get(name, 8)
        entries.append(entry)

    for number, kind, start, end in cluster.work:
        add(kind, number, cluster.ran[number].user, start, end)
    for machine, start, end in cluster.instances:
        add("instance", 0, machine, start, end)
    for machine, start, end in cluster.agents:
        add("agent", 0, machine, start, end)
    return {"resourceEntries": entries}


HEADER = "allocation_id,task_type,username,experiment_id,slots,start_time,end_time,resource_pool"


def allocations_csv(cluster: Cluster, after: str) -> str:
    lines = [HEADER]
    for number, ran in cluster.ran.items():
        experiment = number if ran.kind in ("TRIAL", "DELETED") else 0
        for held in ran.held:
            end = at(held.end)
            if end is None or end[:19] > after[:19]:
                cells = [held.id, ran.kind, ran.user, str(experiment), str(ran.slots)]
                cells += [at(held.start) or "", end or "", held.pool]
                lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def pool_json(cluster: Cluster, name: str) -> dict[str, Any]:
    aws = {"spotEnabled": name == SPOT, "instanceType": "p3.16xlarge"} | cluster.aws.get(name, {})
    pool = {
        "name": name,
        "type": "RESOURCE_POOL_TYPE_AWS",
        "details": {"aws": blank(bindings.v1ResourcePoolAwsDetail, **aws)},
        "schedulerType": "SCHEDULER_TYPE_PRIORITY",
        "schedulerFittingPolicy": "FITTING_POLICY_BEST",
        "instanceType": aws["instanceType"],
        "slotType": "TYPE_CUDA",
        "maxAgentStartingPeriod": 1200,
        "maxIdleAgentPeriod": 600,
    }
    return blank(bindings.v1ResourcePool, **{**pool, **cluster.pool})


def _workspaces(cluster: Cluster) -> dict[str, int]:
    """Return the ids of workspaces by name; they count from 1 in order."""
    names = dict.fromkeys(workspace for workspace, _ in cluster.projects)
    return {name: number for number, name in enumerate(names, start=1)}


def list_workspaces(cluster: Cluster) -> dict[str, Any]:
    state = "WORKSPACE_STATE_UNSPECIFIED"
    workspaces = [
        blank(bindings.v1Workspace, id=number, name=name, state=state)
        for name, number in _workspaces(cluster).items()
    ]
    return {"workspaces": workspaces, "pagination": {}}


def list_projects(cluster: Cluster, workspace: int) -> dict[str, Any]:
    """Return the projects of a workspace, of all for 0; ids count from 1 in order."""
    projects = []
    for number, (owner, name) in enumerate(cluster.projects, start=1):
        owner_id = _workspaces(cluster)[owner]
        if workspace in (0, owner_id):
            project = blank(
                bindings.v1Project,
                id=number,
                name=name,
                workspaceId=owner_id,
                notes=[],
                state="WORKSPACE_STATE_UNSPECIFIED",
            )
            projects.append(project)
    return {"projects": projects, "pagination": {}}


def list_experiments(cluster: Cluster, query: dict[str, str]) -> dict[str, Any]:
    numbers = list(cluster.projects.values())[int(query["projectId"]) - 1]
    experiments = [experiment_json(number, cluster.ran[number])["experiment"] for number in numbers]
    # A page of 100 if none is requested; -1 is all of them.
    return {"experiments": experiments if query["limit"] == "-1" else [], "pagination": {}}


class TrialOf(NamedTuple):
    """A trial with its own id, and that of its experiment."""

    id: int
    experiment: int
    kept: Kept


def trials_by_id(cluster: Cluster) -> dict[int, TrialOf]:
    """Return all trials by id: ten times the experiment's, and on."""
    trials = {}
    for experiment, ran in cluster.ran.items():
        for index, kept in enumerate(ran.trials):
            number = experiment * 10 + index
            trials[number] = TrialOf(number, experiment, kept)
    return trials


def list_trials(cluster: Cluster, experiment: int) -> dict[str, Any]:
    ran = cluster.ran[experiment]
    trials = [
        _trial(trial.id, experiment, ran, trial.kept)
        for trial in trials_by_id(cluster).values()
        if trial.experiment == experiment
    ]
    return {"trials": trials, "pagination": {}}


def tasks_by_id(cluster: Cluster) -> dict[str, list[Held]]:
    """Return the allocations of all tasks."""
    tasks: dict[str, list[Held]] = {}
    for ran in cluster.ran.values():
        for held in ran.held:
            tasks.setdefault(held.task, []).append(held)
    return tasks


def allocation_json(held: Held) -> dict[str, Any]:
    """Return an allocation with its exit reason."""
    state = "STATE_TERMINATED"
    reason = held.exit or None
    return {"allocation": blank(bindings.v1Allocation, state=state, exitReason=reason)}
