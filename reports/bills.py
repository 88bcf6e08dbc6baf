"""Bill of each experiment, and of all else that a cluster's machines cost."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from reports.phases import OVER, PHASES, Story, story, work_entries
from reports.run import Run, data_name, model_name
from reports.shares import HOUR, NOBODY, NUMBERS, UNHELD, reclaimed
from reports.usage import Allocation, Experiment, Records, Trial


def experiment_runs(records: Records, table: pd.DataFrame) -> list[Run]:
    """Return a run per experiment; with --since also rows of what else the machines cost.

    `table` is of `segments`.
    """
    taken = reclaimed(records)
    owned = dict(list(table.groupby("owner")))
    runs = list[Run]()
    for experiment in records.experiments:
        became = story(experiment, records, taken)
        runs.append(_run(experiment, records, owned.pop(experiment.id, table[:0]), became))
    for owner, mine in owned.items() if records.since is not None else ():
        hardware = f"{mine['machine'].nunique()} x machine"
        about: Any = {"name": owner, "hardware": hardware, "pool": "", "slots": 0, **_sums(mine)}
        about |= {"parts": _parts(mine)} if "cost" in about else {}
        runs.append(Run(**about, hours=float(mine["hours"].sum()), windows=0.0))
    return runs


def _sums(mine: pd.DataFrame) -> dict[str, Any]:
    """Return the dollars of what has a price, None if nothing has, and the hours of the rest."""
    priced = mine["cost"].notna()
    unpriced = float(mine.loc[~priced, "hours"].sum())
    if not priced.any() and unpriced:
        return {"unpriced": unpriced}
    sums = {name.replace(" ", "_"): float(mine.loc[priced, name].sum()) for name in NUMBERS[1:]}
    return {"unpriced": unpriced, **sums}


def _run(experiment: Experiment, records: Records, mine: pd.DataFrame, became: Story) -> Run:
    trials = experiment.trials
    cut = [(a, *records.cut(a.start, a.end)) for a in experiment.allocations]
    held = [a._replace(start=start, end=end) for a, start, end in cut if start < end]
    known = {name: pool.instance for name, pool in records.pools.items()}
    names = sorted({a.pool for a in held}) or [experiment.pool]
    start = min((a.start for a in held), default=records.until)
    end = max((a.end for a in held), default=start)
    worked, slots, most = _clock(held)
    lost = sum(records.seconds(became.courses[a.id].saved, a.end) for a in experiment.allocations)
    windows = sum(_windows(trial, records) for trial in trials)
    reports = [r for trial in trials for r in trial.reports if records.has(r.time)]
    done, trained = sum(r.windows for r in reports), sum(r.seconds for r in reports)
    trained = trained or _training_seconds(experiment, records, became)
    speed = (done or windows) / trained if trained else 0.0
    at_once = sum((a.end - a.start) / HOUR for a in held) / (worked or 1.0)
    best = max((t.scores for t in trials), key=lambda scores: scores.get("f1", -1.0), default={})
    costs = _costs(mine, worked, became)
    kinds: Counter[str] = Counter()
    for stop in became.stops:
        kinds[stop.kind] += stop.machines if records.has(stop.end) else 0
    return Run(
        name=f"experiment {experiment.id}, {' '.join(experiment.name.split())}",
        hardware=f"{most} x {known.get(names[0]) or 'machine'}", pool=", ".join(names),
        slots=int(slots) or experiment.slots, throughput=speed * at_once or None,
        hours=(end - start) / HOUR, worked=worked, model=model_name(experiment.model),
        data=data_name(experiment.config.get("data") or {}), windows=windows,
        lost_hours=lost / 3600,
        tokens=sum(r.seconds * r.tokens for r in reports) / (done or 1) or None,
        exact=best.get("exact"), f1=best.get("f1"), stops=+kinds,
        running=any(trial.state not in OVER for trial in trials),
        **costs,
    )  # fmt: skip


def _windows(trial: Trial, records: Records) -> float:
    """Return the windows of the span: those of reports if it has a part of the trial only."""
    inside = [records.cut(a.start, a.end) == (a.start, a.end) for a in trial.allocations]
    if all(inside) or not trial.reports:
        return trial.windows
    return sum(report.windows for report in trial.reports if records.has(report.time))


def _training_seconds(experiment: Experiment, records: Records, became: Story) -> float:
    """Return the seconds of training entries whose work was kept: for runs without reports."""
    entries, seconds = work_entries(experiment, records), 0.0
    for allocation, course in became.courses.items():
        for entry in entries.get(allocation, ()):
            if entry.kind == "training":
                seconds += records.seconds(
                    max(entry.start, course.begun), min(entry.end, course.saved)
                )
    return seconds


def _parts(mine: pd.DataFrame) -> dict[str, float]:
    """Return the dollars of each phase."""
    return {phase: float(mine.loc[mine["phase"] == phase, "cost"].sum()) for phase in PHASES}


def _costs(mine: pd.DataFrame, worked: float, became: Story) -> dict[str, Any]:
    """Return the dollars, those of each phase, and those of interruptions: lost work, start-up of
    work that had begun before, and machines without a task from a stop to the next start.
    """
    sums = _sums(mine)
    if "cost" not in sums:
        return sums
    held = mine["allocation"] != ""
    again = {name for name, course in became.courses.items() if course.again}
    restarts = mine["allocation"].isin(again) & (mine["phase"] == "start-up")
    stopped = float(mine.loc[restarts | (mine["phase"] == "lost"), "cost"].sum())
    waiting = mine[~held & mine["cost"].notna()]
    for start, end, cost in zip(waiting["start"], waiting["end"], waiting["cost"], strict=True):
        for left, right in became.gaps:
            share = (min(end, right) - max(start, left)) / (end - start)
            stopped += float(cost) * max(share, 0.0)
    rate = float(mine.loc[held, "cost"].sum()) / worked if worked else None
    return {"parts": _parts(mine), "rate": rate, "stopped": stopped, **sums}


def _clock(held: Sequence[Allocation]) -> tuple[float, float, int]:
    """Return hours with machines, most slots at once, and the machines that those were on."""
    worked, widest = 0.0, (0.0, 1)
    for left, right in pairwise(sorted({time for a in held for time in (a.start, a.end)})):
        if now := [a for a in held if a.start <= left and right <= a.end]:
            worked += (right - left) / HOUR
            nodes = {node for a in now for node in a.nodes or (a.id,)}
            widest = max(widest, (sum(a.slots for a in now), len(nodes)))
    return worked, *widest


def totals(records: Records, table: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return machine-hours and dollars by user, label or month, then of what is no experiment's,
    and the sum of all rows.
    """
    labels = {e.id: ", ".join(e.labels) or "(no label)" for e in records.experiments}
    names = labels if by == "label" else {e.id: e.user for e in records.experiments}
    whose = table["owner"].map(names)
    known = whose.notna()
    key = (table["month"] if by == "month" else whose).where(known, table["owner"])
    others = sorted({NOBODY, UNHELD, *key[~known]}, reverse=True)
    rows = [(name, key == name) for name in (*sorted({*key[known]}), *others)]
    found = [
        [name, table["owner"][mine & known].nunique(), *_totals(table[mine])]
        for name, mine in (*rows, ("all", key.notna()))
    ]
    return pd.DataFrame(found, columns=[by, "experiments", *NUMBERS])


