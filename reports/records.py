"""What a Determined 0.38.1 master recorded of experiments: allocations, machines, reports.

Asked with the client's own types (`determined.common.api.bindings`) and logged in as `det` is.
Traps of that release, seen in its queries: a task's allocations come without slots and without exit
reason; one allocation's own times are Go's text form, not RFC 3339; raw entries name the
experiment and not the trial, begin where the entry before them ended, and keep steps that were
rolled back; metrics of steps that were rolled back are not returned at all.
"""

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detalbert.errors import UserError

Moment = datetime.datetime
FINISHED = {"STATE_COMPLETED"}
ENDED = FINISHED | {"STATE_CANCELED", "STATE_ERROR"}


@dataclass(frozen=True)
class Allocation:
    """One start of a trial: machines held from `start` to `end` (None: it still runs)."""

    id: str
    start: Moment
    end: Moment | None
    pool: str
    nodes: tuple[str, ...]  # agent ids, which are EC2 instance ids where Determined started them


@dataclass(frozen=True)
class Trial:
    id: int
    state: str
    allocations: tuple[Allocation, ...]  # in order of start
    checkpoints: tuple[Moment, ...]
    steps: int
    speeds: tuple[tuple[int, float], ...]  # steps done, windows a second of the report
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Experiment:
    id: int
    name: str
    slots: int  # per trial
    global_batch_size: int
    pool: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Entry:
    """A raw entry: one workload of an experiment, or the life of an agent or an instance."""

    kind: str
    experiment: int | None
    name: str  # user, agent id or instance id
    start: Moment
    end: Moment | None


@dataclass(frozen=True)
class Pool:
    """A resource pool; `instance` is empty where it is not on EC2."""

    name: str
    instance: str
    spot: bool


@dataclass(frozen=True)
class Records:
    experiments: tuple[Experiment, ...]
    entries: tuple[Entry, ...]
    pools: Mapping[str, Pool]
    until: Moment  # "now": the end of what still runs
    notes: tuple[str, ...] = ()


def parse_time(text: str) -> Moment:
    """RFC 3339 (any number of digits, zone or none) or Go's "2026-11-20 10:00:00.5 +0000 UTC"."""
    found = re.match(
        r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d+))?\s*(Z|[+-]\d\d:?\d\d|[+-]\d\d)?", text
    )
    if not found:
        raise ValueError(f"not a time: {text!r}")
    day, clock, fraction, zone = found.groups()
    zone = "+00:00" if zone in (None, "Z") else zone
    micro = (fraction or "0")[:6].ljust(6, "0")
    moment = datetime.datetime.fromisoformat(f"{day}T{clock}.{micro}{zone}")
    return moment.astimezone(datetime.timezone.utc)


def fetch(master: str, user: str | None, ids: Sequence[int], until: Moment) -> Records:
    """Everything the master knows of these experiments. Raises UserError, naming the master."""
    from determined.common import api
    from determined.common.api import authentication, certs

    errors = api.errors
    try:
        cert = certs.default_load(master)
        session = authentication.login_with_cache(master, requested_user=user, cert=cert)
        return _fetch(session, ids, until)
    except errors.UnauthenticatedException:
        raise UserError(f"{master}: not logged in; run det user login USER") from None
    except errors.ForbiddenException as error:
        raise UserError(f"{master}: {user or 'this user'} may not see it: {error}") from None
    except errors.MasterNotFoundException:
        raise UserError(f"{master}: no master answers there; set DET_MASTER or --master") from None
    except (errors.APIException, errors.BadResponseException, errors.BadRequestException) as error:
        raise UserError(f"{master}: the master answered: {error}") from None


