"""Bill of each experiment, and of all else that a cluster's machines cost.

Every sum is one of `shares.segments`, so bills of any rows and spans add up to that of the whole.
Nothing is rounded before it is shown.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import pandas as pd

from reports.phases import OVER, PHASES, Story, work_entries
from reports.run import Bill, Run, Work, data_name, model_name
from reports.shares import NEVER_USED, NUMBERS, UNUSED, stories
from reports.usage import Allocation, Experiment, Records, Span, merge_spans, whole_span


def experiment_runs(records: Records, table: pd.DataFrame) -> list[Run]:
    """Return a run per experiment; with --since also rows of what else the machines cost.

    `table` is of `segments`.
    """
    stories_by_id = stories(records)
    runs = []
    for experiment in records.experiments:
        rows = table[table["owner"] == experiment.id]
        story = stories_by_id[experiment.id]
        runs.append(_experiment_run(experiment, records, rows, story))
    if records.since is None:
        return runs

    # All other owners: notebooks and other tasks, and machines that nobody held.
    others = table[~table["owner"].isin(stories_by_id)]
    for owner, rows in others.groupby("owner"):
        run = Run(
            name=owner,
            hardware=f"{rows['machine'].nunique()} x machine",
            slots=0,
            pool="",
            work=Work(windows=0, hours=rows["hours"].sum()),
            bill=_bill(rows),
        )
        runs.append(run)
    return runs


def trial_runs(records: Records, table: pd.DataFrame) -> list[Run]:
    """Return a run per trial; the bills of an experiment's trials add up to its own.

    Machines without a task are billed to an experiment: its trials share them by held hours, or
    evenly if it held none in the span.
    """
    stories_by_id = stories(records)
    runs = []
    for experiment in records.experiments:
        rows = table[table["owner"] == experiment.id]
        held = rows["allocation"] != ""
        for trial in experiment.trials:
            # What its own allocations held, and its share of the time that no task held.
            ids = [allocation.id for allocation in trial.allocations]
            own = rows[rows["allocation"].isin(ids)]
            unheld = rows[~held].copy()
            share = 1 / len(experiment.trials)
            if held.any():
                share = own["hours"].sum() / rows["hours"][held].sum()
            unheld[NUMBERS] *= share
            run = _experiment_run(
                experiment._replace(trials=(trial,)),
                records=records,
                rows=pd.concat([own, unheld]),
                story=stories_by_id[experiment.id],
            )
            name = run.name
            if len(experiment.trials) > 1:
                name = f"trial {trial.id} of {name}"
            run = run._replace(
                name=name,
                config={**experiment.config, "hyperparameters": trial.hparams},
                state=trial.state.removeprefix("STATE_").lower(),
                work=run.work._replace(steps=trial.steps, starts=len(ids)),
            )
            runs.append(run)
    return runs


def _experiment_run(
    experiment: Experiment,
    records: Records,
    rows: pd.DataFrame,
    story: Story,
) -> Run:
    """Return what an experiment did, cost and scored within the span of `records`."""
    held = [records.inside(allocation) for allocation in experiment.allocations]
    held = [allocation for allocation in held if allocation.start < allocation.end]
    pools = sorted({allocation.pool for allocation in held}) or [experiment.pool]
    pool = records.pools.get(pools[0])
    instance = pool.instance if pool else ""
    slots, machines = _peak(held)
    work = _work(experiment, records, held, story)

    # A search is as good as its best trial; of trials without F1 the first stands.
    all_scores = [trial.scores for trial in experiment.trials]
    best = max(all_scores, key=lambda scores: scores.get("f1", -1.0), default={})
    name = " ".join(experiment.name.split())  # on one line
    return Run(
        name=f"experiment {experiment.id}, {name}",
        hardware=f"{machines} x {instance or 'machine'}",
        slots=int(slots) or experiment.slots,
        pool=", ".join(pools),
        work=work,
        bill=_experiment_bill(rows, work, story),
        scores=best,
        model=model_name(experiment.model),
        data=data_name(experiment.config.get("data") or {}),
    )


def _peak(held: Sequence[Allocation]) -> tuple[float, int]:
    """Return most slots at once, and the machines that those were on."""
    # The number of slots grows only where an allocation starts.
    peaks = []
    for moment in {allocation.start for allocation in held}:
        slots = 0.0
        nodes = set[str]()
        for allocation in held:
            if allocation.start <= moment < allocation.end:
                slots += allocation.slots
                nodes.update(allocation.nodes or (allocation.id,))
        peaks.append((slots, len(nodes)))
    return max(peaks, default=(0.0, 1))


def _work(
    experiment: Experiment,
    records: Records,
    held: Sequence[Allocation],
    story: Story,
) -> Work:
    """Return windows, hours and throughput of the span; `held` are its allocations, cut."""
    # Windows of all trials, and those of reports, which alone have times.
    windows = 0.0
    reported_windows = 0.0
    training_seconds = 0.0
    tokens = 0.0
    for trial in experiment.trials:
        trial_windows = 0.0
        for report in trial.reports:
            if records.has(report.time):
                trial_windows += report.windows
                training_seconds += report.seconds
                tokens += report.seconds * report.tokens
        reported_windows += trial_windows
        # The master counts steps of a whole trial: cut by the span, its reports say how many.
        uncut = all(records.inside(allocation) == allocation for allocation in trial.allocations)
        windows += trial.windows if uncut or not trial.reports else trial_windows

    # Each machine that AWS took is a stop; any other stop is one, of however many machines.
    lost_seconds = 0.0
    stops = Counter[str]()
    for allocation in experiment.allocations:
        course = story.courses[allocation.id]
        lost_seconds += records.seconds(course.saved, allocation.end)
        if course.stop == "reclaimed" and records.has(allocation.end):
            stops["reclaimed"] += story.machines[allocation.id]
        elif course.stop and records.has(allocation.end):
            stops[course.stop] += 1
    training_seconds = training_seconds or _training_seconds(experiment, records, story)
    speed = (reported_windows or windows) / training_seconds if training_seconds else 0.0

    # Several trials at once: their throughputs add up.
    worked = sum(span.hours for span in merge_spans(held))
    held_hours = sum(Span(allocation.start, allocation.end).hours for allocation in held)
    trials_at_once = held_hours / (worked or 1.0)
    return Work(
        windows=windows,
        hours=whole_span(held).hours if held else 0.0,
        worked=worked,
        lost_hours=lost_seconds / 3600,
        throughput=speed * trials_at_once or None,
        stops=stops,
        tokens=tokens / (reported_windows or 1) or None,
        running=any(trial.state not in OVER for trial in experiment.trials),
    )


def _training_seconds(experiment: Experiment, records: Records, story: Story) -> float:
    """Return the seconds of training entries whose work was kept: for runs without reports."""
    entries = work_entries(experiment, records)
    seconds = 0.0
    for allocation, course in story.courses.items():
        for entry in entries.get(allocation, ()):
            if entry.kind == "training":
                start = max(entry.start, course.begun)
                seconds += records.seconds(start, min(entry.end, course.saved))
    return seconds


def _bill(rows: pd.DataFrame) -> Bill:
    """Return the dollars of what has a price, None if nothing has, and the hours of the rest."""
    priced = rows[rows["cost"].notna()]
    unpriced = rows["hours"][rows["cost"].isna()].sum()
    if priced.empty and unpriced:
        return Bill(unpriced=unpriced)
    parts = priced.groupby("phase")["cost"].sum()
    cost, low, high, on_demand = priced[NUMBERS[1:]].sum()
    return Bill(
        cost=cost,
        low=low,
        high=high,
        on_demand=on_demand,
        parts=dict(parts.reindex(PHASES, fill_value=0.0)),
        unpriced=unpriced,
    )


def _experiment_bill(rows: pd.DataFrame, work: Work, story: Story) -> Bill:
    """Return the dollars, and those of interruptions: lost work, start-up of work that had begun
    before, and machines without a task from a stop to the next start.
    """
    bill = _bill(rows)
    if bill.cost is None:
        return bill
    # Work that was lost, and the start-up of allocations that begin it again.
    restarts = [name for name, course in story.courses.items() if course.again]
    restarted = rows["allocation"].isin(restarts) & (rows["phase"] == "start-up")
    lost = rows["phase"] == "lost"
    stopped = rows["cost"][restarted | lost].sum()

    # Machines without a task, as far as they lie between a stop and the next start.
    held = rows["allocation"] != ""
    waiting = rows[~held]
    lengths = waiting["end"] - waiting["start"]
    for start, end in story.gaps:
        overlap = waiting["end"].clip(upper=end) - waiting["start"].clip(lower=start)
        share = (overlap / lengths).clip(lower=0.0)
        stopped += (share * waiting["cost"]).sum()
    rate = None  # as long as a part of the hours has no dollars
    if work.worked and not bill.unpriced:
        rate = rows["cost"][held].sum() / work.worked
    return bill._replace(rate=rate, stopped=stopped)


def totals(records: Records, table: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return machine-hours and dollars by user or label, then of what is no experiment's, or by
    month, and the sum of all rows. Without --since, a month has what is in the experiments' bills.
    """
    names = {}
    for experiment in records.experiments:
        names[experiment.id] = experiment.user
        if by == "label":
            names[experiment.id] = ", ".join(experiment.labels) or "(no label)"

    # Rows of experiments go to the name that they are totalled by, others to their owner.
    owner = table["owner"]
    named = owner.isin(names)
    unpriced = table["hours"].where(table["cost"].isna(), 0.0)
    table = table.assign(experiments=owner.where(named), unpriced=unpriced)
    key = owner.map(names)
    others = {UNUSED, NEVER_USED}
    if by == "month":
        key = table["month"]
        others = set()
        named |= records.since is not None  # the bill is of all that the machines cost
    key = key.where(named, owner)
    others |= {*key[~named]}
    order = [*sorted({*key[named]}), *sorted(others, reverse=True)]
    rows = _sums(table, key=key, names=order)
    all_rows = _sums(table, key=lambda _: "all", names=["all"])
    return pd.concat([rows, all_rows]).rename_axis(by).reset_index()


