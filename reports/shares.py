"""Who pays for which time of a cluster's machines: the rules are in README.md.

Lives are divided in full, then cut to the span, so that the bills of its parts add up.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from cluster.facts.machines import SLOTS
from cluster.facts.prices import FREE_HOUR
from cluster.facts.rates import History, Rates
from reports.phases import Course, Story, story
from reports.usage import (
    HOUR,
    SLACK,
    Allocation,
    Entry,
    Moment,
    RecordedPool,
    Records,
    merge_spans,
    whole_span,
)

NUMBERS = ["hours", "cost", "low", "high", "on demand"]
NOBODY = "(nobody)"  # unused time of machines in use
UNHELD = "(unheld)"  # machines and slots never held
MINUTE = 60.0  # seconds that AWS charges of a machine at least
COLUMNS = "machine owner phase start end month kind allocation".split()


class Share(NamedTuple):
    """A stretch of a machine's life: who pays which share of it, for which phase of a bill."""

    owner: int | str
    phase: str
    start: Moment
    end: Moment
    share: float = 1.0
    allocation: str = ""  # empty while no task held it


class Life(NamedTuple):
    """One machine's life, or a stretch of it. If AWS reclaimed it, `taken`, which ended the
    allocations `ended`.
    """

    name: str
    pool: RecordedPool
    start: Moment
    end: Moment
    holds: Sequence[Allocation]
    slots: float | None = None  # of a machine of one's own, as recorded
    part: float | None = None  # slots that its task held, if the machine is not recorded
    taken: bool = False
    ended: Sequence[str] = ()
    ran: bool = False  # it still runs

    @property
    def hours(self) -> float:
        return float((self.end - self.start) / HOUR)


def machines(records: Records) -> list[Life]:
    """Return the machines that were held, and with --since those never held.

    A machine of one's own is there while its agent is connected, or a task holds it.
    """
    held = defaultdict[str, list[Allocation]](list)
    for allocation in (*records.allocations, *records.others):
        for node in allocation.nodes or (allocation.id,):
            held[node].append(allocation)
    launched = records.lives()
    connected = records.connected()
    names = dict.fromkeys(held)
    if records.since is not None:
        names |= dict.fromkeys((*launched, *connected))
    lives = list[Life]()
    for name in names:
        holds = held[name]
        if name in launched:
            lives.append(_launched_life(launched[name], holds, records))
        elif name in connected:
            lives += _own_lives(connected[name], holds, records)
        else:
            pool = _pool(holds, None, records)
            for a in holds:
                if a.slots:
                    lives.append(Life(name, pool, a.start, a.end, [a], part=a.slots_each))
    return lives


def _pool(
    holds: Sequence[Allocation],
    entry: Entry | None,
    records: Records,
) -> RecordedPool:
    """Return the pool that a machine's tasks name; if none does, the one with machines of as many
    slots as were recorded of it, or one without a price if several could be meant.
    """
    name = next((a.pool for a in holds if a.pool), "")
    if name or entry is None:
        return records.pools.get(name) or RecordedPool("", False, name=name)
    own = entry.kind == "agent"
    pools = [pool for pool in records.pools.values() if pool.own == own]
    size = "machines"
    if entry.slots is not None:
        pools = [pool for pool in pools if pool.slots in (None, entry.slots)]
        size = f"machines with {entry.slots} slots"
    costs = {(pool.instance or pool.name, pool.region, pool.spot) for pool in pools}
    if len(costs) == 1:
        return pools[0]
    where = " or ".join(pool.name for pool in pools) or "no pool of this master"
    return RecordedPool("", False, own=own, name=f"{size} that nobody held, of {where}")


