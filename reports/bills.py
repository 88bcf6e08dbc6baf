"""Cost of each experiment, from a cluster's records.

A machine's life is cut where allocations begin and end. Tasks that hold it pay for that time by
their slots on it; boot and idle time are divided by slot-hours among all that used it. A gap longer
than the pool boots or idles belongs to no task in these records: it is nobody's. A machine whose
launch the master did not record is charged only while it is held. Lives are shared out in full, and
the shares then cut to the span, so those of its parts add up.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import pandas as pd

from cluster.prices import FREE_HOUR, Price, find_price
from cluster.usage import (
    SLACK,
    Allocation,
    Experiment,
    Instance,
    Moment,
    RecordedPool,
    Records,
    Trial,
)
from reports.runs import Run, data_name, model_name

HOUR = pd.Timedelta(hours=1)
SAVED = pd.Timedelta(minutes=1)  # before its end: a trial that is paused saves and leaves
OVER = {"STATE_ERROR": "failed", "STATE_CANCELED": "canceled", "STATE_COMPLETED": ""}
NUMBERS = ["hours", "cost", "low", "high", "on demand"]
NOBODY, UNHELD = "(nobody)", "(unheld)"  # unused time of machines in use; those never in use
History = Mapping[str, pd.Series]  # instance type -> dollars an hour from each moment on


class Life(NamedTuple):
    """One machine's life; `taken` says that AWS reclaimed it, and ended the allocations `ended`."""

    name: str
    pool: RecordedPool
    start: Moment
    end: Moment
    holds: Sequence[Allocation]
    slots: float | None = None  # that are charged; None: the machine
    taken: bool = False
    ended: Sequence[str] = ()


class Stop(NamedTuple):
    """The end of an allocation before the trial's; the work since `saved` was lost."""

    kind: str
    saved: Moment
    end: Moment
    count: int = 1  # machines, if they were reclaimed


def machines(records: Records) -> list[Life]:
    """Return the machines of priced pools that were held, and with --since those never held."""
    held: dict[str, list[Allocation]] = defaultdict(list)
    for a in (*records.allocations, *records.others):
        for node in a.nodes or (a.id,):
            held[node].append(a)
    lives, found, seen = records.lives(), list[Life](), list[tuple[Instance, RecordedPool]]()
    for node, holds in held.items():
        pool = records.pools.get(next((a.pool for a in holds if a.pool), ""))
        if pool is None or not pool.instance:
            continue
        if node not in lives:
            found += [Life(node, pool, a.start, a.end, [a], a.slots_each) for a in holds]
            continue
        found.append(_life(node, lives[node], pool, holds, records))
        seen.append((lives[node], pool))
    if records.since is not None:
        seen += [(Instance(records.until, records.until, -1), p) for p in records.pools.values()]
        for node in lives.keys() - held.keys():
            if pool := _likely_pool(lives[node], [(i, p) for i, p in seen if p.instance]):
                found.append(_life(node, lives[node], pool, [], records))
    return found


def _life(
    name: str, life: Instance, pool: RecordedPool, holds: list[Allocation], records: Records
) -> Life:
    idle = pd.Timedelta(seconds=pool.idle / 2)  # the master terminates no machine before
    least = SLACK if life.vanished else min(SLACK, idle)
    ended = [a.id for a in holds if life.end - a.end < least]
    taken = pool.spot and life.end < (records.now or records.until)
    taken = taken and (life.vanished or bool(ended))
    start = min([life.start, *(a.start for a in holds)])
    end = max([life.end, *(a.end for a in holds)])
    return Life(name, pool, start, end, holds, None, taken, ended if taken else ())


def _likely_pool(
    life: Instance, seen: Sequence[tuple[Instance, RecordedPool]]
) -> RecordedPool | None:
    """Return the pool of the machine of as many slots that was launched nearest in time."""

    def distance(other: tuple[Instance, RecordedPool]) -> tuple[bool, pd.Timedelta]:
        return other[0].slots != life.slots, abs(other[0].start - life.start)

    return min(seen, key=distance)[1] if seen else None


