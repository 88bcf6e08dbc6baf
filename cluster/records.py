"""Records of experiments on a Determined 0.38.1 master: allocations, machines, reports.

Queried with the client's own types (`determined.common.api.bindings`) and the login of `ask.py`.
Pitfalls of that release: allocations of a task have no slots, exit reason and time zone (UTC); a
continued trial has another task; raw entries name the experiment and not the trial, begin where the
previous one ended, and are not cut to the requested span; metrics of steps that were rolled back
are missing. Who else used a machine is in the CSV of `det resources allocations`.
"""

import argparse
import contextlib
import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pandas as pd
from determined.common.api import bindings, errors

from cluster.ask import Master, reaching
from detalbert.errors import UserError

Moment: TypeAlias = pd.Timestamp
REFUSED = errors.APIException, errors.ForbiddenException, bindings.APIHttpError
ZULU = "%Y-%m-%dT%H:%M:%SZ"  # the one form of time that the master's CSV takes
DAY, LOOK_BACK = pd.Timedelta(days=1), pd.Timedelta(days=31)  # no machine is followed further
PATIENCE = 1200.0  # seconds to boot or idle; Determined's defaults where a pool says nothing


class Allocation(NamedTuple):
    """One start of a task: `slots` on `nodes` in all, held from `start` to `end`."""

    id: str
    start: Moment
    end: Moment
    pool: str
    nodes: tuple[str, ...]  # agent ids, which are EC2 instance ids where Determined started them
    slots: float = 1
    owner: int | str = 0  # an experiment, or kind and user of a task that is none

    @property
    def task(self) -> str:
        return self.id.rpartition(".")[0]

    @property
    def slots_each(self) -> float:
        """Slots on one machine."""
        return self.slots / max(len(self.nodes), 1)


class TrainingReport(NamedTuple):
    """`steps` since the report before, at `speed` windows (and `tokens`) per second."""

    time: Moment
    steps: int
    speed: float
    tokens: float


class Trial(NamedTuple):
    id: int
    state: str
    allocations: tuple[Allocation, ...]  # in order of start
    checkpoints: tuple[Moment, ...]
    steps: int
    reports: tuple[TrainingReport, ...]  # those that have a speed, in order
    scores: Mapping[str, float]


class Experiment(NamedTuple):
    id: int
    name: str
    user: str
    labels: tuple[str, ...]
    model: str | None
    data: Mapping[str, Any]
    slots: int  # per trial
    batch: int
    pool: str
    trials: tuple[Trial, ...]

    @property
    def allocations(self) -> list[Allocation]:
        return [allocation for trial in self.trials for allocation in trial.allocations]


class Entry(NamedTuple):
    """A raw entry: one workload of an experiment, or the life of an agent or an instance."""

    kind: str
    experiment: int
    name: str  # user, agent id or instance id
    start: Moment
    end: Moment


class RecordedPool(NamedTuple):
    """A resource pool as the master describes it."""

    instance: str  # empty if it is not on EC2
    spot: bool
    boot: float = PATIENCE
    idle: float = PATIENCE


class Records(NamedTuple):
    experiments: tuple[Experiment, ...]
    pools: Mapping[str, RecordedPool]
    until: Moment  # "now": the end of what still runs
    entries: tuple[Entry, ...] = ()
    others: tuple[Allocation, ...] = ()  # on the same machines, of tasks that are not named
    notes: Sequence[str] = ()

    @property
    def allocations(self) -> list[Allocation]:
        return [a for experiment in self.experiments for a in experiment.allocations]

    @property
    def lives(self) -> dict[str, Entry]:
        """Entries of the machines whose launch the master recorded, by name."""
        return {entry.name: entry for entry in self.entries if entry.kind == "instance"}


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
    until = args.until or pd.Timestamp.now("UTC")
    if args.since is not None and args.since >= until:
        raise UserError(f"--since {args.since}: not before --until ({until})")
    master = Master.login(args.master, args.user)
    said = f"the records of {master.address} cannot be read"
    with reaching(master.address, said, "use a Determined master and a user who may see them"):
        return _Queries(master.session, until).records(args.experiment, args.since)


