"""Who pays for which time of a cluster's machines: the rules are in README.md.

Lives are divided in full, then cut to the span, so that the bills of its parts add up.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from cluster.facts.machines import SLOTS
from cluster.facts.prices import FREE_HOUR, Price
from reports.phases import Course, pieces, story
from reports.rates import History, Rates
from reports.usage import SLACK, Allocation, Entry, Moment, RecordedPool, Records

HOUR = pd.Timedelta(hours=1)
NUMBERS = ["hours", "cost", "low", "high", "on demand"]
NOBODY, UNHELD = (
    "(nobody)",
    "(unheld)",
)  # unused time of machines in use; machines and slots never held
MINUTE = 60.0  # seconds that AWS charges of a machine at least
COLUMNS = "machine owner phase start end month kind allocation".split()


class Share(NamedTuple):
    """A stretch of a machine's life: who pays which share of it, for which phase of a bill."""

    owner: int | str
    phase: str
    start: Moment
    end: Moment
    share: float
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
    launched, connected = records.lives(), records.connected()
    names = dict.fromkeys(held)
    if records.since is not None:
        names |= dict.fromkeys((*launched, *connected))
    lives = list[Life]()
    for name in names:
        holds = held.get(name, [])
        entries = [launched[name]] if name in launched else connected.get(name, [])
        pool = _pool(holds, entries, records)
        if name in launched:
            lives.append(_life(launched[name], pool, holds, records))
        elif entries:
            lives += _own_lives(entries, pool, holds)
        else:
            lives += [Life(name, pool, a.start, a.end, [a], part=a.slots_each) for a in holds]
    return lives


def _pool(holds: Sequence[Allocation], entries: Sequence[Entry], records: Records) -> RecordedPool:
    """Return the pool that a machine's tasks name; if none does, the one with machines of as many
    slots as were recorded of it, or one without a price if several could be meant.
    """
    name = next((a.pool for a in holds if a.pool), "")
    if name or not entries:
        return records.pools.get(name) or RecordedPool("", False, name=name)
    own, slots = entries[0].kind == "agent", entries[0].slots
    alike = [
        pool
        for pool in records.pools.values()
        if pool.own == own and (slots is None or pool.slots in (None, slots))
    ]
    if len({(pool.instance or pool.name, pool.region, pool.spot) for pool in alike}) == 1:
        return alike[0]
    size = "machines" if slots is None else f"machines with {slots} slots"
    where = " or ".join(pool.name for pool in alike) or "no pool of this master"
    return RecordedPool("", False, own=own, name=f"{size} that nobody held, of {where}")


def _life(life: Entry, pool: RecordedPool, holds: Sequence[Allocation], records: Records) -> Life:
    """Return the life of a machine that the master launched."""
    vanished = life.kind == "vanished"
    idle = pd.Timedelta(seconds=pool.idle / 2)  # the master terminates no machine before
    least = SLACK if vanished else min(SLACK, idle)
    ended = [a.id for a in holds if life.end - a.end < least]
    ran = life.end >= (records.now or records.until)
    taken = pool.spot and not ran and (vanished or bool(ended))
    return Life(
        name=life.name,
        pool=pool,
        start=min([life.start, *(a.start for a in holds)]),
        end=max([life.end, *(a.end for a in holds)]),
        holds=holds,
        taken=taken,
        ended=ended if taken else (),
        ran=ran,
    )


def _own_lives(
    entries: Sequence[Entry], pool: RecordedPool, holds: Sequence[Allocation]
) -> list[Life]:
    """Return the stretches of time in which a machine of one's own was connected or held."""
    spans = list[tuple[Moment, Moment]]()
    times = [(entry.start, entry.end) for entry in entries]
    times += [(hold.start, hold.end) for hold in holds]
    for start, end in sorted(times):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((start, end))
    slots = max((entry.slots for entry in entries if entry.slots is not None), default=pool.slots)
    return [
        Life(
            name=entries[0].name,
            pool=pool,
            start=start,
            end=end,
            holds=[a for a in holds if start <= a.start and a.end <= end],
            slots=slots,
        )
        for start, end in spans
    ]