def share_life(machine: Life) -> Iterator[tuple[Any, str, Moment, Moment, float]]:
    """Yield owner, phase, from, to, share; the shares of a moment add up to 1."""
    holds = [a for a in machine.holds if a.end > a.start]
    cuts = {machine.start, machine.end} | {t for a in holds for t in (a.start, a.end)}
    used: dict[Any, float] = defaultdict(float)  # slot-seconds by owner
    gaps = []
    for left, right in pairwise(sorted(cuts)):
        active = [a for a in holds if a.start <= left and right <= a.end]
        slots = sum(a.slots_each for a in active)
        for a in active:
            used[a.owner] += a.slots_each * (right - left).total_seconds()
            yield a.owner, "held", left, right, a.slots_each / slots
        if not active:
            gaps.append((left, right))
    for left, right in gaps:
        phase = "idle" if any(a.end <= left for a in holds) else "boot"
        long = right - left > SLACK + pd.Timedelta(seconds=getattr(machine.pool, phase))
        if long or not used:
            yield NOBODY if machine.holds else UNHELD, "unused", left, right, 1.0
            continue
        for owner, weight in used.items():
            yield owner, phase, left, right, weight / sum(used.values())


def segments(records: Records, prices: Mapping[str, Price], history: History) -> pd.DataFrame:
    """Return a row per machine, owner and stretch of time within one month: hours and dollars."""
    rows, named = [], {e.id for e in records.experiments}
    for machine in machines(records):
        price, spot = find_price(prices, machine.pool.instance), machine.pool.spot
        known = history.get(machine.pool.instance) if spot else None
        free = machine.taken and (machine.end - machine.start) / HOUR <= FREE_HOUR
        for owner, phase, start, end, share in share_life(machine):
            if owner not in {*named, NOBODY} and records.since is None:
                continue
            share *= 1.0 if machine.slots is None else machine.slots / price.slots
            start, end = records.cut(start, end)
            months = pd.date_range(start.normalize(), end, freq="MS").tolist()
            for left, right in pairwise([start, *(m for m in months if start < m < end), end]):
                hours = (right - left) / HOUR * share
                rate = price.hourly(spot) if known is None else _mean(known, left, right, price)
                seen = price.spot_range() if spot and known is None else (rate, rate, rate)
                paid = [0.0 if free else hours * dollars for dollars in (rate, seen[0], seen[2])]
                where = (machine.name, owner, phase, left, right, f"{left:%Y-%m}")
                rows.append((*where, hours, *paid, hours * price.on_demand))
    columns = "machine owner phase start end month".split()
    table = pd.DataFrame(rows, columns=[*columns, *NUMBERS])
    return table[table["start"] < table["end"]]


def _mean(history: pd.Series, start: Moment, end: Moment, price: Price) -> float:
    """Return mean dollars per hour over a stretch; the price file's before the history begins."""
    times = [start, *history.index[(history.index > start) & (history.index < end)], end]
    rates = history.reindex(times[:-1], method="ffill").fillna(price.spot)
    lengths = [(right - left) / (end - start) for left, right in pairwise(times)]
    return float((rates.to_numpy() * lengths).sum())


