"""Records of experiments on a Determined 0.38.1 master: allocations, machines, reports.

Queried with the client's own types (`determined.common.api.bindings`) and the login of `ask.py`.
Pitfalls of that release: allocations of a task have no slots, exit reason and time zone (UTC); a
continued trial has another task; raw entries name the experiment and not the trial, begin where the
previous one ended, and are not cut to the requested span; metrics of steps that were rolled back
are missing. Who else used a machine is in the CSV of `det resources allocations`. A reclaimed
machine's `instance` entry stays open until the master restarts, its `agent` entry ends; a spot
request that waits has an `instance` entry as well; none names its pool. A container reports its
machine when it has started, those of commands, TensorBoards and clean-up never do; agents log from
the assignment on, in lines that name no allocation.
"""

import contextlib
import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pandas as pd
from determined.common.api import bindings, errors

from cluster.configs.ask import Master, reaching
from cluster.configs.expconf import runs
from cluster.facts.machines import SLOTS
from detalbert.errors import UserError
from reports.usage import (
    PATIENCE,
    Allocation,
    Entry,
    Experiment,
    Moment,
    RecordedPool,
    Records,
    Selection,
    Span,
    TrainingReport,
    Trial,
    whole_span,
)

Row: TypeAlias = Mapping[str, str]  # of the CSV

REFUSED = errors.APIException, errors.ForbiddenException, bindings.APIHttpError
DAY = pd.Timedelta(days=1)
LOOK_BACK = pd.Timedelta(days=31)  # no machine is followed further
STOP_REQUEST = "remaining resources (reason: "  # how the master logs it
LAUNCH = "determined: Launching: "  # logged as the script of a task starts
SKEW = pd.Timedelta(seconds=1)  # an agent logs a moment before the master records the start


def parse_time(text: str) -> Moment:
    """Parse RFC 3339, with or without a zone, or Go's "2026-11-20 10:00:00.5 +0000 UTC"; in UTC."""
    moment = pd.Timestamp(str(text).removesuffix(" UTC"))
    if moment is pd.NaT or not re.match(r"\d{4}-\d\d-\d\d", str(text)):
        raise ValueError(f"not a time: {text!r}")
    return moment.tz_localize("UTC") if moment.tz is None else moment.tz_convert("UTC")


def fetch_records(selection: Selection) -> Records | None:
    """Return what is selected, None if nothing is; Unavailable if the master does not answer."""
    named = selection.experiment or selection.workspace or selection.project
    if not named and selection.since is None:
        return None
    now = pd.Timestamp.now("UTC")
    since = selection.since
    until = selection.until or now
    if since is not None and since >= until:
        raise UserError(f"--since {since}: not before --until ({until})")
    master = Master.login(selection.master, selection.user)
    problem = f"the records of {master.address} cannot be read"
    with reaching(master.address, problem, "use a Determined master and a user who may see them"):
        queries = _Queries(master.session, since, until, max(until, now))
        return queries.records(selection)


