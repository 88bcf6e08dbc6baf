"""A Determined master on loopback that recorded two experiments: what `reports` asks of it.

Every answer is made from the client's own types (`bindings.*.to_json`), with the quirks of 0.38.1:
a task's allocations have neither slots nor exit reason, and raw entries do not name the trial.

Experiment 7: 16 slots on two spot machines, i-a and i-b; restarted twice, ended well. Of the first
allocation 30 min were lost, of the second nothing (a checkpoint at its end), then i-b was taken and
i-c came. Experiment 8: 8 slots on demand on i-d, running since 12:00.
"""

import re
from typing import Any

from determined.common.api import bindings

from tests.fakes.http import FakeServer, Request, experiment_record, trial_record

TOKEN = "user-token"
DAY = "2026-11-20T"
SPOT, ON_DEMAND = "aws-spot-p3-16xlarge", "aws-p3-16xlarge"


def at(clock: str) -> str:
    return f"{DAY}{clock}:00.123456789Z"


ALLOCATIONS = {  # task -> (allocation, start, end, pool, machines)
    "7.task": [
        ("7.0", "10:10", "11:10", SPOT, ["i-a", "i-b"]),
        ("7.1", "11:20", "11:50", SPOT, ["i-a", "i-b"]),
        ("7.2", "12:00", "12:31", SPOT, ["i-a", "i-c"]),
    ],
    "8.task": [("8.0", "12:00", "", ON_DEMAND, ["i-d"])],
}
CHECKPOINTS = {70: ["10:40", "11:50", "12:30"], 80: []}
INSTANCES = [("i-a", "10:00", "12:40"), ("i-b", "10:00", "11:55"), ("i-c", "11:55", "12:40"),
             ("i-d", "11:50", "")]  # fmt: skip
WORK = [  # experiment, kind, from, to
    (7, "imagepulling", "10:10", "10:15"),
    (7, "training", "10:15", "10:35"),
    (7, "checkpointing", "10:35", "10:40"),
    (7, "training", "10:40", "11:00"),  # rolled back
    (7, "training", "11:25", "11:45"),
    (7, "checkpointing", "11:45", "11:50"),
    (7, "training", "12:05", "12:20"),
    (7, "validation", "12:20", "12:25"),
    (7, "checkpointing", "12:25", "12:30"),
    (8, "training", "12:05", "12:50"),
]


def _experiment(number: int) -> bindings.v1Experiment:
    config = {
        "hyperparameters": {"global_batch_size": 256},
        "resources": {"slots_per_trial": 16 if number == 7 else 8},
    }
    pool = SPOT if number == 7 else ON_DEMAND
    return experiment_record(number, config=config, startTime=at("10:00"), resourcePool=pool)


def _trial(experiment: int) -> bindings.trialv1Trial:
    task = f"{experiment}.task"
    facts = {"startTime": at("10:10"), "taskId": task, "taskIds": [task]}
    if experiment != 7:
        state = bindings.trialv1State.RUNNING
        return trial_record(80, 8, state=state, totalBatchesProcessed=100, **facts)
    metrics = bindings.v1Metrics(avgMetrics={"exact": 86.0, "f1": 89.0, "loss": 0.5})
    best = bindings.v1MetricsWorkload(metrics=metrics, numInputs=0, totalBatches=400)
    facts["restarts"] = 1  # the reclaim is not counted
    return trial_record(70, 7, totalBatchesProcessed=400, bestValidation=best, **facts)


def _task(task: str) -> bindings.v1Task:
    allocations = [
        bindings.v1Allocation(
            allocationId=name, slots=0, taskId=task,
            state=bindings.taskv1State.TERMINATED if end else bindings.taskv1State.RUNNING,
            startTime=f"{DAY}{start}:00.123",  # as the database's JSON has it: without a zone
            endTime=f"{DAY}{end}:00.123" if end else None,
        )
        for name, start, end, _, _ in reversed(ALLOCATIONS[task])
    ]  # fmt: skip
    kind = bindings.v1TaskType.TRIAL
    return bindings.v1Task(
        allocations=allocations, startTime=at("10:10"), taskId=task, taskType=kind
    )


def _accelerators(task: str) -> bindings.v1GetTaskAcceleratorDataResponse:
    data = [
        bindings.v1AcceleratorData(
            acceleratorType="cuda", allocationId=name, nodeName=machine, resourcePool=pool
        )
        for name, _, _, pool, machines in ALLOCATIONS[task]
        for machine in machines
    ]
    return bindings.v1GetTaskAcceleratorDataResponse(acceleratorData=data)


def _checkpoints(trial: int) -> bindings.v1GetTrialCheckpointsResponse:
    stored = [
        bindings.v1Checkpoint(
            metadata={}, resources={}, state=bindings.checkpointv1State.COMPLETED,
            training=bindings.v1CheckpointTrainingMetadata(), uuid=f"{trial}-{clock}",
            reportTime=at(clock),
        )
        for clock in CHECKPOINTS[trial]
    ]  # fmt: skip
    page = bindings.v1Pagination(limit=0, offset=0, total=len(stored))
    return bindings.v1GetTrialCheckpointsResponse(checkpoints=stored, pagination=page)