def stops(trial: Trial, records: Records, reclaimed: Mapping[str, int]) -> list[Stop]:
    """Return the ends of allocations before the trial's, and their causes.

    `reclaimed` counts the machines that were reclaimed, by allocation. Other causes are what the
    master recorded of the allocation. If it recorded nothing, `restarts` of these ends are
    failures: those that lost most work, and each that saved no checkpoint just before.
    """
    found, unknown = list[Stop](), list[Stop]()
    for a, after in zip_longest(trial.allocations, trial.allocations[1:]):
        saved = max((c for c in trial.checkpoints if a.start <= c <= a.end), default=a.start)
        if after is None and ("COMPLETED" in trial.state or a.end == records.now):
            continue
        if after is not None and after.task != a.task:
            found.append(Stop("continued", a.end, a.end))
        elif a.id in reclaimed:
            found.append(Stop("reclaimed", saved, a.end, reclaimed[a.id]))
        elif after is None and trial.state in OVER:
            found.append(Stop(OVER[trial.state], saved, a.end))
        elif "failed" in a.exit or "crashed" in a.exit:
            found.append(Stop("failed", saved, a.end))
        elif a.exit:
            kind = "preempted" if "preempted by" in a.exit else "paused"
            found.append(Stop(kind, saved if "killed" in a.exit else a.end, a.end))
        elif after is not None:
            unknown.append(Stop("failed", saved, a.end))
    unseen = trial.restarts - sum(stop.kind == "failed" for stop in found)
    unknown.sort(key=lambda stop: stop.saved - stop.end)
    for rank, stop in enumerate(unknown):
        kept = rank >= unseen and stop.end - stop.saved <= SAVED
        found.append(Stop("paused", stop.end, stop.end) if kept else stop)
    return found


def phase_seconds(
    experiment: Experiment, records: Records, stopped: Sequence[Stop]
) -> dict[str, float]:
    """Return allocated seconds of the span by phase, over all trials; "other" is the rest."""
    spent: Counter[str] = Counter()
    for entry in records.entries:
        if entry.experiment == experiment.id:
            spent[entry.kind] += records.seconds(entry.start, entry.end)
    found = dict.fromkeys(["start-up", "restart", "training"], 0.0)
    found |= {"validation": spent["validation"], "checkpoints": spent["checkpointing"]}
    found["lost"] = sum(records.seconds(stop.saved, stop.end) for stop in stopped)
    for trial in experiment.trials:
        begun: dict[str, pd.Timedelta] = {}
        for report in trial.reports:
            spell = pd.Timedelta(seconds=report.windows / report.speed)
            if records.has(report.time):
                found["training"] += spell.total_seconds()
            for a in trial.allocations:
                if a.start < report.time <= a.end:
                    begun.setdefault(a.id, max(report.time - spell, a.start))
        for index, a in enumerate(trial.allocations):
            phase = "restart" if index else "start-up"
            found[phase] += records.seconds(a.start, begun.get(a.id, a.start))
    found["training"] = found["training"] or max(spent["training"] - found["lost"], 0.0)
    held = sum(records.seconds(a.start, a.end) for a in experiment.allocations)
    return {**found, "other": max(held - sum(found.values()), 0.0)}


def experiment_runs(records: Records, table: pd.DataFrame) -> list[Run]:
    """Return a run per experiment; with --since also rows of what else the machines cost.

    `table` is of `segments`.
    """
    reclaimed = Counter(name for machine in machines(records) for name in machine.ended)
    named = {e.id: table[table["owner"] == e.id] for e in records.experiments}
    runs = [_run(e, records, named[e.id], reclaimed) for e in records.experiments]
    rest = table[~table["owner"].isin(named)] if records.since is not None else table[:0]
    for owner, mine in rest.groupby(rest["owner"].map(owner_name)):
        hours, count = float(mine["hours"].sum()), mine["machine"].nunique()
        costs = {name.replace(" ", "_"): float(mine[name].sum()) for name in NUMBERS[1:]}
        parts = mine.groupby("phase")["cost"].sum().to_dict()
        about: Any = {"name": owner, "hardware": f"{count} machines", "pool": "", "slots": 0}
        runs.append(Run(**about, hours=hours, windows=0.0, parts=parts, **costs))
    return runs


