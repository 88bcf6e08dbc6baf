"""Bill of each experiment, and of all else that a cluster's machines cost."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from statistics import median
from typing import Any, NamedTuple

import pandas as pd

from cluster.usage import Allocation, Entry, Experiment, Moment, Records, Trial
from reports.run import Run, data_name, model_name
from reports.shares import HOUR, NOBODY, NUMBERS, UNHELD, machines

SAVED = pd.Timedelta(minutes=1)  # before its end: a trial that is paused saves and leaves
EXITS = {"failed": "failed", "crashed": "failed", "preempted by": "preempted"}  # else paused
PHASES = {"training": "training", "validation": "validation", "checkpointing": "checkpoints"}
OVER = {"STATE_ERROR": "failed", "STATE_CANCELED": "canceled", "STATE_COMPLETED": ""}


class Stop(NamedTuple):
    """The end of an allocation before the trial's; the work since `saved` was lost."""

    allocation: str
    kind: str
    saved: Moment
    end: Moment
    machines: int = 1  # that were reclaimed


def stops(trial: Trial, records: Records, reclaimed: Mapping[str, int]) -> list[Stop]:
    """Return the ends of allocations before the trial's, and their causes.

    `reclaimed` counts the machines that were reclaimed, by allocation. If the master recorded no
    cause, `restarts` ends are failures: those that lost most, and each that had not just saved.
    """
    found, unknown = list[Stop](), list[Stop]()
    for a, after in zip_longest(trial.allocations, trial.allocations[1:]):
        saved = max((c for c in trial.checkpoints if a.start <= c <= a.end), default=a.start)
        if after is None and ("COMPLETED" in trial.state or a.end == records.now):
            continue
        if after is not None and after.task != a.task:
            found.append(Stop(a.id, "continued", a.end, a.end))
        elif a.id in reclaimed:
            found.append(Stop(a.id, "reclaimed", saved, a.end, reclaimed[a.id]))
        elif after is None and trial.state in OVER:
            found.append(Stop(a.id, OVER[trial.state], saved, a.end))
        elif a.exit:
            kind = next((kind for words, kind in EXITS.items() if words in a.exit), "paused")
            kept = kind != "failed" and "killed" not in a.exit
            found.append(Stop(a.id, kind, a.end if kept else saved, a.end))
        elif after is not None:
            unknown.append(Stop(a.id, "failed", saved, a.end))
    unseen = trial.restarts - sum(stop.kind == "failed" for stop in found)
    unknown.sort(key=lambda stop: stop.saved - stop.end)
    for rank, stop in enumerate(unknown):
        kept = rank >= unseen and stop.end - stop.saved <= SAVED
        found.append(stop._replace(kind="paused", saved=stop.end) if kept else stop)
    return found


def phase_seconds(
    experiment: Experiment, records: Records, stopped: Sequence[Stop]
) -> dict[str, float]:
    """Return allocated seconds of the span by phase, over all trials; no two phases overlap.

    An allocation is start-up until its work begins, and lost from its last checkpoint on if it was
    stopped so; of the time between, what no record explains is "other".
    """
    found = dict.fromkeys("start-up restart training validation checkpoints lost".split(), 0.0)
    kept, work = {stop.allocation: stop.saved for stop in stopped}, _work(experiment, records)
    for trial in experiment.trials:
        for index, a in enumerate(trial.allocations):
            saved, entries = kept.get(a.id, a.end), work[a.id]
            reports = [r for r in trial.reports if a.start < r.time <= saved]
            begun = [e.start for e in entries[:1] if e.kind != "training" or not reports]
            begun += [r.time - pd.Timedelta(seconds=r.seconds) for r in reports[:1]]
            begin = min(max(a.launched or min(begun, default=a.start), a.start), saved)
            found["restart" if index else "start-up"] += records.seconds(a.start, begin)
            found["lost"] += records.seconds(saved, a.end)
            spent = dict.fromkeys(PHASES.values(), 0.0)
            for e in entries:
                spent[PHASES[e.kind]] += records.seconds(max(e.start, begin), min(e.end, saved))
            if reports:
                spent["training"] = sum(r.seconds for r in reports if records.has(r.time))
            if a.launched:
                end = min(entries[-1].end, saved) if entries else saved
                spent = {"answering": records.seconds(begin, end)}
            left = records.seconds(begin, saved)
            for phase, seconds in (*spent.items(), ("other", left)):
                found[phase] = found.get(phase, 0.0) + min(seconds, left)
                left -= min(seconds, left)
    return found