def _metrics(trial: int) -> bindings.v1GetTrainingMetricsResponse:
    speeds = [(200, 80.0), (400, 120.0)] if trial == 70 else []
    reports = [
        bindings.v1MetricsReport(
            archived=False, endTime=at("10:35"), group="training", id=steps, totalBatches=steps,
            metrics={"avg_metrics": {"examples_per_second": speed, "loss": 1.0}}, trialId=trial,
            trialRunId=1,
        )
        for steps, speed in speeds
    ]  # fmt: skip
    return bindings.v1GetTrainingMetricsResponse(metrics=reports)


def _raw() -> bindings.v1ResourceAllocationRawResponse:
    entries = [
        bindings.v1ResourceAllocationRawEntry(
            kind=kind, experimentId=experiment, username="ada", slots=16,
            startTime=at(start), endTime=at(end),
        )
        for experiment, kind, start, end in WORK
    ] + [
        bindings.v1ResourceAllocationRawEntry(
            kind="instance", username=name, slots=8, startTime=at(start),
            endTime=at(end) if end else None,
        )
        for name, start, end in INSTANCES
    ]  # fmt: skip
    return bindings.v1ResourceAllocationRawResponse(resourceEntries=entries)


def _pool(name: str, spot: bool) -> bindings.v1ResourcePool:
    texts = "agentDockerImage agentDockerNetwork agentDockerRuntime agentFluentImage clusterName"
    texts += " containerStartupScript description imageId location masterCertName masterUrl"
    numbers = "auxContainerCapacity auxContainerCapacityPerAgent auxContainersRunning maxAgents"
    numbers += " minAgents numAgents slotsAvailable slotsUsed maxAgentStartingPeriod"
    numbers += " maxIdleAgentPeriod"
    aws = bindings.v1ResourcePoolAwsDetail(
        **dict.fromkeys(
            "iamInstanceProfileArn imageId instanceName region securityGroupId sshKeyName tagKey "
            "tagValue".split(), ""
        ),
        publicIp=True, rootVolumeSize=200, spotEnabled=spot, instanceType="p3.16xlarge",
    )  # fmt: skip
    return bindings.v1ResourcePool(
        **dict.fromkeys(texts.split(), ""),
        **dict.fromkeys(numbers.split(), 0),
        defaultAuxPool=False, defaultComputePool=False, instanceType="p3.16xlarge", name=name,
        details=bindings.v1ResourcePoolDetail(aws=aws), preemptible=spot, startupScript="",
        resourceManagerMetadata={}, schedulerFittingPolicy=bindings.v1FittingPolicy.BEST,
        schedulerType=bindings.v1SchedulerType.PRIORITY, slotType=bindings.devicev1Type.CUDA,
        type=bindings.v1ResourcePoolType.AWS,
    )  # fmt: skip


def _answer(path: str) -> Any:
    pools = [_pool(SPOT, True), _pool(ON_DEMAND, False)]
    page = bindings.v1Pagination(limit=0, offset=0, total=1)
    routes = [
        (r"experiments/([78])",
         lambda n: bindings.v1GetExperimentResponse(experiment=_experiment(int(n)))),
        (r"experiments/([78])/trials",
         lambda n: bindings.v1GetExperimentTrialsResponse(
             pagination=page, trials=[_trial(int(n))])),
        (r"tasks/([^/]+)", lambda n: bindings.v1GetTaskResponse(task=_task(n))),
        (r"tasks/([^/]+)/acceleratorData", _accelerators),
        (r"trials/([78]0)/checkpoints", lambda n: _checkpoints(int(n))),
        (r"resource-pools", lambda: bindings.v1GetResourcePoolsResponse(resourcePools=pools)),
        (r"resources/allocation/raw", _raw),
    ]  # fmt: skip
    for pattern, answer in routes:
        found = re.fullmatch(f"/api/v1/{pattern}", path)
        if found:
            return answer(*found.groups()).to_json()
    return None


class FakeRecords(FakeServer):
    """Serves the records. `hide_raw`: refuse them, as a master with strict permissions does."""

    def __init__(self, hide_raw: bool = False) -> None:
        self.calls: list[str] = []
        self.hide_raw = hide_raw
        super().__init__()

    def respond(self, request: Request) -> tuple[int, Any]:
        path = request.path
        self.calls.append(path)
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"error": {"code": 16, "error": "no valid token"}}
        if path == "/api/v1/trials/metrics/training_metrics":
            return 200, {"result": _metrics(int(request.query["trialIds"])).to_json()}
        if path.endswith("/allocation/raw") and self.hide_raw:
            return 403, {"error": {"code": 7, "error": "access denied"}}
        found = _answer(path)
        missing = {"error": {"code": 5, "error": "not found", "message": "not found"}}
        return (404, missing) if found is None else (200, found)
