"""Records of experiments on a Determined 0.38.1 master: allocations, machines, reports.

Queried with the client's own types (`determined.common.api.bindings`) and the login of `ask.py`.
Pitfalls of that release, seen in its responses: a task's allocations come without slots, exit
reason and time zone (they are UTC); a continued trial has another task; raw entries name the
experiment and not the trial, begin where the previous entry ended, and are not cut to the requested
span; metrics of steps that were rolled back are missing. Other users of a machine are in the CSV of
all allocations (`det resources allocations`), its machines in each task's accelerator data.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import pandas as pd
import requests
from determined.common.api import bindings, errors

from cluster.ask import Master
from detalbert.errors import UserError, first_line

T = TypeVar("T")
Moment: TypeAlias = pd.Timestamp
MALFORMED = KeyError, TypeError, ValueError, AttributeError  # of what no master would answer
ZULU = "%Y-%m-%dT%H:%M:%SZ"  # the one form of time that the master's CSV takes
DAY, LOOK_BACK = pd.Timedelta(days=1), pd.Timedelta(days=31)  # no machine is followed further
PATIENCE = 1200.0  # seconds to boot or idle; Determined's defaults where a pool says nothing
COLUMNS = {"allocation_id", "slots", "start_time", "end_time"}  # that the CSV cannot be without


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


class Report(NamedTuple):
    """One training report: total `steps` so far, at `speed` windows (and `tokens`) per second."""

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
    reports: tuple[Report, ...]  # in order of steps
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


class Pool(NamedTuple):
    """A resource pool; `instance` is empty if it is not on EC2. `boot`, `idle`: seconds."""

    instance: str
    spot: bool
    boot: float = PATIENCE
    idle: float = PATIENCE


class Records(NamedTuple):
    experiments: tuple[Experiment, ...]
    pools: Mapping[str, Pool]
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


def fetch(
    address: str | None, user: str | None, ids: Sequence[int], since: Moment | None, until: Moment
) -> Records:
    """Return records of the experiments `ids`, or all since `since`; UserError if unavailable."""
    master = Master.login(address, user)
    try:
        return _Asker(master.session, until).records(ids, since)
    except errors.ForbiddenException as error:
        raise UserError(f"{master.address}: this user may not see it: {error}") from None
    except (errors.APIException, errors.BadResponseException) as error:
        said = f"the master answered: {first_line(error)[:200]}"
        raise UserError(f"{master.address}: {said}") from None
    except (errors.BadRequestException, requests.RequestException, *MALFORMED) as error:
        said = f"not understood: {first_line(error)[:80]}"
        raise UserError(f"{master.address}: no Determined master answers there ({said})") from None


class _Asker:
    """A session with the master and the queries made through it."""

    refusals = (errors.APIException, errors.ForbiddenException, bindings.APIHttpError)

    def __init__(self, session: Any, until: Moment) -> None:
        self.session, self.until, self.notes = session, until, list[str]()

    def ask(self, name: str, **about: Any) -> Any:
        return getattr(bindings, f"get_{name}")(self.session, **about)

    def unless_refused(self, said: str, call: Callable[[], T], otherwise: T) -> T:
        """Return `call()`; if the user lacks permission, note `said` and return `otherwise`."""
        try:
            return call()
        except self.refusals:
            self.notes.append(said)
            return otherwise

    def records(self, ids: Sequence[int], since: Moment | None) -> Records:
        rows = list(self.csv_rows(since)) if since is not None else []
        held = {int(row.get("experiment_id") or 0) for row in rows if float(row["slots"] or 0)}
        seen = sorted(held - {0, *ids})
        named = [self.experiment(number) for number in dict.fromkeys(ids)]
        named += [self.experiment(number, must=False) for number in seen]
        experiments = tuple(experiment for experiment in named if experiment)
        pools = {p.name: _pool(p) for p in self.ask("GetResourcePools").resourcePools or []}
        found = Records(experiments, pools, self.until, notes=self.notes)
        if not found.allocations:
            return found
        start = min(a.start for a in found.allocations)
        nodes = {node for a in found.allocations for node in a.nodes}
        # Machines boot before they are used.
        entries = tuple(self.entries(start - DAY))
        lives = [e.start for e in entries if e.kind == "instance" and e.name in nodes]
        back = max(min([start, *lives]), start - LOOK_BACK)
        said = "who else held the machines is not seen: no CSV of all allocations"
        if lives:
            rows = self.unless_refused(said, lambda: list(self.csv_rows(back)), [])
        others = tuple(self.others(rows if lives else [], {e.id for e in experiments}, nodes))
        return found._replace(entries=entries, others=others)

    def entries(self, since: Moment) -> Iterator[Entry]:
        span = {"timestampAfter": f"{since:{ZULU}}", "timestampBefore": f"{self.until:{ZULU}}"}
        said = "the master does not show this user its allocation records: "
        said += "boot and idle time are not priced"
        ask: Callable[[], Any] = lambda: self.ask("ResourceAllocationRaw", **span)  # noqa: E731
        found = self.unless_refused(said, ask, None)
        for e in (found and found.resourceEntries) or []:
            times = parse_time(e.startTime), self.end(e.endTime)
            yield Entry(e.kind or "", e.experimentId or 0, e.username or "", *times)

    def csv_rows(self, since: Moment) -> Iterator[dict[str, str]]:
        """Yield all allocations of the cluster: columns as in Determined's internal/core.go."""
        span = {"timestamp_after": f"{since:{ZULU}}", "timestamp_before": f"{self.until:{ZULU}}"}
        answer = self.session.get("resources/allocation/allocations-csv", params=span)
        found = csv.DictReader(answer.text.splitlines())
        if not set(found.fieldnames or ()) >= COLUMNS:
            raise ValueError("the CSV of allocations has other columns")
        yield from found

    def others(
        self, rows: Iterable[dict[str, str]], named: set[int], nodes: set[str]
    ) -> Iterator[Allocation]:
        """Yield the allocations of other tasks on `nodes`."""
        hidden, tasks = 0, dict[str, Any]()
        for row in rows:
            number, slots = int(row.get("experiment_id") or 0), float(row["slots"] or 0)
            if number in named or not slots or not row["start_time"]:
                continue
            task = row["allocation_id"].rpartition(".")[0]
            try:
                machines = tasks[task] = tasks.get(task) or self.machines(task)
            except self.refusals:
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
        found: dict[str, dict[str, str]] = {}
        for entry in self.ask("GetTaskAcceleratorData", taskId=task).acceleratorData:
            if entry.allocationId and entry.nodeName:
                mine = found.setdefault(entry.allocationId, {})
                mine[entry.nodeName] = entry.resourcePool or ""
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
        reports = sorted((_report(r) for p in parts for r in p.metrics), key=lambda r: r.steps)
        best = trial.bestValidation
        saved = tuple(parse_time(c.reportTime) for c in stored if c.reportTime)
        held.sort(key=lambda a: a.start)
        scores = dict(best.metrics.avgMetrics or {}) if best else {}
        seen = tuple(held), saved, trial.totalBatchesProcessed, tuple(reports), scores
        return Trial(trial.id, trial.state.value, *seen)


def _report(report: Any) -> Report:
    metrics = report.metrics.get("avg_metrics", report.metrics)
    rates = (float(metrics.get(f"{unit}_per_second") or 0) for unit in ("examples", "tokens"))
    return Report(parse_time(report.endTime), report.totalBatches, *rates)


def _pool(pool: Any) -> Pool:
    if (aws := pool.details.aws) is None:
        return Pool("", False)
    times = (pool.maxAgentStartingPeriod or PATIENCE, pool.maxIdleAgentPeriod or PATIENCE)
    return Pool(aws.instanceType or pool.instanceType, aws.spotEnabled, *times)
