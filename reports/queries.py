"""Queries to a Determined 0.38.1 master about what ran: its answers become records, here alone.

Pitfalls of that release: the allocations of a task have neither slots nor an exit reason, and
their times no zone (UTC); a continued trial has a second task; the record of a machine that EC2
reclaims stays open until the master restarts, while its agent's record ends; machines name no
pool. A container names its machine when it has started; of one that never did, and of commands
and TensorBoards, only the agent's lines of the log name it.
"""

import argparse
import contextlib
import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from determined.common.api import bindings, errors
from pydantic import TypeAdapter

from cluster.master import HIDDEN, BoundedSession, login, reaching
from detalbert.errors import UserError
from reports.records import (
    SLACK,
    Allocation,
    MachineLife,
    Moment,
    Owner,
    RecordedPool,
    Records,
    TrainingReport,
    Trial,
)

DAY = pd.Timedelta(days=1)
SECOND = pd.Timedelta(seconds=1)
ZULU = "%Y-%m-%dT%H:%M:%SZ"  # the one form that the master's CSV takes
# After it the master gives up a machine on which no agent started.
GIVEN_UP = pd.Timedelta(minutes=25)
_FORM = TypeAdapter(Records, config={"arbitrary_types_allowed": True, "strict": True})
# Of the CSV of all allocations, as in Determined's internal/core.go.
CSV = "resources/allocation/allocations-csv"


def fetch_records(args: argparse.Namespace) -> Records | None:
    """Return what the flags select; None if they select nothing of a master.

    Raises:
        UserError: if the span is empty, or the master lacks what is named.
        Unavailable: if the master does not answer.
    """
    is_named = args.experiment or args.workspace or args.project
    if not is_named and args.since is None:
        return None
    # What still runs has cost nothing beyond this moment.
    now = pd.Timestamp.now("UTC")
    until = min(args.until or now, now)
    if args.since is not None and args.since >= until:
        raise UserError(
            f"not before the end of the span, {until}",
            key=f"--since {args.since}",
        )
    session = login(args.master, args.user)
    with reaching(
        session.master,
        problem=f"the records of {session.master} cannot be read",
        cure="use a Determined master and a user who may see them, or ask for a shorter span",
    ):
        reader = _Reader(session, now)
        ids = dict.fromkeys(args.experiment + reader.listed(args.workspace, args.project))
        records = reader.records(list(ids), since=args.since, until=until)
        return _FORM.validate_python(records)  # the client's bindings take any JSON


def parse_time(text: str) -> Moment:
    """Parse RFC 3339, with or without a zone, or Go's "2026-11-20 10:00:00.5 +0000 UTC"; in UTC."""
    return pd.to_datetime(text.removesuffix(" UTC"), utc=True)