class _Queries:
    """A session with the master and the queries made through it."""

    def __init__(self, session: Any, until: Moment) -> None:
        self.session, self.until, self.notes = session, until, list[str]()

    def ask(self, name: str, **about: Any) -> Any:
        return getattr(bindings, f"get_{name}")(self.session, **about)

    @contextlib.contextmanager
    def noting(self, said: str) -> Iterator[None]:
        """End the block and note `said` if the user lacks the permission for a query in it."""
        try:
            yield
        except REFUSED:
            self.notes.append(said)

    def records(self, ids: Sequence[int], since: Moment | None) -> Records:
        rows = [] if since is None else self.csv_rows(since)
        held = {int(row.get("experiment_id") or 0) for row in rows if float(row["slots"] or 0)}
        named = [self.experiment(number) for number in dict.fromkeys(ids)]
        named += [self.experiment(number, must=False) for number in sorted(held - {0, *ids})]
        experiments = tuple(experiment for experiment in named if experiment)
        pools = {p.name: _pool(p) for p in self.ask("GetResourcePools").resourcePools or []}
        found = Records(experiments, pools, self.until, notes=self.notes)
        if not found.allocations:
            return found
        start = min(a.start for a in found.allocations)
        nodes = {node for a in found.allocations for node in a.nodes}
        said = "the master does not show this user its allocation records: "
        with self.noting(said + "boot and idle time are not priced"):
            found = found._replace(entries=tuple(self.entries(start - DAY)))  # they boot first
        lives = [e.start for e in found.entries if e.kind == "instance" and e.name in nodes]
        if lives:
            back = max(min([start, *lives]), start - LOOK_BACK)
            with self.noting("who else held the machines is not seen: no CSV of all allocations"):
                others = self.others(self.csv_rows(back), {e.id for e in experiments}, nodes)
                found = found._replace(others=tuple(others))
        return found

    def entries(self, since: Moment) -> Iterator[Entry]:
        span = {"timestampAfter": f"{since:{ZULU}}", "timestampBefore": f"{self.until:{ZULU}}"}
        for e in self.ask("ResourceAllocationRaw", **span).resourceEntries or []:
            times = parse_time(e.startTime), self.end(e.endTime)
            yield Entry(e.kind or "", e.experimentId or 0, e.username or "", *times)

    def csv_rows(self, since: Moment) -> list[dict[str, str]]:
        """Return all allocations of the cluster: columns as in Determined's internal/core.go."""
        span = {"timestamp_after": f"{since:{ZULU}}", "timestamp_before": f"{self.until:{ZULU}}"}
        text = self.session.get("resources/allocation/allocations-csv", params=span).text
        found = csv.DictReader(text.splitlines())
        if not {"allocation_id", "slots", "start_time", "end_time"} <= set(found.fieldnames or ()):
            raise ValueError("the CSV of allocations has other columns")
        return list(found)

    def others(self, rows: list[Any], named: set[int], nodes: set[str]) -> Iterator[Allocation]:
        """Yield the allocations of other tasks on `nodes`."""
        hidden, tasks = 0, dict[str, Any]()
        for row in rows:
            number, slots = int(row.get("experiment_id") or 0), float(row["slots"] or 0)
            if number in named or not slots or not row["start_time"]:
                continue
            task = row["allocation_id"].rpartition(".")[0]
            try:
                machines = tasks[task] = tasks.get(task) or self.machines(task)
            except REFUSED:
                hidden += 1
                continue
            where = tuple(machines.get(row["allocation_id"], ()))
            if nodes & set(where):
                span = parse_time(row["start_time"]), self.end(row["end_time"])
                owner = number or f"{row.get('task_type')} of {row.get('username')}"
                yield Allocation(row["allocation_id"], *span, "", where, slots, owner)
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
        return min(parse_time(text), self.until) if text else self.until

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
        items = (config.get("hyperparameters") or {}).items()
        hparams = {k: v.get("val") if isinstance(v, dict) else v for k, v in items}
        trials = self.ask("GetExperimentTrials", experimentId=number, limit=0).trials
        who = found.id, found.name, found.username, tuple(sorted(found.labels or ()))
        what = hparams.get("model"), config.get("data") or {}, slots
        batch = int(hparams.get("global_batch_size") or 1)
        runs = tuple(self.trial(trial, pool, slots) for trial in trials)
        return Experiment(*who, *what, batch, pool, runs)

    def trial(self, trial: Any, pool: str, slots: int) -> Trial:
        held: list[Allocation] = []
        for task in trial.taskIds or [trial.taskId]:
            machines = self.machines(task)
            for a in self.ask("GetTask", taskId=task).task.allocations:
                if a.startTime is None or parse_time(a.startTime) >= self.until:
                    continue  # it is in the queue and holds nothing, or is not of this span
                where = machines.get(a.allocationId, {})
                name = next((name for name in where.values() if name), pool)
                span = parse_time(a.startTime), self.end(a.endTime)
                facts: tuple[Any, ...] = name, tuple(sorted(where)), slots, trial.experimentId
                held.append(Allocation(a.allocationId, *span, *facts))
        stored = self.ask("GetTrialCheckpoints", id=trial.id, limit=0).checkpoints
        parts = self.ask("GetTrainingMetrics", trialIds=[trial.id])
        reports = tuple(_timed_reports([r for part in parts for r in part.metrics]))
        saved = tuple(parse_time(c.reportTime) for c in stored if c.reportTime)
        held.sort(key=lambda a: a.start)
        scores = dict(best.metrics.avgMetrics or {}) if (best := trial.bestValidation) else {}
        seen = tuple(held), saved, trial.totalBatchesProcessed, reports, scores
        return Trial(trial.id, trial.state.value, *seen)


def _timed_reports(reports: list[Any]) -> Iterator[TrainingReport]:
    before = 0
    for report in sorted(reports, key=lambda report: report.totalBatches):
        metrics = report.metrics.get("avg_metrics", report.metrics)
        speed, tokens = (float(metrics.get(f"{x}_per_second") or 0) for x in ("examples", "tokens"))
        steps, before = report.totalBatches - before, report.totalBatches
        if speed > 0 and steps > 0:
            yield TrainingReport(parse_time(report.endTime), steps, speed, tokens)


def _pool(pool: Any) -> RecordedPool:
    if (aws := pool.details.aws) is None:
        return RecordedPool("", False)
    times = (pool.maxAgentStartingPeriod or PATIENCE, pool.maxIdleAgentPeriod or PATIENCE)
    return RecordedPool(aws.instanceType or pool.instanceType, aws.spotEnabled, *times)