class _Queries:
    """A session with the master and the queries made through it."""

    def __init__(self, session: Any, since: Moment | None, until: Moment, now: Moment) -> None:
        self.session = session
        self.since = since
        self.until = until
        self.now = now
        self.notes = list[str]()
        self.tasks = dict[str, Any]()  # see `machines`

    def ask(self, name: str, **keys: Any) -> Any:
        return getattr(bindings, f"get_{name}")(self.session, **keys)

    @contextlib.contextmanager
    def noting(self, note: str) -> Iterator[None]:
        """End the block and note `note` if the user lacks the permission for a query in it."""
        try:
            yield
        except REFUSED:
            self.notes.append(note)

    def records(self, selection: Selection) -> Records:
        """Return the records of the named experiments, and of all that ran since `since`."""
        ids = dict.fromkeys(selection.experiment)
        ids |= dict.fromkeys(self.experiments_in(selection.workspace, selection.project))
        experiments = [self.experiment(number) for number in ids]
        ran = set()
        if self.since is not None:
            for row in self.csv_rows(self.since, self.until):
                if row["start_time"] not in ("", row["end_time"]):  # others only waited
                    ran.add(int(row.get("experiment_id") or 0))
        for number in sorted(ran - {0, *ids}):
            experiments.append(self.experiment(number, must=False))
        pools = self.ask("GetResourcePools").resourcePools or []
        records = Records(
            experiments=tuple(each for each in experiments if each is not None),
            pools={pool.name: _pool(pool) for pool in pools},
            until=self.until,
            notes=self.notes,
            since=self.since,
            now=self.now,
        )
        return self.with_machines(records) if self.since or records.allocations else records

    def experiments_in(self, workspace: str | None, project: str | None) -> list[int]:
        """Return the experiments of a workspace, of a project, or of a project in a workspace."""
        if not (workspace or project):
            return []
        projects = self.ask("GetWorkspaceProjects", id=0, limit=0).projects  # 0: of all, and all
        if workspace:
            page = self.ask("GetWorkspaces", limit=0)
            workspaces = {w.name: w.id for w in page.workspaces}
            _check_name("--workspace", workspace, workspaces)
            projects = [p for p in projects if p.workspaceId == workspaces[workspace]]
        if project:
            _check_name("--project", project, [p.name for p in projects])
            projects = [p for p in projects if p.name == project]
        ids = []
        for p in projects:
            page = self.ask("GetExperiments", projectId=p.id, limit=-1)  # -1: all
            ids += [experiment.id for experiment in page.experiments]
        return sorted(ids)

    def with_machines(self, records: Records) -> Records:
        """Return the records with all that happened on their machines, as far as it is seen."""
        held = records.allocations
        asked = Span(self.since or held[0].start, self.until)
        start, end = whole_span([asked, *held])
        problem = "the master does not show this user its allocation records: "
        with self.noting(problem + "boot and idle time are not priced"):
            entries = self.entries(start - DAY, end + DAY)  # machines boot first
            records = records._replace(entries=tuple(entries))
        nodes = set[str]()
        for a in held:
            nodes.update(a.nodes)
        lives = []
        for name, life in records.lives().items():
            if self.since or name in nodes:
                lives.append(life)
        if self.since:
            for stretches in records.connected().values():
                lives += stretches
        if lives or self.since:
            asked = Span(start, self.until)
            first, last = whole_span([asked, *lives])
            with self.noting("who else held the machines is not seen: no CSV of all allocations"):
                rows = self.csv_rows(
                    max(first, start - LOOK_BACK), min(last, self.until + LOOK_BACK)
                )
                others = self.others(rows, records, None if self.since else nodes)
                records = records._replace(others=tuple(others))
        return records

    def entries(self, since: Moment, until: Moment) -> Iterator[Entry]:
        raw = self.ask(
            "ResourceAllocationRaw",
            timestampAfter=_zulu(since),
            timestampBefore=_zulu(until),
        )
        for entry in raw.resourceEntries or []:
            yield Entry(
                kind=entry.kind or "",
                experiment=entry.experimentId or 0,
                name=entry.username or "",
                start=parse_time(entry.startTime),
                end=self.end(entry.endTime),
                slots=entry.slots,
            )

    def csv_rows(self, since: Moment, until: Moment) -> list[Row]:
        """Return all allocations of the cluster: columns as in Determined's internal/core.go."""
        span = {"timestamp_after": _zulu(since), "timestamp_before": _zulu(until)}
        text = self.session.get("resources/allocation/allocations-csv", params=span).text
        rows = csv.DictReader(text.splitlines())
        if not {"allocation_id", "slots", "start_time", "end_time"} <= {*(rows.fieldnames or ())}:
            raise ValueError("the CSV of allocations has other columns")
        return list(rows)

    def others(
        self,
        rows: Sequence[Row],
        records: Records,
        nodes: set[str] | None,
    ) -> Iterator[Allocation]:
        """Yield the allocations of other tasks than those of `records` on `nodes`; None: on any
        machine. Those without slots only where they may have a machine for themselves.
        """
        named = [experiment.id for experiment in records.experiments]
        slotless = _slotless_pools(records, nodes is None)
        hidden = 0
        for row in rows:
            number = int(row.get("experiment_id") or 0)
            slots = float(row["slots"] or 0)
            if number in named or row["start_time"] in ("", row["end_time"]):
                continue  # one that only waited may have the times of the master's last heartbeat
            if not slots and row.get("resource_pool") not in slotless:
                continue
            start = parse_time(row["start_time"])
            end = self.end(row["end_time"])
            pool = row.get("resource_pool") or ""
            machines = self.machines_of(row["allocation_id"], pool, start, end)
            hidden += bool(slots and not machines)
            if machines and (nodes is None or nodes & machines.keys()):
                kind = row.get("task_type") or "task"
                yield Allocation(
                    id=row["allocation_id"],
                    start=start,
                    end=end,
                    pool=next(iter(machines.values())),
                    nodes=tuple(machines),
                    slots=slots,
                    owner=number or f"{kind.lower()} of {row['username']}",
                )
        if hidden:
            problem = f"where {hidden} allocations of other tasks ran could not be seen"
            self.notes.append(f"{problem}: boot and idle time is shared without them")

    def machines_of(
        self,
        allocation: str,
        pool: str,
        start: Moment,
        end: Moment,
    ) -> Mapping[str, str]:
        """Return the pool of each machine of an allocation; empty if this user may not see it."""
        task = allocation.rpartition(".")[0]
        with contextlib.suppress(*REFUSED):
            machines = self.machines(task)[allocation]
            if machines:
                return machines
            lines = self.lines(task, start - SKEW, end, sources=["agent"])
            return {line.agentId: pool for line in lines if line.agentId}
        return {}

    def machines(self, task: str) -> Any:
        """Return the pool of each machine, by allocation and machine."""
        if task not in self.tasks:
            machines = defaultdict[str, dict[str, str]](dict)
            for entry in self.ask("GetTaskAcceleratorData", taskId=task).acceleratorData:
                if entry.allocationId and entry.nodeName:
                    machines[entry.allocationId][entry.nodeName] = entry.resourcePool or ""
            self.tasks[task] = machines
        return self.tasks[task]

    def end(self, text: str | None) -> Moment:
        return parse_time(text) if text else self.now

    def lines(self, task: str, start: Moment, end: Moment, **which: Any) -> list[Any]:
        """Return those lines of the log, in order, of the allocation from `start` to `end`; they do
        not name it. Empty if this user may not see them."""
        with contextlib.suppress(*REFUSED):
            lines = self.ask("TaskLogs", taskId=task, **which)
            return [line for line in lines if start <= parse_time(line.timestamp) <= end]
        return []

    def exit(self, task: str, allocation: str, start: Moment, end: Moment) -> str:
        """Return why an allocation ended: its exit reason, and from the log who requested it."""
        with contextlib.suppress(*REFUSED):
            ended = self.ask("GetAllocation", allocationId=allocation).allocation
            reasons = [ended.exitReason or ""]
            if "preempted" in reasons[0] or "killed" in reasons[0]:
                lines = self.lines(task, start, end, searchText=STOP_REQUEST)
                reasons += [line.log for line in lines]
            return "; ".join(reasons)
        return ""

    def experiment(self, number: int, must: bool = True) -> Experiment | None:
        """Return an experiment; None if it was deleted. Raises UserError instead if `must`."""
        try:
            found = self.ask("GetExperiment", experimentId=number).experiment
        except errors.NotFoundException:
            if not must:
                return None
            raise UserError(f"--experiment {number}: the master has none; see det e list") from None
        config = found.config or {}
        pool = found.resourcePool or ""
        slots = (config.get("resources") or {}).get("slots_per_trial")
        slots = 1 if slots is None else int(slots)
        trials = self.ask("GetExperimentTrials", experimentId=number, limit=0).trials
        models = {(trial.hparams or {}).get("model") for trial in trials}
        predicts = runs(config, "predict.py")
        return Experiment(
            id=found.id,
            name=found.name,
            user=found.username,
            labels=tuple(sorted(found.labels or ())),
            model=models.pop() if len(models) == 1 else None,
            config=config,
            slots=slots,
            pool=pool,
            trials=tuple(self.trial(trial, pool, slots, predicts) for trial in trials),
        )

    def allocations(
        self,
        trial: Any,
        pool: str,
        slots: int,
        predicts: bool,
    ) -> Iterator[Allocation]:
        """Yield the allocations of all tasks of a trial; `pool` is that of its experiment."""
        for task in trial.taskIds or [trial.taskId]:
            for a in self.ask("GetTask", taskId=task).task.allocations:
                if a.startTime in (None, a.endTime):
                    continue  # it only waited in the queue
                start = parse_time(a.startTime)
                end = self.end(a.endTime)
                nodes = self.machines_of(a.allocationId, pool, start, end)
                launches = self.lines(task, start, end, searchText=LAUNCH) if predicts else []
                yield Allocation(
                    id=a.allocationId,
                    start=start,
                    end=end,
                    pool=next(filter(None, nodes.values()), pool),
                    nodes=tuple(sorted(nodes)),
                    slots=slots,
                    owner=trial.experimentId,
                    exit=self.exit(task, a.allocationId, start, end) if a.endTime else "",
                    launched=parse_time(launches[0].timestamp) if launches else None,
                )

    def trial(self, trial: Any, pool: str, slots: int, predicts: bool) -> Trial:
        held = self.allocations(trial, pool, slots, predicts)
        stored = self.ask("GetTrialCheckpoints", id=trial.id, limit=0).checkpoints
        hparams = trial.hparams or {}
        batch = int(hparams.get("global_batch_size") or 0)
        reports = []
        for part in self.ask("GetTrainingMetrics", trialIds=[trial.id]):
            reports += part.metrics
        best = trial.bestValidation
        scores = {}
        if best:
            scores = {"steps": best.totalBatches, **(best.metrics.avgMetrics or {})}
        steps = trial.totalBatchesProcessed or 0
        return Trial(
            id=trial.id,
            state=trial.state.value,
            allocations=tuple(sorted(held, key=lambda a: a.start)),
            checkpoints=tuple(parse_time(c.reportTime) for c in stored if c.reportTime),
            windows=steps * batch if batch else scores.get("total") or 0,
            reports=tuple(_timed_reports(reports, batch)),
            scores=scores,
            restarts=trial.restarts,
            hparams=hparams,
            steps=steps,
        )


