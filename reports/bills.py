"""Cost of each experiment, from a cluster's records.

A machine's life is cut where allocations begin and end. Tasks that hold it pay for that time by
their slots on it; boot and idle time are divided by slot-hours among all that used it. A gap longer
than the pool boots or idles belongs to no task in these records, and is not charged. A machine
whose launch the master did not record is charged only while it is held.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import pandas as pd

from cluster.prices import FREE_HOUR, Price, find_price
from cluster.records import Allocation, Experiment, Moment, RecordedPool, Records, Trial
from reports.runs import Run, data_name, model_name

HOUR = pd.Timedelta(hours=1)
SLACK = pd.Timedelta(minutes=5)  # between the end of a machine and what the master says of it
SAVED = pd.Timedelta(minutes=1)  # before its end: a trial that is paused saves and leaves
OVER = {"STATE_ERROR": "failed", "STATE_CANCELED": "canceled", "STATE_COMPLETED": ""}
NUMBERS = ["hours", "cost", "low", "high", "on demand"]
History = Mapping[str, pd.Series]  # instance type -> dollars an hour from each moment on


class Life(NamedTuple):
    """One machine's life; `share` of it is charged, `taken` says that AWS reclaimed it."""

    name: str
    pool: RecordedPool
    start: Moment
    end: Moment
    holds: Sequence[Allocation]
    share: float = 1.0
    taken: bool = False


def machines(records: Records, prices: Mapping[str, Price]) -> Iterator[Life]:
    """Yield the machines that the named experiments held, in priced pools."""
    held: dict[tuple[str, str], list[Allocation]] = defaultdict(list)
    for a in records.allocations:
        for node in a.nodes or (a.id,):
            held[a.pool, node].append(a)
    lives = records.lives
    for (name, node), holds in held.items():
        pool, life = records.pools.get(name), lives.get(node)
        if pool is None or not pool.instance:
            continue
        if life is None:
            slots = find_price(prices, pool.instance).slots
            for a in holds:
                yield Life(node, pool, a.start, a.end, [a], a.slots_each / slots)
            continue
        holds = [*holds, *(a for a in records.others if node in a.nodes)]
        last = max(a.end for a in holds)
        gone = life.end - last < min(SLACK, pd.Timedelta(seconds=pool.idle / 2))
        span = min([life.start, *(a.start for a in holds)]), max(life.end, last)
        taken = pool.spot and gone and life.end < records.until
        yield Life(node, pool, *span, holds, 1.0, taken)


def share_life(machine: Life) -> Iterator[tuple[Any, str, Moment, Moment, float]]:
    """Yield owner (or None), phase, from, to, share; the shares of a moment add up to 1."""
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
        for owner, weight in used.items() if used and not long else [(None, 1.0)]:
            whole = 1.0 if owner is None else sum(used.values())
            yield owner, phase if owner is not None else "unused", left, right, weight / whole


def segments(records: Records, prices: Mapping[str, Price], history: History) -> pd.DataFrame:
    """Return a row per machine, owner and stretch of time within one month: hours and dollars."""
    rows = []
    for machine in machines(records, prices):
        price, spot = find_price(prices, machine.pool.instance), machine.pool.spot
        known = history.get(machine.pool.instance) if spot else None
        free = machine.taken and (machine.end - machine.start) / HOUR <= FREE_HOUR
        for owner, phase, start, end, share in share_life(machine):
            months = pd.date_range(start.normalize(), end, freq="MS").tolist()
            for left, right in pairwise([start, *(m for m in months if start < m < end), end]):
                hours = (right - left) / HOUR * share * machine.share
                rate = price.hourly(spot) if known is None else _mean(known, left, right, price)
                seen = price.spot_range() if spot and known is None else (rate, rate, rate)
                paid = [0.0 if free else hours * dollars for dollars in (rate, seen[0], seen[2])]
                where = (machine.name, owner, phase, left, right, f"{left:%Y-%m}")
                rows.append((*where, hours, *paid, hours * price.on_demand))
    columns = "machine owner phase start end month".split()
    return pd.DataFrame(rows, columns=[*columns, *NUMBERS])


def _mean(history: pd.Series, start: Moment, end: Moment, price: Price) -> float:
    """Return mean dollars per hour over a stretch; the price file's before the history begins."""
    times = [start, *history.index[(history.index > start) & (history.index < end)], end]
    rates = history.reindex(times[:-1], method="ffill").fillna(price.spot)
    lengths = [(right - left) / (end - start) for left, right in pairwise(times)]
    return float((rates.to_numpy() * lengths).sum())


def stops(trial: Trial, records: Records) -> Iterator[tuple[str, float]]:
    """Yield the cause of each end of an allocation before the trial's, and the seconds lost.

    The master does not record causes: if a machine ended with the allocation it was reclaimed, if
    it saved just before the trial was paused (by a user or the scheduler), another task is a
    continuation. Lost is the time from the last checkpoint, or the start, if work was interrupted.
    """
    gone = {name: life.end for name, life in records.lives.items() if life.end < records.until}
    for a, after in zip_longest(trial.allocations, trial.allocations[1:]):
        saved = max((c for c in trial.checkpoints if a.start <= c <= a.end), default=a.start)
        if after is None:
            kind = OVER.get(trial.state, "")
        elif after.task != a.task:
            kind = "continued"
        elif any(abs(gone[node] - a.end) <= SLACK for node in a.nodes if node in gone):
            kind = "reclaimed"
        else:
            kind = "paused" if saved > a.start and a.end - saved <= SAVED else "failed"
        if kind:
            lost = (a.end - saved).total_seconds()
            yield kind, 0.0 if kind in ("paused", "continued") else lost