class _Reader:
    """Reads records through a session; `now` is the end of what still runs."""

    def __init__(self, session: BoundedSession, now: Moment) -> None:
        self.session = session
        self.now = now

    def ask(self, name: str, **keys: object) -> Any:
        """Return the master's answer to `get_NAME` of the client's bindings."""
        return getattr(bindings, f"get_{name}")(self.session, **keys)

    def listed(self, workspace: str | None, project: str | None) -> list[int]:
        """Return the experiments of a workspace, of a project, or of a project in a workspace."""
        if not (workspace or project):
            return []
        ids = [
            experiment.id
            for experiment in self.ask("GetExperiments", limit=-1).experiments
            if workspace in (None, experiment.workspaceName)
            and project in (None, experiment.projectName)
        ]
        if not ids:
            raise UserError(
                "the master has no experiment there",
                key="--workspace, --project",
                cure="see det workspace list",
            )
        return ids

    def records(
        self,
        ids: Sequence[int],
        since: Moment | None,
        until: Moment,
    ) -> Records:
        """Return the experiments `ids`, or without any all that ran in the span, and who else used
        their machines.
        """
        trials = [trial for number in ids for trial in self.trials(number)]
        held = [allocation for trial in trials for allocation in trial.allocations]
        records = Records(
            trials=trials,
            pools=self.pools(),
            until=until,
            since=since,
            whole=not ids,
        )
        if ids and not held:
            return records
        start = min([allocation.start for allocation in held], default=since)
        end = max([allocation.end for allocation in held], default=until)
        # A machine boots before, and idles behind.
        first = f"{start - DAY:{ZULU}}"
        last = f"{end + DAY:{ZULU}}"
        rows = self.csv_rows(first, last)
        for number in sorted({row["experiment_id"] for row in rows if records.whole}):
            # Other tasks have none or 0, and some have been deleted.
            with contextlib.suppress(UserError):
                trials += self.trials(int(number or 0))

        # Of named experiments, only tasks in the same pools may have been on their machines.
        pools = {allocation.pool for allocation in held}
        experiments = {str(trial.owner.experiment) for trial in trials}
        for row in rows:
            is_near = records.whole or row.get("resource_pool", "") in {"", *pools}
            if is_near and row["experiment_id"] not in experiments:
                trials += self.other(row)
        raw = self.ask("ResourceAllocationRaw", timestampAfter=first, timestampBefore=last)
        entries = raw.resourceEntries or []
        _add_first_reports(trials, entries)
        return records._replace(trials=trials, machines=self.machines(entries))

    def other(self, row: Mapping[str, str]) -> Iterator[Trial]:
        """Yield an allocation of the CSV, of another task or of a deleted experiment. One without
        slots pays nothing; one on no machine is left out, as its machine would be paid twice.
        """
        owner = Owner(
            name=row["task_type"].lower(),
            user=row["username"],
            experiment=int(row["experiment_id"] or 0),
        )
        slots = float(row["slots"])
        if slots > 0:
            allocation = self.allocation(
                row["allocation_id"],
                times=(row["start_time"], row["end_time"]),
                pool=row.get("resource_pool", ""),
                slots=slots,
                owner=owner,
            )
            if allocation.nodes:
                yield Trial(owner, state="completed", allocations=[allocation])

    def trials(self, number: int) -> Iterator[Trial]:
        """Yield the trials of an experiment. Raises UserError if there is none of this number."""
        try:
            experiment = self.ask("GetExperiment", experimentId=number).experiment
        except errors.NotFoundException:
            raise UserError(
                "the master has none",
                key=f"--experiment {number}",
                cure="see det e list",
            ) from None
        for trial in self.ask("GetExperimentTrials", experimentId=number, limit=0).trials:
            owner = Owner(
                name=experiment.name,
                user=experiment.username,
                label=", ".join(experiment.labels or ()),
                experiment=number,
                trial=trial.id,
            )
            yield self.trial(trial, experiment, owner)

    def trial(self, trial: Any, experiment: Any, owner: Owner) -> Trial:
        """Return a trial of the master's answer, with what else is asked of it."""
        slots = experiment.config["resources"]["slots_per_trial"]
        allocations = []
        for task in trial.taskIds:
            for answer in self.ask("GetTask", taskId=task).task.allocations:
                if answer.startTime in (None, answer.endTime):
                    continue  # it only waited
                allocation = self.allocation(
                    answer.allocationId,
                    times=(answer.startTime, answer.endTime),
                    pool=experiment.resourcePool,
                    slots=slots,
                    owner=owner,
                )
                allocations.append(allocation)
        hparams = trial.hparams or {}
        reports = list(self.reports(trial.id, batch=hparams.get("global_batch_size")))
        checkpoints = self.ask("GetTrialCheckpoints", id=trial.id, limit=0).checkpoints
        windows = sum(report.windows for report in reports)
        seconds = sum(report.seconds for report in reports)
        best = trial.bestValidation
        run = {
            "config": {
                **experiment.config,
                "searcher": {**experiment.config["searcher"]},
                "hyperparameters": hparams,
            },
            "best": {"steps": best.totalBatches, **best.metrics.avgMetrics} if best else {},
            "last": {"steps": trial.totalBatchesProcessed},
            "machine": experiment.resourcePool,
            "slots": slots,
            "windows": windows,
            "throughput": {"examples_per_second": windows / seconds if seconds else None},
        }
        return Trial(
            owner=owner,
            state=trial.state.value.removeprefix("STATE_").lower(),
            allocations=sorted(allocations, key=lambda allocation: allocation.start),
            reports=reports,
            checkpoints=[parse_time(c.reportTime) for c in checkpoints if c.reportTime],
            run=run,
        )

    def allocation(
        self,
        name: str,
        times: tuple[str, str | None],
        pool: str,
        slots: float,
        owner: Owner,
    ) -> Allocation:
        """Return an allocation; its machines and exit reason are empty if they are hidden."""
        task, _, _ = name.rpartition(".")
        start = parse_time(times[0])
        end = self.end(times[1])
        nodes = set[str]()
        reason = None
        with contextlib.suppress(*HIDDEN):
            for entry in self.ask("GetTaskAcceleratorData", taskId=task).acceleratorData:
                if entry.allocationId == name and entry.nodeName:
                    nodes.add(entry.nodeName)
                    pool = entry.resourcePool or pool
            # An agent logs a moment before the master records the start.
            for line in self.ask("TaskLogs", taskId=task, sources=["agent"]) if not nodes else ():
                if line.agentId and start - SECOND <= parse_time(line.timestamp) <= end:
                    nodes.add(line.agentId)
            reason = self.ask("GetAllocation", allocationId=name).allocation.exitReason
        return Allocation(
            id=name,
            start=start,
            end=end,
            pool=pool,
            nodes=sorted(nodes),
            slots=slots,
            owner=owner,
            running=not times[1],
            exit=reason or "",
        )

    def reports(self, trial: int, batch: Any) -> Iterator[TrainingReport]:
        """Yield those reports of a trial that have a speed; `batch` are the windows of a step."""
        pages = self.ask("GetTrainingMetrics", trialIds=[trial])
        reports = [report for page in pages for report in page.metrics]
        steps_before = 0
        for report in sorted(reports, key=lambda report: report.totalBatches):
            metrics = report.metrics.get("avg_metrics", report.metrics)
            speed = metrics.get("examples_per_second")
            steps = report.totalBatches - steps_before
            steps_before = report.totalBatches
            try:
                windows = steps * batch
                seconds = windows / speed
            except (TypeError, ZeroDivisionError):
                continue  # it has no speed, or its trial no batch
            if seconds > 0:
                yield TrainingReport(parse_time(report.endTime), windows, seconds)

    def pools(self) -> dict[str, RecordedPool]:
        pools = {}
        for answer in self.ask("GetResourcePools").resourcePools:
            pool = RecordedPool(answer.name)
            aws = answer.details.aws
            if aws is not None:
                seconds = max(answer.maxAgentStartingPeriod, answer.maxIdleAgentPeriod)
                pool = pool._replace(
                    machine=f"{aws.instanceType}:spot" if aws.spotEnabled else aws.instanceType,
                    region=aws.region,
                    patience=pd.Timedelta(seconds=seconds) + SLACK,
                )
            pools[pool.name] = pool
        return pools

    def machines(self, entries: Sequence[Any]) -> list[MachineLife]:
        """Return the lives of the machines among the master's raw entries."""
        lives = [
            MachineLife(
                name=entry.username,
                start=parse_time(entry.startTime),
                end=self.end(entry.endTime),
                slots=entry.slots or 0,
                launched=entry.kind == "instance",
            )
            for entry in entries
            # A name that begins so is of a spot request that waits.
            if entry.kind in ("agent", "instance") and not entry.username.startswith("sir-")
        ]
        frame = pd.DataFrame(lives, columns=MachineLife._fields)
        agents = frame[~frame["launched"].astype(bool)]

        # A restart of the master splits the record of a machine that it launched. Of one that was
        # reclaimed, the agent's record alone has the end.
        spans = {"start": "min", "end": "max", "slots": "max", "launched": "all"}
        launched = frame.drop(agents.index).groupby("name", as_index=False).agg(spans)
        last_contact = launched["name"].map(agents.groupby("name")["end"].max())
        given_up = launched["end"].where(launched["end"] < self.now, launched["start"] + GIVEN_UP)
        last_contact = last_contact.fillna(given_up)
        launched["end"] = launched["end"].clip(upper=last_contact)
        own = agents[~agents["name"].isin(launched["name"])]
        rows = pd.concat([launched, own]).itertuples(index=False)
        return [MachineLife(*row) for row in rows]

    def csv_rows(self, first: str, last: str) -> list[Mapping[str, str]]:
        """Return the allocations of all tasks that held machines in a span."""
        span = {"timestamp_after": first, "timestamp_before": last}
        text = self.session.get(CSV, params=span).text
        rows = csv.DictReader(text.splitlines())
        (rows.fieldnames or []).index("start_time")  # raises ValueError without such a column
        # One that only waited has no start, or two times of the master's last heartbeat.
        return [row for row in rows if row["start_time"] not in ("", row["end_time"])]

    def end(self, text: str | None) -> Moment:
        """Return the end of a stretch of time; `now` if it has none yet."""
        return parse_time(text) if text else self.now


def _add_first_reports(trials: Sequence[Trial], entries: Sequence[Any]) -> None:
    """Append the first report of each allocation to its trial's reports, from the raw entries.

    The master hides the reports of an allocation that saved no step when a later one has taken the
    same steps; its raw entries still say when they were.
    """
    experiments = {trial.owner.experiment for trial in trials if trial.reports}
    # What a trial did, by its begin: the start of an allocation, or the end of what was before.
    spans = {
        parse_time(entry.startTime): (entry.kind, parse_time(entry.endTime))
        for entry in entries
        if entry.experimentId in experiments
    }
    for trial in trials:
        for allocation in trial.allocations if trial.reports else ():
            kind, end = "", allocation.start
            while kind != "training" and end in spans:
                kind, end = spans.pop(end)
            if kind == "training":
                # Until the next one it was as long, if there is one.
                _, later = spans.get(end, (kind, end))
                trial.reports.append(
                    TrainingReport(end, windows=0.0, seconds=(later - end) / SECOND)
                )