def _check_name(flag: str, name: str, names: Iterable[str]) -> None:
    """Raise UserError with the names that there are unless `name` is one of them."""
    if name not in names:
        raise UserError(f"{flag} {name}: the master has none; it has {', '.join(sorted(names))}")


def _slotless_pools(records: Records, everywhere: bool) -> set[str]:
    """Return the pools in which a task without slots may pay for a machine: on machines of one's
    own it does so only if they have no slots.
    """
    held = {a.pool for a in records.allocations}
    bare = any(entry.kind == "agent" and entry.slots == 0 for entry in records.entries)
    names = set[str]()
    for name, pool in records.pools.items():
        if (bare or not pool.own) and (everywhere or name in held):
            names.add(name)
    return names


def _zulu(moment: Moment) -> str:
    """Return a time in the one form that the master's CSV takes."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _timed_reports(reports: Sequence[Any], batch: int) -> Iterator[TrainingReport]:
    before = 0
    for report in sorted(reports, key=lambda report: report.totalBatches):
        metrics = report.metrics.get("avg_metrics", report.metrics)
        speed = float(metrics.get("examples_per_second") or 0)
        tokens = float(metrics.get("tokens_per_second") or 0)
        windows = (report.totalBatches - before) * batch
        before = report.totalBatches
        if speed > 0 and windows > 0:
            seconds = min(windows / speed, 1e9)
            yield TrainingReport(parse_time(report.endTime), windows, seconds, tokens)


def _pool(pool: Any) -> RecordedPool:
    aws = pool.details.aws
    if aws is None:
        return RecordedPool("", False, own=True, name=pool.name)
    instance = aws.instanceType or pool.instanceType
    slots = pool.slotsPerAgent or 0
    return RecordedPool(
        instance=instance,
        spot=aws.spotEnabled,
        boot=pool.maxAgentStartingPeriod or PATIENCE,
        idle=pool.maxIdleAgentPeriod or PATIENCE,
        region=aws.region or "",
        slots=slots if slots > 0 else SLOTS.get(instance),
        name=pool.name,
    )