def _totals(rows: pd.DataFrame) -> list[float]:
    """Return the sums of hours and dollars; no number for dollars if nothing has a price."""
    return list(rows[NUMBERS].sum(min_count=min(len(rows), 1)))


def notes(records: Records, table: pd.DataFrame) -> list[str]:
    """Return notes on the span, and on machine-hours that are in no experiment's bill, if any."""
    begin = "" if records.since is None else f"from {records.since:%Y-%m-%d %H:%M} "
    found = [f"cluster: {begin}until {records.until:%Y-%m-%d %H:%M}; times and months are in UTC"]
    for name, said in (
        (NOBODY, "on the same machines are in no bill: nobody seen here used them"),
        (UNHELD, "of machines that nobody held, and of free slots of your own machines"),
    ):
        hours, cost = table.loc[table["owner"] == name, ["hours", "cost"]].sum()
        found += [f"{hours:.2f} machine-hours (${cost:,.2f}) {said}"] if hours else []
    return found + _unpriced(records, table[table["cost"].isna()])


def _unpriced(records: Records, rows: pd.DataFrame) -> list[str]:
    """Return a note on each kind of machine that has no price: its hours, and the cure."""
    own = {pool.name for pool in records.pools.values() if not pool.instance}
    lines = []
    for kind, hours in rows.groupby("kind")["hours"].sum().items():
        cure = "give a price file that has it (--prices), or take --live"
        if kind in own:
            cure = f"it has no EC2 machines; give --price-pool {kind}=INSTANCE[:spot]"
        if "that nobody held" in str(kind):
            cure = "the master does not record which"
        name = f"pool {kind}" if kind in own else kind or "a pool that is gone"
        lines.append(f"{name}: no price; {hours:.2f} machine-hours are not in the dollars; {cure}")
    return lines
