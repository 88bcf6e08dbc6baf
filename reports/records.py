"""Records of experiments on a Determined 0.38.1 master: allocations, machines, reports.

Queried with the client's own types (`determined.common.api.bindings`) and the login of `ask.py`.
Pitfalls of that release: allocations of a task have no slots, exit reason and time zone (UTC); a
continued trial has another task; raw entries name the experiment and not the trial, begin where the
previous one ended, and are not cut to the requested span; metrics of steps that were rolled back
are missing. Who else used a machine is in the CSV of `det resources allocations`. A reclaimed
machine's `instance` entry stays open until the master restarts, its `agent` entry ends; a spot
request that waits has an `instance` entry as well; none names its pool. Notebooks and commands
report no accelerators, and the master's own log lines name no allocation.
"""

import argparse
import contextlib
import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

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
    TrainingReport,
    Trial,
)

REFUSED = errors.APIException, errors.ForbiddenException, bindings.APIHttpError
ZULU = "%Y-%m-%dT%H:%M:%SZ"  # the one form of time that the master's CSV takes
DAY, LOOK_BACK = pd.Timedelta(days=1), pd.Timedelta(days=31)  # no machine is followed further
STOP_REQUEST = "remaining resources (reason: "  # how the master logs it
LAUNCH = "determined: Launching: "  # logged as the script of a task starts


def parse_time(text: str) -> Moment:
    """Parse RFC 3339, with or without a zone, or Go's "2026-11-20 10:00:00.5 +0000 UTC"; in UTC."""
    moment = pd.Timestamp(str(text).removesuffix(" UTC"))
    if moment is pd.NaT or not re.match(r"\d{4}-\d\d-\d\d", str(text)):
        raise ValueError(f"not a time: {text!r}")
    return moment.tz_localize("UTC") if moment.tz is None else moment.tz_convert("UTC")


def fetch_experiments(args: argparse.Namespace) -> Records | None:
    """Return what --experiment and --since ask for, None without them; UserError if unavailable."""
    if not args.experiment and args.since is None:
        return None
    now = pd.Timestamp.now("UTC")
    until = args.until or now
    if args.since is not None and args.since >= until:
        raise UserError(f"--since {args.since}: not before --until ({until})")
    master = Master.login(args.master, args.user)
    said = f"the records of {master.address} cannot be read"
    with reaching(master.address, said, "use a Determined master and a user who may see them"):
        return _Queries(master.session, args.since, until, max(until, now)).records(args.experiment)


