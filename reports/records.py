"""Records of experiments on a Determined master: allocations, machines, reports.

A master's answers (queries.py) become the plain values of usage.py here, once: what follows, who
pays for what, needs neither a master nor its types.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
from determined.common.api import errors

from cluster.configs.ask import Master, reaching
from cluster.configs.expconf import runs
from cluster.facts.machines import SLOTS
from detalbert.errors import UserError
from reports.queries import Queries, Row, has_run, parse_time
from reports.run import trained_model
from reports.usage import (
    PATIENCE,
    Allocation,
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

DAY = pd.Timedelta(days=1)
LOOK_BACK = pd.Timedelta(days=31)  # no machine is followed further


def fetch_records(selection: Selection) -> Records | None:
    """Return what is selected, None if nothing is; Unavailable if the master does not answer."""
    names_experiments = selection.experiment or selection.workspace or selection.project
    if not names_experiments and selection.since is None:
        return None
    # What runs has cost nothing beyond this moment: no span goes further.
    now = pd.Timestamp.now("UTC")
    since = selection.since
    until = min(selection.until or now, now)
    if since is not None and since >= now:
        raise UserError("in the future", key=f"--since {since}", cure="give a time that has passed")
    if since is not None and since >= until:
        raise UserError(f"not before --until ({until})", key=f"--since {since}")
    master = Master.login(selection.master, selection.user)
    with reaching(
        master.address,
        problem=f"the records of {master.address} cannot be read",
        cure="use a Determined master and a user who may see them",
    ):
        queries = Queries(master.session, now=now)
        if selection.until is not None and selection.until > now:
            queries.notes.append(f"--until {selection.until} is in the future: the bill ends now")
        return _Reader(queries, since, until).records(selection)


class _Reader:
    """Makes records of a master's answers.

    Args:
        since: begin of the span, of the whole cluster; None: of named experiments alone.
        until: end of the span.
    """

    def __init__(self, queries: Queries, since: Moment | None, until: Moment) -> None:
        self.queries = queries
        self.since = since
        self.until = until

    def records(self, selection: Selection) -> Records:
        """Return the records of the named experiments, and of all that ran since `since`."""
        # Named experiments come first, in their order, each once.
        ids = dict.fromkeys(selection.experiment)
        ids |= dict.fromkeys(self.experiments_in(selection.workspace, selection.project))
        experiments = [self.experiment(number) for number in ids]

        # Then all others that ran in the span; those that were deleted since are None.
        ran = set()
        if self.since is not None:
            for row in self.queries.csv_rows(self.since, self.until):
                if has_run(row):
                    ran.add(int(row.get("experiment_id") or 0))  # 0: of another task
        for number in sorted(ran - {0, *ids}):
            experiments.append(self.experiment(number, must=False))
        pools = self.queries.ask("GetResourcePools").resourcePools or []
        records = Records(
            experiments=tuple(item for item in experiments if item is not None),
            pools={pool.name: _pool(pool) for pool in pools},
            until=self.until,
            notes=self.queries.notes,
            since=self.since,
            now=self.queries.now,
        )
        if self.since is None and not records.allocations:
            return records
        return self.with_machines(records)

    def experiments_in(self, workspace: str | None, project: str | None) -> list[int]:
        """Return the experiments of a workspace, of a project, or of a project in a workspace."""
        if not (workspace or project):
            return []
        # Workspace 0 stands for all of them, and a limit of 0 or -1 for no limit.
        projects = self.queries.ask("GetWorkspaceProjects", id=0, limit=0).projects
        # Names become ids of projects; the same project name may be in several workspaces.
        if workspace:
            page = self.queries.ask("GetWorkspaces", limit=0)
            workspaces = {listed.name: listed.id for listed in page.workspaces}
            _check_name("--workspace", workspace, workspaces)
            projects = [
                listed for listed in projects if listed.workspaceId == workspaces[workspace]
            ]
        if project:
            _check_name("--project", project, [listed.name for listed in projects])
            projects = [listed for listed in projects if listed.name == project]
        ids = []
        for listed in projects:
            page = self.queries.ask("GetExperiments", projectId=listed.id, limit=-1)
            ids += [experiment.id for experiment in page.experiments]
        return sorted(ids)

    def with_machines(self, records: Records) -> Records:
        """Return the records with all that happened on their machines, as far as it is seen."""
        held = records.allocations
        requested = Span(self.since or held[0].start, self.until)
        start, end = whole_span([requested, *held])
        with self.queries.noting(
            "the master does not show this user its allocation records: boot and idle time are "
            "not priced"
        ):
            # Machines boot before they are held, and idle after it.
            entries = self.queries.entries(start - DAY, end + DAY)
            records = records._replace(entries=tuple(entries))

        # The lives of the machines: of all with --since, else of those that were held.
        nodes = set[str]()
        for allocation in held:
            nodes.update(allocation.nodes)
        lives = []
        for name, life in records.lives().items():
            if self.since or name in nodes:
                lives.append(life)
        if self.since:
            for stretches in records.connected().values():
                lives += stretches

        # Who else held them, for as long as they lived: boot and idle time is shared with these.
        if lives or self.since:
            first, last = whole_span([Span(start, self.until), *lives])
            with self.queries.noting(
                "who else held the machines is not seen: no CSV of all allocations"
            ):
                rows = self.queries.csv_rows(
                    since=max(first, start - LOOK_BACK),
                    until=min(last, self.until + LOOK_BACK),
                )
                others = self.others(rows, records, nodes=None if self.since else nodes)
                records = records._replace(others=tuple(others))
        return records

    def others(
        self,
        rows: Sequence[Row],
        records: Records,
        nodes: set[str] | None,
    ) -> Iterator[Allocation]:
        """Yield the allocations of other tasks than those of `records` on `nodes`; None: on any
        machine. Those without slots only where they may have a machine for themselves.
        """
        # Tasks whose machines the user may not see are counted, and a note says how many.
        ids = [experiment.id for experiment in records.experiments]
        slotless_pools = _slotless_pools(records, everywhere=nodes is None)
        hidden = 0
        for row in rows:
            number = int(row.get("experiment_id") or 0)
            slots = float(row["slots"] or 0)
            if number in ids or not has_run(row):
                continue
            if not slots and row.get("resource_pool") not in slotless_pools:
                continue
            start = parse_time(row["start_time"])
            end = self.queries.end(row["end_time"])
            pool = row.get("resource_pool") or ""
            machines = self.queries.machines_of(row["allocation_id"], pool, start, end)
            if slots and not machines:
                hidden += 1
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
            self.queries.notes.append(
                f"where {hidden} allocations of other tasks ran could not be seen: boot and idle "
                "time is shared without them"
            )

    def experiment(self, number: int, must: bool = True) -> Experiment | None:
        """Return an experiment; None if it was deleted. Raises UserError instead if `must`."""
        try:
            experiment = self.queries.ask("GetExperiment", experimentId=number).experiment
        except errors.NotFoundException:
            if not must:
                return None
            raise UserError(
                "the master has none", key=f"--experiment {number}", cure="see det e list"
            ) from None
        config = experiment.config or {}
        pool = experiment.resourcePool or ""
        slots = (config.get("resources") or {}).get("slots_per_trial")
        slots = 1 if slots is None else int(slots)
        trials = self.queries.ask("GetExperimentTrials", experimentId=number, limit=0).trials
        # A search over models has no one model.
        models = {trained_model(trial.hparams or {}) for trial in trials}
        predicts = runs(config, "predict.py")
        return Experiment(
            id=experiment.id,
            name=experiment.name,
            user=experiment.username,
            labels=tuple(sorted(experiment.labels or ())),
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
            for allocation in self.queries.ask("GetTask", taskId=task).task.allocations:
                if allocation.startTime in (None, allocation.endTime):
                    continue  # it only waited in the queue
                name = allocation.allocationId
                start = parse_time(allocation.startTime)
                end = self.queries.end(allocation.endTime)
                nodes = self.queries.machines_of(name, pool, start, end)
                pools = [node_pool for node_pool in nodes.values() if node_pool]
                launched = self.queries.launched(task, start, end) if predicts else None
                reason = ""
                if allocation.endTime:
                    reason = self.queries.exit(task, name, start, end)
                yield Allocation(
                    id=name,
                    start=start,
                    end=end,
                    pool=pools[0] if pools else pool,
                    nodes=tuple(sorted(nodes)),
                    slots=slots,
                    owner=trial.experimentId,
                    exit=reason,
                    launched=launched,
                )

    def trial(self, trial: Any, pool: str, slots: int, predicts: bool) -> Trial:
        """Return a trial of the master, its allocations in order of start."""
        allocations = self.allocations(trial, pool, slots, predicts)
        checkpoints = self.queries.ask("GetTrialCheckpoints", id=trial.id, limit=0).checkpoints
        hparams = trial.hparams or {}
        batch = int(hparams.get("global_batch_size") or 0)
        reports = []
        for page in self.queries.ask("GetTrainingMetrics", trialIds=[trial.id]):
            reports += page.metrics

        # Scores of the best validation, and its step.
        best = trial.bestValidation
        scores = {}
        if best:
            scores = {"steps": best.totalBatches, **(best.metrics.avgMetrics or {})}

        # A prediction has no batch: its metric `total` counts the questions.
        steps = trial.totalBatchesProcessed or 0
        windows = steps * batch if batch else scores.get("total") or 0
        return Trial(
            id=trial.id,
            state=trial.state.value,
            allocations=tuple(sorted(allocations, key=lambda allocation: allocation.start)),
            checkpoints=tuple(parse_time(c.reportTime) for c in checkpoints if c.reportTime),
            windows=windows,
            reports=tuple(_timed_reports(reports, batch)),
            scores=scores,
            restarts=trial.restarts,
            hparams=hparams,
            steps=steps,
        )


def _check_name(flag: str, name: str, names: Iterable[str]) -> None:
    """Raise UserError with the names that there are unless `name` is one of them."""
    if name not in names:
        raise UserError(
            "the master has none",
            key=f"{flag} {name}",
            cure=f"it has {', '.join(sorted(names))}",
        )


def _slotless_pools(records: Records, everywhere: bool) -> set[str]:
    """Return the pools in which a task without slots may pay for a machine: on machines of one's
    own it does so only if they have no slots.
    """
    held_pools = {allocation.pool for allocation in records.allocations}
    has_slotless_agents = any(
        entry.kind == "agent" and entry.slots == 0 for entry in records.entries
    )
    names = set[str]()
    for name, pool in records.pools.items():
        may_pay = has_slotless_agents or not pool.own
        if may_pay and (everywhere or name in held_pools):
            names.add(name)
    return names


def _timed_reports(reports: Sequence[Any], batch: int) -> Iterator[TrainingReport]:
    """Yield those reports of a trial that have a speed, with the windows since the one before."""
    steps_before = 0
    for report in sorted(reports, key=lambda report: report.totalBatches):
        metrics = report.metrics.get("avg_metrics", report.metrics)
        speed = float(metrics.get("examples_per_second") or 0)
        tokens = float(metrics.get("tokens_per_second") or 0)
        windows = (report.totalBatches - steps_before) * batch
        steps_before = report.totalBatches
        if speed > 0 and windows > 0:
            yield TrainingReport(
                time=parse_time(report.endTime),
                windows=windows,
                seconds=min(windows / speed, 1e9),
                tokens=tokens,
            )


def _pool(pool: Any) -> RecordedPool:
    """Return a pool of the master's answer."""
    aws = pool.details.aws
    if aws is None:
        return RecordedPool(instance="", spot=False, own=True, name=pool.name)
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
