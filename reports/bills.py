"""A cluster's records -> what each experiment cost, from the launch of its machines on.

A machine's life is cut where allocations begin and end. While experiments hold it they pay it, in
proportion to their slots on it; its boot is paid by the first, its idle time by those who held it
last. Machines whose launch the master did not record are paid while they are held.
"""

import datetime
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from reports.prices import Price, find
from reports.records import ENDED, FINISHED, Experiment, Moment, Pool, Records, Trial
from reports.run import Run

_KINDS = {"training": "training", "validation": "validation", "checkpointing": "checkpoints",
          "imagepulling": "image"}  # fmt: skip


@dataclass(frozen=True)
class Hold:
    """An experiment on one machine for a while."""

    experiment: int
    slots: float
    start: Moment
    end: Moment


def share_life(start: Moment, end: Moment, holds: list[Hold]) -> dict[tuple[int, str], float]:
    """Who pays which seconds of one machine's life; the sum is the whole life."""
    paid: dict[tuple[int, str], float] = defaultdict(float)
    cuts = {start, end}
    cuts |= {min(max(cut, start), end) for hold in holds for cut in (hold.start, hold.end)}
    ordered = sorted(cuts)
    for left, right in zip(ordered, ordered[1:], strict=False):
        seconds = (right - left).total_seconds()
        active = [hold for hold in holds if hold.start <= left and hold.end >= right]
        phase = "held"
        if not active:
            ended = [hold for hold in holds if hold.end <= left]
            phase = "idle" if ended else "boot"
            latest = max((hold.end for hold in ended), default=None)
            first = min(hold.start for hold in holds)
            active = [h for h in holds if (h.end == latest if ended else h.start == first)]
        weight = sum(hold.slots for hold in active)
        for hold in active:
            paid[hold.experiment, phase] += seconds * hold.slots / weight
    return dict(paid)


def experiment_runs(
    records: Records, prices: Mapping[str, Price], priced_as: Mapping[str, Pool]
) -> list[Run]:
    """A row per experiment. `priced_as`: pools not on EC2."""
    pools = {**records.pools, **priced_as}
    dollars: dict[tuple[int, str], float] = defaultdict(float)
    used: dict[str, Price] = {}
    unpriced: dict[int, set[str]] = defaultdict(set)
    for (name, _), (start, end, holds, slots) in _machines(records).items():
        pool = pools.get(name)
        if pool is None or not pool.instance:
            for hold in holds:
                unpriced[hold.experiment].add(name)
            continue
        price = used.setdefault(pool.instance, find(prices, pool.instance))
        share = 1.0 if slots is None else slots / price.slots
        for key, seconds in share_life(start, end, holds).items():
            dollars[key] += seconds / 3600 * price.hourly(pool.spot) * share
    return [
        _run(experiment, records, pools, used, dollars, unpriced[experiment.id])
        for experiment in records.experiments
    ]


def _machines(
    records: Records,
) -> dict[tuple[str, str], tuple[Moment, Moment, list[Hold], float | None]]:
    """(pool, machine) -> its life, who held it, and the slots of it that are paid (None: all)."""
    lives = {e.name: e for e in records.entries if e.kind == "instance"}
    held: dict[tuple[str, str], list[Hold]] = defaultdict(list)
    for experiment in records.experiments:
        for trial in experiment.trials:
            for allocation in trial.allocations:
                end = allocation.end or records.until
                nodes = allocation.nodes or (allocation.id,)
                for node in nodes:
                    slots = experiment.slots / len(nodes)
                    hold = Hold(experiment.id, slots, allocation.start, end)
                    held[allocation.pool, node].append(hold)
    machines = {}
    for (pool, node), holds in held.items():
        life = lives.get(node)
        start = min(hold.start for hold in holds)
        end = max(hold.end for hold in holds)
        if life is not None:
            over = life.end or records.until
            machines[pool, node] = (min(life.start, start), max(over, end), holds, None)
            continue
        for number, hold in enumerate(holds):  # not recorded: no time between holds is paid
            key = (pool, f"{node} {number}")
            machines[key] = (hold.start, hold.end, [hold], hold.slots)
    return machines


def lost_spans(trial: Trial) -> list[tuple[Moment, Moment]]:
    """From an allocation's last checkpoint (or its start) to its end, unless the work was kept."""
    spans = []
    following = [allocation.start for allocation in trial.allocations[1:]]
    for allocation, after in zip(trial.allocations, [*following, None], strict=True):
        if allocation.end is None or (after is None and trial.state not in ENDED - FINISHED):
            continue  # it runs, it came to its end, or it waits for a start that shows what is kept
        saved = [c for c in trial.checkpoints if allocation.start <= c and (not after or c < after)]
        spans.append((min(max(saved, default=allocation.start), allocation.end), allocation.end))
    return spans