def _share_life(machine: Life, courses: Mapping[str, Course]) -> Iterator[Share]:
    """Yield the shares of a machine's life; those of a moment add up to 1."""
    holds = [a for a in machine.holds if a.end > a.start]
    cuts = {machine.start, machine.end}
    for a in holds:
        cuts |= {a.start, a.end}
    used = defaultdict[int | str, float](float)  # slot-seconds by owner
    gaps, own = [], machine.pool.own and machine.part is None
    for left, right in pairwise(sorted(cuts)):
        active = [a for a in holds if a.start <= left and right <= a.end]
        busy = sum(a.slots_each for a in active)
        slots = max(busy, machine.slots or busy) if own else busy
        for a in active:
            used[a.owner] += a.slots_each * (right - left).total_seconds()
            for phase, begin, end in pieces(courses.get(a.id), left, right):
                yield Share(a.owner, phase, begin, end, a.slots_each / slots, a.id)
        if not active:
            gaps.append((left, right))
        elif busy < slots:
            yield Share(UNHELD, "idle", left, right, 1.0 - busy / slots)
    for left, right in gaps:
        booting = not any(a.end <= left for a in holds)
        limit = machine.pool.boot if booting else machine.pool.idle
        if own:
            yield Share(UNHELD, "idle", left, right, 1.0)
        elif not used or right - left > SLACK + pd.Timedelta(seconds=limit):
            yield Share(NOBODY if machine.holds else UNHELD, "idle", left, right, 1.0)
        else:
            phase = "start-up" if booting else "idle"
            for owner, weight in used.items():
                yield Share(owner, phase, left, right, weight / sum(used.values()))


def reclaimed(records: Records) -> Counter[str]:
    """Return the number of machines that AWS took, by the allocation that ended so."""
    return Counter(name for machine in machines(records) for name in machine.ended)


def segments(records: Records, rates: Rates, history: History) -> pd.DataFrame:
    """Return a row per machine, owner and stretch of time within one month: hours and dollars.

    The owner is an experiment of the records, or a name. Other names than NOBODY need --since.
    Dollars are missing where a machine has no price; `kind` says of which machine.
    """
    rows, named = [], {experiment.id for experiment in records.experiments}
    courses, taken = dict[str, Course](), reclaimed(records)
    for experiment in records.experiments:
        courses |= story(experiment, records, taken).courses
    for machine in machines(records):
        tariff = _tariff(machine, rates, history)
        for owner, phase, start, end, share, allocation in _share_life(machine, courses):
            if owner not in {*named, NOBODY} and records.since is None:
                continue
            deleted = isinstance(owner, int) and owner not in named
            whose = f"experiment {owner}, deleted" if deleted else owner
            start, end = records.cut(start, end)
            months = pd.date_range(start.normalize(), end, freq="MS").tolist()
            for left, right in pairwise([start, *(m for m in months if start < m < end), end]):
                hours = (right - left) / HOUR * share * tariff.part
                where = (machine.name, whose, phase, left, right, f"{left:%Y-%m}", tariff.kind)
                dollars = tariff.dollars(hours, left, right)
                rows.append((*where, allocation, hours, *dollars))
    table = pd.DataFrame(rows, columns=[*COLUMNS, *NUMBERS])
    return table[table["start"] < table["end"]]


class _Tariff(NamedTuple):
    """The cost of a machine."""

    kind: str  # type and region, or what is known of a machine that has no price
    price: Price | None
    spot: bool
    past: pd.Series | None  # dollars an hour on spot
    part: float  # of the machine that its tasks held
    weight: float  # of the price
    free: bool  # a spot machine that was reclaimed in its first hour

    def dollars(self, hours: float, start: Moment, end: Moment) -> tuple[float, ...]:
        """Return cost, low, high and the price on demand of machine-hours in a stretch of time."""
        if self.price is None:
            return (math.nan,) * 4
        if self.past is not None:
            rates = (_mean(self.past, start, end, self.price),) * 3
        elif self.spot:
            low, middle, high = self.price.spot_range()
            rates = (middle, low, high)
        else:
            rates = (self.price.on_demand,) * 3
        charged = hours * self.weight
        paid = 0.0 if self.free else charged
        return (*(paid * rate for rate in rates), charged * self.price.on_demand)


def _tariff(machine: Life, rates: Rates, history: History) -> _Tariff:
    pool = machine.pool
    kind = rates.kind(pool.instance, pool.region)
    price = rates.at(kind) if pool.instance else None
    size = price.slots if price else pool.slots
    weight = 1.0
    if machine.slots is not None and size and SLOTS.get(pool.instance) != 0:
        # A slot of one's own machine costs as much as one of the type that prices its pool.
        weight = machine.slots / size
    elif not (machine.ran or pool.own or machine.part) and machine.hours > 0:
        weight = max(1.0, MINUTE / 3600 / machine.hours)
    return _Tariff(
        kind=str(kind) if pool.instance else pool.name,
        price=price,
        spot=pool.spot,
        past=history.get(kind) if pool.spot else None,
        part=min(machine.part / size, 1.0) if machine.part and size else 1.0,
        weight=weight,
        free=machine.taken and machine.hours <= FREE_HOUR,
    )


def _mean(history: pd.Series, start: Moment, end: Moment, price: Price) -> float:
    """Return mean dollars per hour over a stretch; the price file's before the history begins."""
    times = [start, *history.index[(history.index > start) & (history.index < end)], end]
    rates = history.reindex(times[:-1], method="ffill").fillna(price.spot)
    lengths = [(right - left) / (end - start) for left, right in pairwise(times)]
    return float((rates.to_numpy() * lengths).sum())