def _launched_life(
    entry: Entry,
    holds: Sequence[Allocation],
    records: Records,
) -> Life:
    """Return the life of a machine that the master launched."""
    pool = _pool(holds, entry, records)
    start, end = whole_span([entry, *holds])
    least = SLACK
    vanished = entry.kind == "vanished"
    if not vanished:  # the master terminates no machine before
        least = min(SLACK, pd.Timedelta(seconds=pool.idle / 2))
    ended = [a.id for a in holds if entry.end - a.end < least]
    ran = entry.end >= (records.now or records.until)
    taken = pool.spot and not ran and (vanished or bool(ended))
    return Life(
        entry.name,
        pool,
        start,
        end,
        holds,
        taken=taken,
        ended=ended if taken else (),
        ran=ran,
    )


def _own_lives(
    entries: Sequence[Entry],
    holds: Sequence[Allocation],
    records: Records,
) -> Iterator[Life]:
    """Yield the stretches of time in which a machine of one's own was connected or held."""
    pool = _pool(holds, entries[0], records)
    sizes = [float(entry.slots) for entry in entries if entry.slots is not None]
    if sizes:
        sizes.append(_most_held(holds))  # an agent that connects while it is disabled has 0 slots
    slots = max(sizes, default=pool.slots)
    for start, end in merge_spans([*entries, *holds]):
        inside = [a for a in holds if start <= a.start and a.end <= end]
        yield Life(
            entries[0].name,
            pool,
            start,
            end,
            inside,
            slots=slots,
        )


def _most_held(holds: Sequence[Allocation]) -> float:
    """Return most slots of a machine that were held at once."""
    changes = [(a.start, a.slots_each) for a in holds]
    changes += [(a.end, -a.slots_each) for a in holds]
    return max(accumulate(slots for _, slots in sorted(changes)), default=0.0)


def _share_life(
    machine: Life,
    courses: Mapping[str, Course],
) -> Iterator[Share]:
    """Yield the shares of a machine's life; those of a moment add up to 1."""
    holds = [a for a in machine.holds if a.end > a.start]
    cuts = {machine.start, machine.end}
    for a in holds:
        cuts |= {a.start, a.end}
        if a.id in courses:
            cuts |= {courses[a.id].begun, courses[a.id].saved}
    used = defaultdict[int | str, float](float)  # slot-seconds by owner
    own = machine.pool.own and machine.part is None
    gaps = []

    # While tasks hold it, they pay by slots; free slots of one's own machine are nobody's. Tasks
    # without slots, such as TensorBoards, pay what no other holds: one slot each.
    for left, right in pairwise(sorted(cuts)):
        active = [a for a in holds if a.start <= left and right <= a.end]
        weights = [a.slots_each for a in active]
        if not any(weights) and not machine.slots:
            weights = [1.0 for _ in active]
        busy = sum(weights)
        slots = max(busy, machine.slots or busy) if own else busy
        seconds = (right - left).total_seconds()
        for a, weight in zip(active, weights, strict=True):
            if not weight:
                continue
            used[a.owner] += weight * seconds
            yield Share(
                owner=a.owner,
                phase=courses[a.id].phase(left) if a.id in courses else "work",
                start=left,
                end=right,
                share=weight / slots,
                allocation=a.id,
            )
        if not active:
            gaps.append((left, right))
        elif busy < slots:
            free = 1.0 - busy / slots
            yield Share(UNHELD, "idle", left, right, free)
    yield from _share_gaps(machine, gaps, used)


def _share_gaps(
    machine: Life,
    gaps: Sequence[tuple[Moment, Moment]],
    used: Mapping[int | str, float],
) -> Iterator[Share]:
    """Yield the shares of the time without a task: all that used the machine pay it, unless nobody
    did, or a gap is too long for that. `used` are slot-seconds by owner.
    """
    own = machine.pool.own and machine.part is None
    for left, right in gaps:
        booting = all(a.end > left or a.end == a.start for a in machine.holds)
        limit = machine.pool.boot if booting else machine.pool.idle
        payers = used
        phase = "start-up" if booting else "idle"
        if own or not used or right - left > SLACK + pd.Timedelta(seconds=limit):
            payers = {UNHELD if own or not machine.holds else NOBODY: 1.0}
            phase = "idle"
        whole = sum(payers.values())
        for owner, weight in payers.items():
            yield Share(owner, phase, left, right, weight / whole)