def phase_seconds(experiment: Experiment, records: Records) -> dict[str, float]:
    """Allocated seconds by what happened in them, over all trials; "other" is start and stop."""
    held = sum(
        ((a.end or records.until) - a.start).total_seconds()
        for trial in experiment.trials
        for a in trial.allocations
    )
    spans = [span for trial in experiment.trials for span in lost_spans(trial)]
    lost = sum((end - start).total_seconds() for start, end in spans)
    found: dict[str, float] = dict.fromkeys(_KINDS.values(), 0.0)
    redone = 0.0
    for entry in records.entries:
        if entry.experiment == experiment.id and entry.kind in _KINDS:
            end = entry.end or records.until
            found[_KINDS[entry.kind]] += (end - entry.start).total_seconds()
            if entry.kind == "training":
                overlaps = (min(end, to) - max(entry.start, from_) for from_, to in spans)
                redone += sum(max(overlap.total_seconds(), 0.0) for overlap in overlaps)
    several = len(experiment.trials) > 1  # raw entries do not say whose they are
    redone = min(lost, found["training"]) if several else redone
    found["training"] = max(found["training"] - redone, 0.0)
    found["lost"] = lost
    found["other"] = max(held - sum(found.values()), 0.0)
    return found


def _run(
    experiment: Experiment,
    records: Records,
    pools: Mapping[str, Pool],
    used: Mapping[str, Price],
    dollars: Mapping[tuple[int, str], float],
    unpriced: set[str],
) -> Run:
    allocations = [a for trial in experiment.trials for a in trial.allocations]
    seconds = phase_seconds(experiment, records)
    parts = _dollars_of_phases(experiment, seconds, dollars)
    names = list(dict.fromkeys(a.pool for a in allocations)) or [experiment.pool]
    notes = [f"pool {name} has no EC2 machines; give --price-pool {name}=INSTANCE[:spot]"
             for name in sorted(unpriced)]  # fmt: skip
    steps = [report for trial in experiment.trials for report in trial.speeds]
    windows = sum(t.steps for t in experiment.trials) * experiment.global_batch_size
    start = min((a.start for a in allocations), default=records.until)
    ends = [a.end or records.until for a in allocations]
    scored = [trial.scores for trial in experiment.trials if trial.scores]
    best = max(scored, key=lambda scores: scores.get("f1", 0.0), default={})
    hardware, rate = _machines_of(experiment.slots, pools.get(names[0]), used)
    return Run(
        name=f"experiment {experiment.id}, {experiment.name}",
        hardware=hardware,
        slots=experiment.slots,
        pool=", ".join(names),
        throughput=_throughput(steps, windows, seconds["training"]),
        hours=(max(ends, default=start) - start) / datetime.timedelta(hours=1),
        windows=windows,
        lost_hours=seconds["lost"] / 3600,
        restarts=sum(max(len(trial.allocations) - 1, 0) for trial in experiment.trials),
        rate=rate,
        cost=None if unpriced else sum(parts.values()),
        exact=best.get("exact"),
        f1=best.get("f1"),
        parts={} if unpriced else parts,
        notes=tuple(notes),
        running=any(trial.state not in ENDED for trial in experiment.trials),
    )


def _dollars_of_phases(
    experiment: Experiment, seconds: Mapping[str, float], dollars: Mapping[tuple[int, str], float]
) -> dict[str, float]:
    """What booting and idle machines cost, and the rest dealt out by the seconds of each phase."""
    parts = {phase: dollars.get((experiment.id, phase), 0.0) for phase in ("boot", "idle")}
    total = sum(seconds.values())
    for phase, spent in seconds.items():
        share = spent / total if total else 0.0
        parts[phase] = dollars.get((experiment.id, "held"), 0.0) * share
    return parts


def _throughput(reports: list[tuple[int, float]], windows: float, seconds: float) -> float | None:
    """Windows a second: steps over the time their reports say, else windows over training time."""
    if reports:
        return sum(n for n, _ in reports) / sum(n / speed for n, speed in reports)
    return windows / seconds if seconds else None


def _machines_of(
    slots: int, pool: Pool | None, used: Mapping[str, Price]
) -> tuple[str, float | None]:
    """What `slots` of a pool are, and dollars an hour for them; None where it has no price."""
    price = used.get(pool.instance) if pool else None
    if price is None:
        return f"{slots} slots", None
    rate = price.hourly(pool.spot) * max(slots / price.slots, 1)
    return f"{max(slots // price.slots, 1)} x {price.instance}", rate