def phase_seconds(experiment: Experiment, records: Records) -> dict[str, float]:
    """Return allocated seconds by phase, over all trials; "other" is the rest."""
    spent: Counter[str] = Counter()
    for entry in records.entries:
        if entry.experiment == experiment.id:
            spent[entry.kind] += (entry.end - entry.start).total_seconds()
    found = dict.fromkeys(["start-up", "restart", "training"], 0.0)
    found |= {"validation": spent["validation"], "checkpoints": spent["checkpointing"], "lost": 0.0}
    for trial in experiment.trials:
        found["lost"] += sum(lost for _, lost in stops(trial, records))
        begun: dict[str, float] = {}
        for report in trial.reports:
            seconds = report.steps * experiment.batch / report.speed
            found["training"] += seconds
            for a in trial.allocations:
                if a.start < report.time <= a.end:
                    begun.setdefault(a.id, (report.time - a.start).total_seconds() - seconds)
        for index, a in enumerate(trial.allocations):
            found["restart" if index else "start-up"] += max(begun.get(a.id, 0.0), 0.0)
    found["training"] = found["training"] or max(spent["training"] - found["lost"], 0.0)
    held = sum((a.end - a.start).total_seconds() for a in experiment.allocations)
    return {**found, "other": max(held - sum(found.values()), 0.0)}


def experiment_runs(records: Records, table: pd.DataFrame) -> list[Run]:
    """Return a run per experiment; `table` is of `segments`."""
    return [_run(e, records, table[table["owner"] == e.id]) for e in records.experiments]


def _run(experiment: Experiment, records: Records, mine: pd.DataFrame) -> Run:
    held, trials = experiment.allocations, experiment.trials
    known = {name: pool.instance for name, pool in records.pools.items()}
    names = sorted({a.pool for a in held}) or [experiment.pool]
    unpriced = [name for name in names if held and not known.get(name)]
    start = min((a.start for a in held), default=records.until)
    end = max((a.end for a in held), default=start)
    worked, slots, most = _clock(held)
    seconds = phase_seconds(experiment, records)
    windows = sum(trial.steps for trial in trials) * experiment.batch
    reports = [report for trial in trials for report in trial.reports]
    steps, reported = sum(r.steps for r in reports), sum(r.steps / r.speed for r in reports)
    speed = steps / reported if steps else windows / (seconds["training"] or float("inf"))
    at_once = sum((a.end - a.start) / HOUR for a in held) / (worked or 1.0)
    best = max((t.scores for t in trials), key=lambda scores: scores.get("f1", -1.0), default={})
    running = any(trial.state not in OVER for trial in trials)
    costs = {} if unpriced else _costs(mine, seconds, worked, start, end)
    return Run(
        name=f"experiment {experiment.id}, {experiment.name}", pool=", ".join(names),
        hardware=f"{most} x {known.get(names[0]) or 'machine'}", windows=windows,
        slots=int(slots) or experiment.slots, throughput=speed * at_once or None,
        hours=(end - start) / HOUR, worked=worked, model=model_name(experiment.model),
        data=data_name(experiment.data), lost_hours=seconds["lost"] / 3600,
        tokens=sum(r.steps / r.speed * r.tokens for r in reports) / (steps or 1) or None,
        exact=best.get("exact"), f1=best.get("f1"), running=running,
        stops=Counter(kind for trial in trials for kind, _ in stops(trial, records)),
        notes=tuple(f"pool {name} has no EC2 machines; give --price-pool {name}=INSTANCE[:spot]"
                    for name in unpriced),
        **costs,
    )  # fmt: skip


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
    """Return machine-hours and dollars by user, label or month; their sum, and the unused part."""
    labels = {e.id: ", ".join(e.labels) or "(no label)" for e in records.experiments}
    names = labels if by == "label" else {e.id: e.user for e in records.experiments}
    mine = table[table["owner"].isin(list(names))]
    key = mine["month"] if by == "month" else mine["owner"].map(names)
    found = mine.groupby(key)[NUMBERS].sum()
    found.insert(0, "experiments", mine.groupby(key)["owner"].nunique())
    for name, rows in (("all", mine), ("(nobody)", table[table["owner"].isna()])):
        found.loc[name] = [rows["owner"].nunique(), *rows[NUMBERS].sum()]
    return found.rename_axis(by).reset_index().astype({"experiments": int})


def notes(table: pd.DataFrame) -> list[str]:
    """Return a note on machine-hours that are in no bill, if any."""
    hours, cost = table.loc[table["phase"] == "unused", ["hours", "cost"]].sum()
    text = f"{hours:.2f} machine-hours (${cost:,.2f}) on the same machines are in no bill"
    return [f"{text}: nobody seen here used them"] if hours else []
