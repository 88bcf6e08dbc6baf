"""Who pays for which time of a cluster's machines: the rules are in README.md.

Three steps: the lives of machines, of all that was recorded; the shares of each life, whose sum at
each moment is 1; and segments, which are shares in hours and dollars. Lives are divided in full,
then cut to the span: that reads more records than the span has, but the bills of its parts add up.
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
UNUSED = "(nobody)"  # unused time of machines in use
NEVER_USED = "(unheld)"  # machines and slots never held
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

    # Names in order, each once: machines that were held, with --since all that were recorded.
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
            # Not recorded: each task pays for as many slots as it held, while it held them.
            pool = _pool(holds, None, records)
            for hold in holds:
                if hold.slots:
                    life = Life(
                        name,
                        pool=pool,
                        start=hold.start,
                        end=hold.end,
                        holds=[hold],
                        part=hold.slots_each,
                    )
                    lives.append(life)
    return lives


def _pool(
    holds: Sequence[Allocation],
    entry: Entry | None,
    records: Records,
) -> RecordedPool:
    """Return the pool that a machine's tasks name; if none does, the one with machines of as many
    slots as were recorded of it, or one without a price if several could be meant.
    """
    name = next((hold.pool for hold in holds if hold.pool), "")
    if name or entry is None:
        return records.pools.get(name) or RecordedPool(instance="", spot=False, name=name)

    # No task names one: pools whose machines could be it. They may all have one price.
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
    name = f"{size} that nobody held, of {where}"
    return RecordedPool(instance="", spot=False, own=own, name=name)


def _launched_life(
    entry: Entry,
    holds: Sequence[Allocation],
    records: Records,
) -> Life:
    """Return the life of a machine that the master launched."""
    pool = _pool(holds, entry, records)
    start, end = whole_span([entry, *holds])

    # A spot machine that ended together with its tasks was reclaimed: the master terminates none
    # that has idled for less than its pool's time.
    min_idle = SLACK
    vanished = entry.kind == "vanished"
    if not vanished:
        min_idle = min(SLACK, pd.Timedelta(seconds=pool.idle / 2))
    ended = [hold.id for hold in holds if entry.end - hold.end < min_idle]
    ran = entry.end >= (records.now or records.until)
    taken = pool.spot and not ran and (vanished or bool(ended))
    return Life(
        entry.name,
        pool=pool,
        start=start,
        end=end,
        holds=holds,
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
    sizes = [entry.slots for entry in entries if entry.slots is not None]
    slots: float | None = max(sizes, default=pool.slots)
    # An agent that connects while it is disabled has 0 slots. Else its number counts: tasks that
    # follow each other may overlap by their clocks, and seem to hold more.
    if sizes and not slots:
        slots = _most_held(holds)
    for start, end in merge_spans([*entries, *holds]):
        inside = [hold for hold in holds if start <= hold.start and hold.end <= end]
        yield Life(
            entries[0].name,
            pool=pool,
            start=start,
            end=end,
            holds=inside,
            slots=slots,
        )


def _most_held(holds: Sequence[Allocation]) -> float:
    """Return most slots of a machine that were held at once."""
    # Sorted, a release comes before what is held from the same moment on.
    changes = [(hold.start, hold.slots_each) for hold in holds]
    changes += [(hold.end, -hold.slots_each) for hold in holds]
    held = accumulate(slots for _, slots in sorted(changes))
    return max(held, default=0.0)


def _share_life(
    machine: Life,
    courses: Mapping[str, Course],
) -> Iterator[Share]:
    """Yield the shares of a machine's life; those of a moment add up to 1."""
    # Between two cuts nothing changes: neither who holds the machine, nor for which phase.
    holds = [hold for hold in machine.holds if hold.end > hold.start]
    cuts = {machine.start, machine.end}
    for hold in holds:
        cuts |= {hold.start, hold.end}
        if hold.id in courses:
            course = courses[hold.id]
            cuts |= {course.begun, course.saved}
    used = defaultdict[int | str, float](float)  # slot-seconds by owner
    own = machine.pool.own and machine.part is None
    gaps = []

    # While tasks hold it, they pay by slots; free slots of one's own machine are nobody's. Tasks
    # without slots, such as TensorBoards, pay what no other holds: one slot each.
    for left, right in pairwise(sorted(cuts)):
        active = [hold for hold in holds if hold.start <= left and right <= hold.end]
        weights = [hold.slots_each for hold in active]
        if not any(weights) and not machine.slots:
            weights = [1.0 for _ in active]
        busy = sum(weights)
        slots = max(busy, machine.slots or busy) if own else busy
        seconds = (right - left).total_seconds()
        for hold, weight in zip(active, weights, strict=True):
            if not weight:
                continue
            used[hold.owner] += weight * seconds
            phase = "work"  # of tasks that are no experiment of the records
            if hold.id in courses:
                phase = courses[hold.id].phase(left)
            yield Share(
                hold.owner,
                phase=phase,
                start=left,
                end=right,
                share=weight / slots,
                allocation=hold.id,
            )
        if not active:
            gaps.append((left, right))
        elif busy < slots:
            free = 1.0 - busy / slots
            yield Share(NEVER_USED, phase="idle", start=left, end=right, share=free)
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
        # It boots until its first task; one of no length does not end that.
        booting = all(hold.end > left or hold.end == hold.start for hold in machine.holds)
        phase = "start-up" if booting else "idle"
        seconds = machine.pool.boot if booting else machine.pool.idle
        limit = SLACK + pd.Timedelta(seconds=seconds)
        payers = used
        if own or not used or right - left > limit:
            phase = "idle"
            nobody = NEVER_USED if own or not machine.holds else UNUSED
            payers = {nobody: 1.0}
        total = sum(payers.values())
        for owner, weight in payers.items():
            yield Share(owner, phase=phase, start=left, end=right, share=weight / total)