def stories(records: Records) -> dict[int, Story]:
    """Return the course of each experiment."""
    reclaimed = Counter[str]()
    for machine in machines(records):
        reclaimed.update(machine.ended)
    return {each.id: story(each, records, reclaimed) for each in records.experiments}


def segments(records: Records, rates: Rates, history: History) -> pd.DataFrame:
    """Return a row per machine, owner and stretch of time within one month: hours and dollars.

    The owner is an experiment of the records, or a name. Other names than NOBODY need --since.
    Dollars are missing where a machine has no price; `kind` says of which machine.
    """
    rows = []
    courses = dict[str, Course]()
    named = stories(records)
    for each in named.values():
        courses |= each.courses
    for machine in machines(records):
        tariff = _tariff(machine, rates, history)
        for share in _share_life(machine, courses):
            owner = share.owner
            if records.since is None and owner not in (*named, NOBODY):
                continue
            if isinstance(owner, int) and owner not in named:
                owner = f"experiment {owner}, deleted"
            start, end = records.cut(share.start, share.end)
            months = pd.date_range(start.normalize(), end, freq="MS")
            months = [month for month in months if start < month < end]
            for left, right in pairwise([start, *months, end]):
                if left == right:
                    continue
                hours = (right - left) / HOUR * share.share * tariff.part
                row = [
                    machine.name,
                    owner,
                    share.phase,
                    left,
                    right,
                    f"{left:%Y-%m}",
                    tariff.kind,
                    share.allocation,
                    hours,
                    *tariff.dollars(hours, left, right),
                ]
                rows.append(row)
    return pd.DataFrame(rows, columns=[*COLUMNS, *NUMBERS])


class _Tariff(NamedTuple):
    """The cost of a machine."""

    kind: str  # type and region, or what is known of a machine that has no price
    part: float  # of the machine that its tasks held
    rates: list[float]  # dollars per hour: usual, low, high and on demand; nan without a price
    past: pd.Series | None = None  # dollars per hour from each moment on, for the first three

    def dollars(self, hours: float, start: Moment, end: Moment) -> list[float]:
        """Return cost, low, high and the price on demand of machine-hours in a stretch of time."""
        rates = self.rates
        if self.past is not None:
            # Mean over the stretch; before the history begins, the usual.
            changes = [moment for moment in self.past.index if start < moment < end]
            times = pd.DatetimeIndex([start, *changes, end])
            steps = self.past.reindex(times[:-1], method="ffill").fillna(rates[0])
            mean = np.average(steps, weights=np.diff(times.asi8))
            rates = [float(mean)] * 3 + rates[3:]
        return [hours * rate for rate in rates]


def _tariff(machine: Life, rates: Rates, history: History) -> _Tariff:
    pool = machine.pool
    kind = rates.kind(pool.instance, pool.region)
    price = rates.at(kind) if pool.instance else None
    name = str(kind) if pool.instance else pool.name
    size = price.slots if price else pool.slots
    part = min(machine.part / size, 1.0) if machine.part and size else 1.0
    if price is None:
        return _Tariff(name, part, [math.nan] * 4)
    weight = 1.0
    if machine.slots is not None and size and SLOTS.get(pool.instance) != 0:
        # A slot of one's own machine costs as much as one of the type that prices its pool.
        weight = machine.slots / size
    elif not (machine.ran or pool.own or machine.part) and machine.hours > 0:
        weight = max(1.0, MINUTE / 3600 / machine.hours)
    paid = 0.0 if machine.taken and machine.hours <= FREE_HOUR else weight
    low, usual, high = price.spot_range() if pool.spot else [price.on_demand] * 3
    dollars = [
        paid * usual,
        paid * low,
        paid * high,
        weight * price.on_demand,
    ]
    if pool.spot and kind in history:
        return _Tariff(name, part, dollars, history[kind] * paid)
    return _Tariff(name, part, dollars)
