"""Who pays for which time of a cluster's machines: the rules are in README.md.

Lives are divided in full, then cut to the span, so that the bills of its parts add up.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from cluster.prices import FREE_HOUR, Price
from cluster.usage import SLACK, Allocation, Entry, Moment, RecordedPool, Records
from reports.rates import History, Rates

HOUR = pd.Timedelta(hours=1)
NUMBERS = ["hours", "cost", "low", "high", "on demand"]
NOBODY, UNHELD = "(nobody)", "(unheld)"  # unused time of machines in use; those never in use
COLUMNS = "machine owner phase start end month kind".split()


class Life(NamedTuple):
    """One machine's life. If AWS reclaimed it, `taken`, which ended the allocations `ended`."""

    name: str
    pool: RecordedPool
    start: Moment
    end: Moment
    holds: Sequence[Allocation]
    slots: float | None = None  # that are charged; None: the machine
    taken: bool = False
    ended: Sequence[str] = ()


def machines(records: Records) -> list[Life]:
    """Return the machines that were held, and with --since those never held."""
    held: dict[str, list[Allocation]] = defaultdict(list)
    for a in (*records.allocations, *records.others):
        for node in a.nodes or (a.id,):
            held[node].append(a)
    lives, found, pools = records.lives(), list[Life](), dict[str, RecordedPool]()
    for node, holds in held.items():
        name = next((a.pool for a in holds if a.pool), "")
        pool = pools[node] = records.pools.get(name) or RecordedPool("", False, name=name)
        if node in lives:
            found.append(_life(lives[node], pool, holds, records))
        else:
            found += [Life(node, pool, a.start, a.end, [a], a.slots_each) for a in holds]
    if records.since is not None:
        own = [e for e in records.entries if e.kind == "agent" and e.name not in lives]
        for life in (*lives.values(), *own):
            if life.name in held:
                continue
            nearest = _nearest(life, pools, records)
            if nearest:
                found.append(_life(life, nearest, [], records))
    return found


def _nearest(
    life: Entry, pools: Mapping[str, RecordedPool], records: Records
) -> RecordedPool | None:
    """Return the pool of an unheld machine, which is not recorded: that of the machine in `pools`,
    of as many slots if there is one, that was launched nearest in time.
    """
    seen = [(e.slots, e.start, pools[e.name]) for e in records.entries if e.name in pools]
    seen += [(-1, records.until, pool) for pool in records.pools.values()]
    near = [x for x in seen if x[2].instance and x[2].own == (life.kind == "agent")]
    nearest = min(near, key=lambda x: (x[0] != life.slots, abs(x[1] - life.start)), default=None)
    return nearest and nearest[2]


def _life(life: Entry, pool: RecordedPool, holds: list[Allocation], records: Records) -> Life:
    vanished = life.kind == "vanished"
    idle = pd.Timedelta(seconds=pool.idle / 2)  # the master terminates no machine before
    least = SLACK if vanished else min(SLACK, idle)
    ended = [a.id for a in holds if life.end - a.end < least]
    taken = pool.spot and life.end < (records.now or records.until) and (vanished or bool(ended))
    start = min([life.start, *(a.start for a in holds)])
    end = max([life.end, *(a.end for a in holds)])
    return Life(life.name, pool, start, end, holds, None, taken, ended if taken else ())


def _share_life(machine: Life) -> Iterator[tuple[int | str, str, Moment, Moment, float]]:
    """Yield owner, phase, from, to, share; the shares of a moment add up to 1."""
    holds = [a for a in machine.holds if a.end > a.start]
    cuts = {machine.start, machine.end} | {t for a in holds for t in (a.start, a.end)}
    used: dict[int | str, float] = defaultdict(float)  # slot-seconds by owner
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
        if not used or right - left > SLACK + pd.Timedelta(seconds=getattr(machine.pool, phase)):
            yield NOBODY if machine.holds else UNHELD, "unused", left, right, 1.0
            continue
        for owner, weight in used.items():
            yield owner, phase, left, right, weight / sum(used.values())


def segments(records: Records, rates: Rates, history: History) -> pd.DataFrame:
    """Return a row per machine, owner and stretch of time within one month: hours and dollars.

    The owner is an experiment of the records, or a name. Other names than NOBODY need --since.
    Dollars are missing where a machine has no price; `kind` says of which machine.
    """
    rows, named = [], {experiment.id for experiment in records.experiments}
    for machine in machines(records):
        tariff = _tariff(machine, rates, history)
        for owner, phase, start, end, share in _share_life(machine):
            if owner not in {*named, NOBODY} and records.since is None:
                continue
            deleted = isinstance(owner, int) and owner not in named
            whose = f"experiment {owner}, deleted" if deleted else owner
            start, end = records.cut(start, end)
            months = pd.date_range(start.normalize(), end, freq="MS").tolist()
            for left, right in pairwise([start, *(m for m in months if start < m < end), end]):
                hours = (right - left) / HOUR * share * tariff.part
                where = (machine.name, whose, phase, left, right, f"{left:%Y-%m}", tariff.kind)
                rows.append((*where, hours, *tariff.dollars(hours, left, right)))
    table = pd.DataFrame(rows, columns=[*COLUMNS, *NUMBERS])
    return table[table["start"] < table["end"]]


class _Tariff(NamedTuple):
    """The cost of a machine."""

    kind: str  # type and region, or what is known of a machine that has no price
    price: Price | None
    spot: bool
    past: pd.Series | None  # dollars an hour on spot
    part: float  # of the machine that its tasks are charged
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
        paid = 0.0 if self.free else hours
        return (*(paid * rate for rate in rates), hours * self.price.on_demand)


def _tariff(machine: Life, rates: Rates, history: History) -> _Tariff:
    pool = machine.pool
    kind = rates.kind(pool.instance, pool.region)
    price = rates.at(kind) if pool.instance else None
    size = price.slots if price else pool.slots
    return _Tariff(
        kind=str(kind) if pool.instance else pool.name,
        price=price,
        spot=pool.spot,
        past=history.get(kind) if pool.spot else None,
        part=min(machine.slots / size, 1.0) if machine.slots and size else 1.0,
        free=machine.taken and (machine.end - machine.start) / HOUR <= FREE_HOUR,
    )


def _mean(history: pd.Series, start: Moment, end: Moment, price: Price) -> float:
    """Return mean dollars per hour over a stretch; the price file's before the history begins."""
    times = [start, *history.index[(history.index > start) & (history.index < end)], end]
    rates = history.reindex(times[:-1], method="ffill").fillna(price.spot)
    lengths = [(right - left) / (end - start) for left, right in pairwise(times)]
    return float((rates.to_numpy() * lengths).sum())