def owner_name(owner: int | str) -> str:
    """Return the name of an owner that is not an experiment of the report."""
    return owner if isinstance(owner, str) else f"experiment {owner}, deleted"


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
    unpriced = [name for name in names if held and not known.get(name)]
    start = min((a.start for a in held), default=records.until)
    end = max((a.end for a in held), default=start)
    worked, slots, most = _clock(held)
    seconds = phase_seconds(experiment, records, stopped)
    windows = sum(_windows(trial, records) for trial in trials)
    reports = [r for trial in trials for r in trial.reports if records.has(r.time)]
    reported = sum(r.windows / r.speed for r in reports)
    done = sum(r.windows for r in reports)
    speed = done / reported if reports else windows / (seconds["training"] or float("inf"))
    at_once = sum((a.end - a.start) / HOUR for a in held) / (worked or 1.0)
    best = max((t.scores for t in trials), key=lambda scores: scores.get("f1", -1.0), default={})
    costs = {} if unpriced else _costs(mine, seconds, worked, start, end)
    kinds: Counter[str] = Counter()
    for stop in stopped:
        kinds[stop.kind] += stop.count if records.has(stop.end) else 0
    return Run(
        name=f"experiment {experiment.id}, {' '.join(experiment.name.split())}",
        hardware=f"{most} x {known.get(names[0]) or 'machine'}", pool=", ".join(names),
        slots=int(slots) or experiment.slots, throughput=speed * at_once or None,
        hours=(end - start) / HOUR, worked=worked, model=model_name(experiment.model),
        data=data_name(experiment.data), lost_hours=seconds["lost"] / 3600, windows=windows,
        tokens=sum(r.windows / r.speed * r.tokens for r in reports) / (done or 1) or None,
        exact=best.get("exact"), f1=best.get("f1"), stops=+kinds,
        running=any(trial.state not in OVER for trial in trials),
        notes=tuple(f"pool {name} has no EC2 machines; give --price-pool {name}=INSTANCE[:spot]"
                    for name in unpriced),
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
    money = Counter(mine.groupby("phase")["cost"].sum().to_dict())
    total = sum(seconds.values()) or 1.0
    parts = {phase: float(money[phase]) for phase in ("boot", "idle")}
    parts |= {phase: float(money["held"]) * spent / total for phase, spent in seconds.items()}
    # Boot and idle time after the first start and before the last end is between allocations.
    between = mine["phase"].isin(["boot", "idle"]) & (mine["start"] > start) & (mine["end"] <= end)
    stopped = parts["lost"] + parts["restart"] + float(mine.loc[between, "cost"].sum())
    costs = {name.replace(" ", "_"): float(mine[name].sum()) for name in NUMBERS[1:]}
    rate = float(money["held"]) / worked if worked else None
    return {"parts": parts, "rate": rate, "stopped": stopped, **costs}


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
    mine = table["owner"].isin(list(names))
    groups = [table[mine].groupby(table["month"] if by == "month" else table["owner"].map(names))]
    rest = table[~mine]
    key = rest["owner"].map(owner_name)
    empty = pd.DataFrame(0.0, [NOBODY, UNHELD], NUMBERS)
    groups.append(rest.groupby(key))
    found = pd.concat([group[NUMBERS].sum() for group in groups])
    found = pd.concat([found, empty[~empty.index.isin(found.index)]])
    counts = groups[0]["owner"].nunique()
    found.insert(0, "experiments", counts.reindex(found.index, fill_value=0))
    found.loc["all"] = [table.loc[mine, "owner"].nunique(), *table[NUMBERS].sum()]
    return found.rename_axis(by).reset_index().astype({"experiments": int})


def notes(records: Records, table: pd.DataFrame) -> list[str]:
    """Return notes on the span, and on machine-hours that are in no experiment's bill, if any."""
    begin = "" if records.since is None else f"from {records.since:%Y-%m-%d %H:%M} "
    found = [f"cluster: {begin}until {records.until:%Y-%m-%d %H:%M}; days and months are in UTC"]
    hours, cost = table.loc[table["owner"] == NOBODY, ["hours", "cost"]].sum()
    text = f"{hours:.2f} machine-hours (${cost:,.2f}) on the same machines are in no bill"
    found += [f"{text}: nobody seen here used them"] if hours else []
    hours, cost = table.loc[table["owner"] == UNHELD, ["hours", "cost"]].sum()
    text = f"{hours:.2f} machine-hours (${cost:,.2f}) of machines that nobody held; the master"
    said = f"{text} does not record their pool, so it is that of the machine launched nearest"
    return [*found, said] if hours else found