def _fetch(session: Any, ids: Sequence[int], until: Moment) -> Records:
    from determined.common import api
    from determined.common.api import bindings

    notes: list[str] = []
    experiments = tuple(_experiment(session, number) for number in ids)
    listed = bindings.get_GetResourcePools(session).resourcePools or []
    pools = {pool.name: _pool(pool) for pool in listed}
    starts = [a.start for e in experiments for t in e.trials for a in t.allocations]
    entries: tuple[Entry, ...] = ()
    if starts:
        since = min(starts) - datetime.timedelta(days=1)  # machines boot before they are used
        try:
            answer = bindings.get_ResourceAllocationRaw(
                session,
                timestampAfter=since.isoformat().replace("+00:00", "Z"),
                timestampBefore=until.isoformat().replace("+00:00", "Z"),
            )
            entries = tuple(_entry(entry) for entry in answer.resourceEntries or [])
        except (api.errors.ForbiddenException, bindings.APIHttpError):
            notes.append(
                "the master does not show this user its allocation records; boot and idle time are "
                "not priced, and training, validation and checkpoints are not told apart"
            )
    return Records(experiments, entries, pools, until, tuple(notes))


def _experiment(session: Any, number: int) -> Experiment:
    from determined.common import api
    from determined.common.api import bindings

    try:
        found = bindings.get_GetExperiment(session, experimentId=number).experiment
    except api.errors.NotFoundException:
        raise UserError(f"--experiment {number}: the master has none; see det e list") from None
    trials = bindings.get_GetExperimentTrials(session, experimentId=number, limit=0).trials
    config = found.config or {}
    hparams = config.get("hyperparameters") or {}
    batch = hparams.get("global_batch_size") or 1
    batch = batch.get("val", 1) if isinstance(batch, dict) else batch
    return Experiment(
        id=found.id,
        name=found.name,
        slots=int((config.get("resources") or {}).get("slots_per_trial") or 1),
        global_batch_size=int(batch),
        pool=found.resourcePool or "",
        trials=tuple(_trial(session, trial, found.resourcePool or "") for trial in trials),
    )


def _trial(session: Any, trial: Any, pool: str) -> Trial:
    from determined.common.api import bindings

    allocations: list[Allocation] = []
    for task_id in trial.taskIds or [trial.taskId]:
        task = bindings.get_GetTask(session, taskId=task_id).task
        data = bindings.get_GetTaskAcceleratorData(session, taskId=task_id).acceleratorData
        for allocation in task.allocations:
            mine = [entry for entry in data if entry.allocationId == allocation.allocationId]
            if allocation.startTime is None:
                continue  # it is in the queue and holds nothing
            allocations.append(
                Allocation(
                    id=allocation.allocationId,
                    start=parse_time(allocation.startTime),
                    end=parse_time(allocation.endTime) if allocation.endTime else None,
                    pool=next((entry.resourcePool for entry in mine if entry.resourcePool), pool),
                    nodes=tuple(sorted({entry.nodeName for entry in mine if entry.nodeName})),
                )
            )
    answer = bindings.get_GetTrialCheckpoints(session, id=trial.id, limit=0)
    stored = [parse_time(c.reportTime) for c in answer.checkpoints if c.reportTime]
    reports = [
        report
        for part in bindings.get_GetTrainingMetrics(session, trialIds=[trial.id])
        for report in part.metrics
    ]
    best = trial.bestValidation
    return Trial(
        id=trial.id,
        state=trial.state.value,
        allocations=tuple(sorted(allocations, key=lambda a: a.start)),
        checkpoints=tuple(sorted(stored)),
        steps=trial.totalBatchesProcessed,
        speeds=_speeds(reports),
        scores=dict(best.metrics.avgMetrics) if best else {},
    )


def _speeds(reports: Sequence[Any]) -> tuple[tuple[int, float], ...]:
    """Steps and windows a second of each report that has them."""
    found, before = [], 0
    for report in sorted(reports, key=lambda report: report.totalBatches):
        metrics = report.metrics.get("avg_metrics", report.metrics)
        speed = metrics.get("examples_per_second")
        steps, before = report.totalBatches - before, report.totalBatches
        if isinstance(speed, (int, float)) and speed > 0 and steps > 0:
            found.append((steps, float(speed)))
    return tuple(found)


def _pool(pool: Any) -> Pool:
    aws = pool.details.aws
    if aws is None:
        return Pool(pool.name, "", False)
    return Pool(pool.name, aws.instanceType or pool.instanceType, aws.spotEnabled)


def _entry(entry: Any) -> Entry:
    return Entry(
        kind=entry.kind or "",
        experiment=entry.experimentId,
        name=entry.username or "",
        start=parse_time(entry.startTime),
        end=parse_time(entry.endTime) if entry.endTime else None,
    )
