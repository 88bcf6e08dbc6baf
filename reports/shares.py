"""Who pays for which time of a cluster's machines: the rules are in README.md.

Lives are divided in full, then cut to the span, so that the bills of its parts add up.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from cluster.prices import FREE_HOUR, Price, find_price
from cluster.usage import SLACK, Allocation, Entry, Moment, RecordedPool, Records

HOUR = pd.Timedelta(hours=1)
NUMBERS = ["hours", "cost", "low", "high", "on demand"]
NOBODY, UNHELD = "(nobody)", "(unheld)"  # unused time of machines in use; those never in use
History = Mapping[str, pd.Series]  # instance type -> dollars an hour from each moment on


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
    """Return the machines of priced pools that were held, and with --since those never held."""
    held: dict[str, list[Allocation]] = defaultdict(list)
    for a in (*records.allocations, *records.others):
        for node in a.nodes or (a.id,):
            held[node].append(a)
    lives, found, pools = records.lives(), list[Life](), dict[str, RecordedPool]()
    for node, holds in held.items():
        pool = records.pools.get(next((a.pool for a in holds if a.pool), ""))
        if pool is None or not pool.instance:
            continue
        pools[node] = pool
        if node in lives:
            found.append(_life(lives[node], pool, holds, records))
        else:
            found += [Life(node, pool, a.start, a.end, [a], a.slots_each) for a in holds]
    if records.since is not None:
        own = [e for e in records.entries if e.kind == "agent" and e.name not in lives]
        for life in (*lives.values(), *own):
            if life.name not in held and (pool := _nearest(life, pools, records)):
                found.append(_life(life, pool, [], records))
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


def segments(records: Records, prices: Mapping[str, Price], history: History) -> pd.DataFrame:
    """Return a row per machine, owner and stretch of time within one month: hours and dollars.

    The owner is an experiment of the records, or a name. Other names than NOBODY need --since.
    """
    rows, named = [], {e.id for e in records.experiments}
    for machine in machines(records):
        price, spot = find_price(prices, machine.pool.instance), machine.pool.spot
        known = history.get(machine.pool.instance) if spot else None
        free = machine.taken and (machine.end - machine.start) / HOUR <= FREE_HOUR
        charged = 1.0 if machine.slots is None else machine.slots / price.slots
        for owner, phase, start, end, share in _share_life(machine):
            if owner not in {*named, NOBODY} and records.since is None:
                continue
            lost = isinstance(owner, int) and owner not in named
            whose = f"experiment {owner}, deleted" if lost else owner
            start, end = records.cut(start, end)
            months = pd.date_range(start.normalize(), end, freq="MS").tolist()
            for left, right in pairwise([start, *(m for m in months if start < m < end), end]):
                hours = (right - left) / HOUR * share * charged
                rate = price.hourly(spot) if known is None else _mean(known, left, right, price)
                seen = price.spot_range() if spot and known is None else (rate, rate, rate)
                paid = [0.0 if free else hours * dollars for dollars in (rate, seen[0], seen[2])]
                where = (machine.name, whose, phase, left, right, f"{left:%Y-%m}")
                rows.append((*where, hours, *paid, hours * price.on_demand))
    table = pd.DataFrame(rows, columns=[*"machine owner phase start end month".split(), *NUMBERS])
    return table[table["start"] < table["end"]]


def _mean(history: pd.Series, start: Moment, end: Moment, price: Price) -> float:
    """Return mean dollars per hour over a stretch; the price file's before the history begins."""
    times = [start, *history.index[(history.index > start) & (history.index < end)], end]
    rates = history.reindex(times[:-1], method="ffill").fillna(price.spot)
    lengths = [(right - left) / (end - start) for left, right in pairwise(times)]
    return float((rates.to_numpy() * lengths).sum())