def _sums(
    table: pd.DataFrame, key: pd.Series | Callable[[int], str], names: list[str]
) -> pd.DataFrame:
    """Return a row per name: its experiments, its hours, those that are not in the dollars, and
    its dollars; nan if nothing has a price.

    `key` has or returns the name of each row of `table`.
    """
    groups = table.groupby(key)
    sums = groups[NUMBERS].sum(min_count=1)
    sums.insert(0, "experiments", groups["experiments"].nunique())
    sums.insert(2, "unpriced h", groups["unpriced"].sum())
    return sums.reindex(names, fill_value=0)


def notes(records: Records, table: pd.DataFrame) -> list[str]:
    """Return notes on the span, and on machine-hours that are in no experiment's bill, if any."""
    begin = ""
    if records.since is not None:
        begin = f"from {records.since:%Y-%m-%d %H:%M} "
    lines = [f"cluster: {begin}until {records.until:%Y-%m-%d %H:%M}; times and months are in UTC"]
    others = {
        UNUSED: "on the same machines are in no bill: nobody seen here used them",
        NEVER_USED: "of machines that nobody held, and of free slots of your own machines",
    }
    for owner, text in others.items():
        rows = table[table["owner"] == owner]
        hours = rows["hours"].sum()
        bill = _bill(rows)
        dollars = "no price" if bill.cost is None else f"${bill.cost:,.2f}"
        if bill.cost is not None and bill.unpriced:
            dollars += f", {bill.unpriced:.2f} of them without a price"
        if hours:
            lines.append(f"{hours:.2f} machine-hours ({dollars}) {text}")

    # Each kind of machine that has no price: its hours, and the cure.
    own = [pool.name for pool in records.pools.values() if not pool.instance]
    unpriced = table[table["cost"].isna()]
    for kind, hours in unpriced.groupby("kind")["hours"].sum().items():
        name = kind or "a pool that is gone"
        cure = "give a price file that has it (--prices), or take --live"
        if kind in own:
            name = f"pool {kind}"
            cure = f"it has no EC2 machines; give --price-pool {kind}=INSTANCE[:spot]"
        elif "that nobody held" in kind:
            cure = "the master does not record which"
        lines.append(f"{name}: no price; {hours:.2f} machine-hours are not in the dollars; {cure}")
    return lines