def _work(experiment: Experiment, records: Records) -> dict[str, list[Entry]]:
    """Return the raw entries of each allocation in order; the first one without the start-up.

    An entry begins where the trial's last one ended, the first one where the allocation did: it is
    taken to be as long as the experiment's others of its kind are, if there are any.
    """
    found: dict[str, list[Entry]] = defaultdict(list)
    ends = {a: a.start for a in experiment.allocations}
    mine = [e for e in records.entries if e.experiment == experiment.id and e.kind in PHASES]
    for entry in sorted(mine, key=lambda entry: entry.start):
        if fits := [a for a in ends if ends[a] <= entry.start < a.end]:
            last = max(fits, key=lambda a: (ends[a], a.start))
            found[last.id].append(entry)
            ends[last] = entry.end
    for entries in found.values():
        first, rest = entries[0], [e for row in found.values() for e in row[1:]]
        others = [e.end - e.start for e in rest if e.kind == first.kind]
        usual = median(others) if others else first.end - first.start
        entries[0] = first._replace(start=max(first.start, first.end - usual))
    return found


def experiment_runs(records: Records, table: pd.DataFrame) -> list[Run]:
    """Return a run per experiment; with --since also rows of what else the machines cost.

    `table` is of `segments`.
    """
    reclaimed = Counter(name for machine in machines(records) for name in machine.ended)
    owned = dict(list(table.groupby("owner")))
    runs = [_run(e, records, owned.pop(e.id, table[:0]), reclaimed) for e in records.experiments]
    for owner, mine in owned.items() if records.since is not None else ():
        hardware, parts = f"{mine['machine'].nunique()} x machine", mine.groupby("phase")["cost"]
        about: Any = {"name": owner, "hardware": hardware, "pool": "", "slots": 0, **_sums(mine)}
        about |= {"parts": parts.sum().to_dict()} if "cost" in about else {}
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


def _run(
    experiment: Experiment, records: Records, mine: pd.DataFrame, reclaimed: Mapping[str, int]
) -> Run:
    trials, stopped = experiment.trials, list[Stop]()
    for trial in trials:
        stopped += stops(trial, records, reclaimed)
    cut = [(a, *records.cut(a.start, a.end)) for a in experiment.allocations]
    held = [a._replace(start=start, end=end) for a, start, end in cut if start < end]
    known = {name: pool.instance for name, pool in records.pools.items()}
    names = sorted({a.pool for a in held}) or [experiment.pool]
    start = min((a.start for a in held), default=records.until)
    end = max((a.end for a in held), default=start)
    worked, slots, most = _clock(held)
    seconds = phase_seconds(experiment, records, stopped)
    windows = sum(_windows(trial, records) for trial in trials)
    reports = [r for trial in trials for r in trial.reports if records.has(r.time)]
    done, trained = sum(r.windows for r in reports), sum(r.seconds for r in reports)
    speed = done / trained if trained else windows / (seconds["training"] or float("inf"))
    at_once = sum((a.end - a.start) / HOUR for a in held) / (worked or 1.0)
    best = max((t.scores for t in trials), key=lambda scores: scores.get("f1", -1.0), default={})
    costs = _costs(mine, seconds, worked, start, end)
    kinds: Counter[str] = Counter()
    for stop in stopped:
        kinds[stop.kind] += stop.machines if records.has(stop.end) else 0
    return Run(
        name=f"experiment {experiment.id}, {' '.join(experiment.name.split())}",
        hardware=f"{most} x {known.get(names[0]) or 'machine'}", pool=", ".join(names),
        slots=int(slots) or experiment.slots, throughput=speed * at_once or None,
        hours=(end - start) / HOUR, worked=worked, model=model_name(experiment.model),
        data=data_name(experiment.config.get("data") or {}), windows=windows,
        lost_hours=seconds["lost"] / 3600,
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


def _costs(
    mine: pd.DataFrame, seconds: Mapping[str, float], worked: float, start: Moment, end: Moment
) -> dict[str, Any]:
    """Return the dollars: those of boot and idle machines, the rest in proportion to the phases."""
    if "cost" not in (sums := _sums(mine)):
        return sums
    money = Counter(mine.groupby("phase")["cost"].sum().to_dict())
    total = sum(seconds.values()) or 1.0
    parts = {phase: float(money[phase]) for phase in ("boot", "idle")}
    parts |= {phase: float(money["held"]) * spent / total for phase, spent in seconds.items()}
    # Boot and idle time after the first start and before the last end is between allocations.
    between = mine["phase"].isin(["boot", "idle"]) & (mine["start"] > start) & (mine["end"] <= end)
    stopped = parts["lost"] + parts["restart"] + float(mine.loc[between, "cost"].sum())
    rate = float(money["held"]) / worked if worked else None
    return {"parts": parts, "rate": rate, "stopped": stopped, **sums}


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