def stories(records: Records) -> dict[int, Story]:
    """Return the course of each experiment."""
    reclaimed = Counter[str]()
    for machine in machines(records):
        reclaimed.update(machine.ended)
    by_id = {}
    for experiment in records.experiments:
        by_id[experiment.id] = story(experiment, records, reclaimed)
    return by_id


def segments(records: Records, rates: Rates, history: History) -> pd.DataFrame:
    """Return a row per machine, owner and stretch of time within one month: hours and dollars.

    The owner is an experiment of the records, or a name. Other names than UNUSED need --since.
    Dollars are missing where a machine has no price; `kind` says of which machine.
    """
    rows = []
    courses = dict[str, Course]()
    named = stories(records)
    for experiment_story in named.values():
        courses |= experiment_story.courses
    for machine in machines(records):
        tariff = _tariff(machine, rates, history)
        for share in _share_life(machine, courses):
            owner = share.owner
            if records.since is None and owner not in (*named, UNUSED):
                continue
            if isinstance(owner, int) and owner not in named:
                owner = f"experiment {owner}, deleted"

            # Cut to the span, and at the begin of each month within it.
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
            rates = [float(mean)] * 3 + rates[3:]  # past prices have no range
        return [hours * rate for rate in rates]


def _tariff(machine: Life, rates: Rates, history: History) -> _Tariff:
    pool = machine.pool
    kind = rates.kind(pool.instance, pool.region)
    price = rates.at(kind) if pool.instance else None
    name = str(kind) if pool.instance else pool.name

    # A machine that is not recorded counts by the slots that its task held of it.
    size = price.slots if price else pool.slots
    part = 1.0
    if machine.part and size:
        part = min(machine.part / size, 1.0)
    if price is None:
        return _Tariff(name, part, [math.nan] * 4)
    weight = 1.0
    if machine.slots is not None and size and SLOTS.get(pool.instance) != 0:
        # A slot of one's own machine costs as much as one of the type that prices its pool.
        weight = machine.slots / size
    elif not (machine.ran or pool.own or machine.part) and machine.hours > 0:
        weight = max(1.0, MINUTE / 3600 / machine.hours)

    # AWS charges nothing for a spot machine that it reclaims within the first hour.
    free = machine.taken and machine.hours <= FREE_HOUR
    paid = 0.0 if free else weight
    low, usual, high = price.hourly_range(pool.spot)
    dollars = [
        paid * usual,
        paid * low,
        paid * high,
        weight * price.on_demand,
    ]
    if pool.spot and kind in history:
        return _Tariff(name, part, dollars, history[kind] * paid)
    return _Tariff(name, part, dollars)