class _Queries:
    """A session with the master and the queries made through it."""

    def __init__(self, session: Any, since: Moment | None, until: Moment, now: Moment) -> None:
        self.session, self.since, self.until, self.now = session, since, until, now
        self.notes = list[str]()

    def ask(self, name: str, **about: Any) -> Any:
        return getattr(bindings, f"get_{name}")(self.session, **about)

    @contextlib.contextmanager
    def noting(self, said: str) -> Iterator[None]:
        """End the block and note `said` if the user lacks the permission for a query in it."""
        try:
            yield
        except REFUSED:
            self.notes.append(said)

    def records(self, ids: Sequence[int]) -> Records:
        """Return the records of the named experiments, and of all that ran since `since`."""
        since = self.since
        rows = [] if since is None else self.csv_rows(since, self.until)
        held = {int(row.get("experiment_id") or 0) for row in rows if float(row["slots"] or 0)}
        named = [self.experiment(number) for number in dict.fromkeys(ids)]
        named += [self.experiment(number, must=False) for number in sorted(held - {0, *ids})]
        experiments = tuple(experiment for experiment in named if experiment)
        pools = {p.name: _pool(p) for p in self.ask("GetResourcePools").resourcePools or []}
        facts: Any = {"notes": self.notes, "since": since, "now": self.now}
        found = Records(experiments, pools, self.until, **facts)
        starts = [a.start for a in found.allocations] + [t for t in (since,) if t]
        if not starts:
            return found
        said = "the master does not show this user its allocation records: "
        last = max([self.until, *(a.end for a in found.allocations)])
        with self.noting(said + "boot and idle time are not priced"):  # they boot first
            found = found._replace(entries=tuple(self.entries(min(starts) - DAY, last + DAY)))
        nodes = {node for a in found.allocations for node in a.nodes}
        lives = [x for name, x in found.lives().items() if since or name in nodes]
        if since:
            lives += [x for stretches in found.connected().values() for x in stretches]
        if lives or since:
            back = max(min([*starts, *(x.start for x in lives)]), min(starts) - LOOK_BACK)
            ahead = min(max([self.until, *(x.end for x in lives)]), self.until + LOOK_BACK)
            with self.noting("who else held the machines is not seen: no CSV of all allocations"):
                rows = self.csv_rows(back, ahead)
                others = self.others(rows, {e.id for e in experiments}, None if since else nodes)
                found = found._replace(others=tuple(others))
        return found

    def entries(self, since: Moment, until: Moment) -> Iterator[Entry]:
        span = {"timestampAfter": f"{since:{ZULU}}", "timestampBefore": f"{until:{ZULU}}"}
        for e in self.ask("ResourceAllocationRaw", **span).resourceEntries or []:
            times = parse_time(e.startTime), self.end(e.endTime)
            yield Entry(e.kind or "", e.experimentId or 0, e.username or "", *times, e.slots)

    def csv_rows(self, since: Moment, until: Moment) -> list[dict[str, str]]:
        """Return all allocations of the cluster: columns as in Determined's internal/core.go."""
        span = {"timestamp_after": f"{since:{ZULU}}", "timestamp_before": f"{until:{ZULU}}"}
        text = self.session.get("resources/allocation/allocations-csv", params=span).text
        found = csv.DictReader(text.splitlines())
        if not {"allocation_id", "slots", "start_time", "end_time"} <= set(found.fieldnames or ()):
            raise ValueError("the CSV of allocations has other columns")
        return list(found)

    def others(
        self, rows: list[Any], named: set[int], nodes: set[str] | None
    ) -> Iterator[Allocation]:
        """Yield the allocations of other tasks on `nodes`; None: on any machine."""
        hidden, tasks = 0, dict[str, Any]()
        for row in rows:
            number, slots = int(row.get("experiment_id") or 0), float(row["slots"] or 0)
            if number in named or not slots or not row["start_time"]:
                continue
            task = row["allocation_id"].rpartition(".")[0]
            try:
                machines = tasks[task] = tasks.get(task) or self.machines(task)
                where = machines.get(row["allocation_id"]) or {}
                if not where and not number:  # it reports no accelerators, but its agent logs
                    logs = self.ask("TaskLogs", taskId=task, sources=["agent"], limit=1)
                    where = {x.agentId: row["resource_pool"] for x in logs}
            except REFUSED:
                where = {}
            hidden += not where
            if where and (nodes is None or nodes & set(where)):
                span = parse_time(row["start_time"]), self.end(row["end_time"])
                owner = number or f"{(row.get('task_type') or 'task').lower()} of {row['username']}"
                pool = next(iter(where.values()))
                yield Allocation(row["allocation_id"], *span, pool, tuple(where), slots, owner)
        if hidden:
            said = f"where {hidden} allocations of other tasks ran could not be seen"
            self.notes.append(f"{said}: boot and idle time is shared without them")

    def machines(self, task: str) -> dict[str, dict[str, str]]:
        """Return the pool of each machine, by allocation and machine."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for entry in self.ask("GetTaskAcceleratorData", taskId=task).acceleratorData:
            if entry.allocationId and entry.nodeName:
                found[entry.allocationId][entry.nodeName] = entry.resourcePool or ""
        return found

    def end(self, text: str | None) -> Moment:
        return parse_time(text) if text else self.now

    def lines(self, task: str, text: str, start: Moment, end: Moment) -> list[Any]:
        """Return the log's lines with `text`, in order, of the allocation from `start` to `end`;
        they do not name it. Empty if this user may not see them."""
        with contextlib.suppress(*REFUSED):
            lines = self.ask("TaskLogs", taskId=task, searchText=text)
            return [line for line in lines if start <= parse_time(line.timestamp) <= end]
        return []

    def exit(self, task: str, allocation: str, start: Moment, end: Moment) -> str:
        """Return why an allocation ended: its exit reason, and from the log who requested it."""
        with contextlib.suppress(*REFUSED):
            said = self.ask("GetAllocation", allocationId=allocation).allocation.exitReason or ""
            asked = "preempted" in said or "killed" in said
            lines = self.lines(task, STOP_REQUEST, start, end) if asked else []
            return "; ".join([said, *(line.log for line in lines)])
        return ""

    def experiment(self, number: int, must: bool = True) -> Experiment | None:
        """Return an experiment; None if it was deleted. Raises UserError instead if `must`."""
        try:
            found = self.ask("GetExperiment", experimentId=number).experiment
        except errors.NotFoundException:
            if not must:
                return None
            raise UserError(f"--experiment {number}: the master has none; see det e list") from None
        config, pool = found.config or {}, found.resourcePool or ""
        slots = int((config.get("resources") or {}).get("slots_per_trial") or 1)
        trials = self.ask("GetExperimentTrials", experimentId=number, limit=0).trials
        models = {(trial.hparams or {}).get("model") for trial in trials}
        predicts = runs(config, "predict.py")
        return Experiment(
            id=found.id, name=found.name, user=found.username, slots=slots, pool=pool,
            labels=tuple(sorted(found.labels or ())), config=config,
            model=models.pop() if len(models) == 1 else None,
            trials=tuple(self.trial(trial, pool, slots, predicts) for trial in trials),
        )  # fmt: skip

    def trial(self, trial: Any, pool: str, slots: int, predicts: bool) -> Trial:
        held: list[Allocation] = []
        for task in trial.taskIds or [trial.taskId]:
            machines = self.machines(task)
            for a in self.ask("GetTask", taskId=task).task.allocations:
                if a.startTime is None:
                    continue  # it is in the queue and holds nothing
                where = machines.get(a.allocationId, {})
                span = parse_time(a.startTime), self.end(a.endTime)
                launches = self.lines(task, LAUNCH, *span) if predicts else []
                times = [parse_time(line.timestamp) for line in launches]
                held.append(Allocation(
                    a.allocationId, *span, slots=slots, owner=trial.experimentId,
                    pool=next(filter(None, where.values()), pool), nodes=tuple(sorted(where)),
                    exit=self.exit(task, a.allocationId, *span) if a.endTime else "",
                    launched=next(iter(times), None),
                ))  # fmt: skip
        stored = self.ask("GetTrialCheckpoints", id=trial.id, limit=0).checkpoints
        parts = self.ask("GetTrainingMetrics", trialIds=[trial.id])
        batch = int((trial.hparams or {}).get("global_batch_size") or 0)
        scores = dict(best.metrics.avgMetrics or {}) if (best := trial.bestValidation) else {}
        return Trial(
            id=trial.id, state=trial.state.value, restarts=trial.restarts, scores=scores,
            allocations=tuple(sorted(held, key=lambda a: a.start)),
            checkpoints=tuple(parse_time(c.reportTime) for c in stored if c.reportTime),
            windows=trial.totalBatchesProcessed * batch if batch else scores.get("total") or 0,
            reports=tuple(_timed_reports([r for part in parts for r in part.metrics], batch)),
        )  # fmt: skip


def _timed_reports(reports: list[Any], batch: int) -> Iterator[TrainingReport]:
    before = 0
    for report in sorted(reports, key=lambda report: report.totalBatches):
        metrics = report.metrics.get("avg_metrics", report.metrics)
        speed, tokens = (float(metrics.get(f"{x}_per_second") or 0) for x in ("examples", "tokens"))
        windows, before = (report.totalBatches - before) * batch, report.totalBatches
        if speed > 0 and windows > 0:
            seconds = min(windows / speed, 1e9)
            yield TrainingReport(parse_time(report.endTime), windows, seconds, tokens)


def _pool(pool: Any) -> RecordedPool:
    if (aws := pool.details.aws) is None:
        return RecordedPool("", False, own=True, name=pool.name)
    instance, slots = aws.instanceType or pool.instanceType, pool.slotsPerAgent or 0
    return RecordedPool(
        instance=instance,
        spot=aws.spotEnabled,
        boot=pool.maxAgentStartingPeriod or PATIENCE,
        idle=pool.maxIdleAgentPeriod or PATIENCE,
        region=aws.region or "",
        slots=slots if slots > 0 else SLOTS.get(instance),
        name=pool.name,
    )
