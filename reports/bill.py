"""Slot-hours and dollars of what ran on a cluster: hours x slots x price of a pool's machine.

Three steps. The time of each allocation is start-up until its work begins, and lost after its last
checkpoint if it did not end well. What is left of the recorded life of a machine is idle: it is
paid by the task that came last to the machine, if the master launched it. At last all stretches of
time are cut at the span, and where a month begins, so that the rows of any cut add up to the whole.
Nothing is rounded before it is shown.
"""

import argparse
import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import pandas as pd

from cluster.prices import parse_machine, price_of, price_source, slots_of
from detalbert.errors import UserError, nearest
from reports.queries import fetch_records
from reports.records import Allocation, MachineLife, Moment, Owner, RecordedPool, Records, Trial

PHASES = ("start-up", "work", "lost", "idle")
# Words of the master's reason for the end of an allocation, and what a report calls it.
ENDINGS = {
    "agent failure": "agent lost",  # it costs no restart
    "restore error": "agent lost",  # nor if the container was gone when the master came back
    "failed": "failed",
    "crashed": "failed",
    "killed": "killed",
    "preempted": "preempted",
}
STOPS = (
    "failed",
    "agent lost",
    "killed",
    "preempted",
    "unknown",
)
# Of an allocation: where a phase begins, or the last one ends.
BOUNDS = ("start", "begun", "saved", "end")
COLUMNS = [*Allocation._fields, "begun", "saved", "stop"]
# Columns of a bill that add up. Phases are slot-hours.
SUMS = [
    "starts",
    *STOPS,
    "hours",
    *PHASES,
    "unpriced",
    "dollars",
    "on demand",
]
# Of a machine: when, how many slots more are held, and whose task came.
Change: TypeAlias = tuple[Moment, float, Owner | None]
HOUR = pd.Timedelta(hours=1)
NOBODY = Owner(name="(idle)")


class SlotPrice(NamedTuple):
    """Dollars per hour of a slot: of a machine without GPUs, which counts as one."""

    dollars: float
    on_demand: float
    slots: int  # of the machine
    source: str  # region and day


def machine_price(machine: str, region: str, key: str = "") -> SlotPrice:
    """Return the price of a machine.

    Args:
        machine: `INSTANCE` or `INSTANCE:spot`.
        region: of AWS; empty: that of the price file.
        key: what names the machine, for the error.

    Raises:
        UserError: if there is no price of it there.
    """
    name, market = parse_machine(machine, key=key, region=region)
    slots = slots_of(name) or 0
    return SlotPrice(
        dollars=price_of(name, region, market) / (slots or 1),
        on_demand=price_of(name, region) / (slots or 1),
        slots=slots,
        source=price_source(region),
    )


def pool_prices(
    pools: Mapping[str, RecordedPool],
    region: str = "",
    priced_pools: Sequence[str] = (),
) -> dict[str, SlotPrice]:
    """Return the prices of those pools that have one.

    Args:
        pools: pools of a master, by name.
        region: AWS region of all machines; empty: that of each pool.
        priced_pools: `POOL=INSTANCE[:spot]` of machines of your own.
    """
    prices = {}
    for name, pool in pools.items():
        with contextlib.suppress(UserError):
            prices[name] = machine_price(pool.machine, region=region or pool.region)
    for text in priced_pools:
        name, _, machine = text.partition("=")
        if name not in pools:
            raise UserError(
                "the master has no such pool",
                key=f"--price-pool {text}",
                cure=nearest(name, pools),
            )
        prices[name] = machine_price(machine, region=region, key=f"--price-pool {text}")
    return prices


def bill_notes(frame: pd.DataFrame, prices: Mapping[str, SlotPrice]) -> list[str]:
    """Return notes on the prices of a bill, and on pools that have none."""
    pools = frame.groupby("pool")["unpriced"].sum()
    notes = sorted({f"prices of {prices[pool].source}" for pool in pools.index if pool in prices})
    if pools.any():
        notes.append(
            f"{pools.sum():,.2f} slot-hours have no price; give --price-pool POOL=INSTANCE[:spot]"
        )
    return notes


def fetch_bill(args: argparse.Namespace) -> tuple[Records, pd.DataFrame, list[str]] | None:
    """Return records that the flags select of a master, their bill, and notes; None if they select
    nothing.
    """
    records = fetch_records(args)
    if records is None:
        return None
    prices = pool_prices(
        records.pools,
        region=args.region,
        priced_pools=args.price_pool,
    )
    frame = bill(records, prices)
    since = records.since or frame["left"].min()
    note = (
        f"start-up to idle: slot-hours, from {since:%Y-%m-%d %H:%M} "
        f"until {records.until:%Y-%m-%d %H:%M} UTC"
    )
    return records, frame, [note, *bill_notes(frame, prices)]


def bill(records: Records, prices: Mapping[str, SlotPrice]) -> pd.DataFrame:
    """Return a row per owner, phase and stretch of time within one month, with the columns SUMS.

    Dollars are nan where a pool has no price. Of named experiments, what others pay is left out.
    """
    tasks = defaultdict[str, list[Allocation]](list)  # by machine
    held = []
    for trial in records.trials:
        for allocation in trial.allocations:
            held.append({**allocation._asdict(), **_phases(allocation, trial)})
            for node in allocation.nodes:
                tasks[node].append(allocation)
    allocations = pd.DataFrame(held, columns=COLUMNS)
    frames = [
        allocations.assign(phase=phase, left=allocations[left], right=allocations[right])
        for phase, (left, right) in zip(PHASES, pairwise(BOUNDS), strict=False)
    ]
    idle = list[dict[str, object]]()
    for machine in records.machines:
        holders = tasks[machine.name]
        pools = [task.pool for task in holders]
        if machine.launched and not holders:
            # The only pool that has machines with as many slots.
            pools = [
                name
                for name, price in prices.items()
                if price.slots == machine.slots and records.pools[name].machine
            ]
        name = pools[0] if len(set(pools)) == 1 else "(unknown)"
        pool = records.pools.get(name, RecordedPool(name))
        idle += _idle(machine, holders, pool)

    frame = pd.concat([*frames, pd.DataFrame(idle)], ignore_index=True)
    if frame.empty:
        raise UserError("nothing has run there", key="the master", cure="name other experiments")
    owners = pd.DataFrame(frame["owner"].tolist(), columns=Owner._fields)
    frame = frame.join(owners)
    if not records.whole:
        frame = frame[frame["trial"] > 0]
    pieces = _cut(frame, since=records.since, until=records.until)
    return _measure(pieces, prices)


def _phases(allocation: Allocation, trial: Trial) -> dict[str, object]:
    """Return when the work of an allocation began, until when it was saved, and what stopped it.

    The master does not record when work began: it is with what the first report is of. In a trial
    whose reports have no speed, all of the time is work.
    """
    stop = _stop(allocation, trial)
    has_ended_well = stop in ("", "preempted")
    reports = [report for report in trial.reports if allocation.has(report.time)]
    checkpoints = [moment for moment in trial.checkpoints if allocation.has(moment)]
    begun = allocation.start
    if reports:
        length = pd.Timedelta(seconds=reports[0].seconds)
        begun = max(begun, reports[0].time - length)
    elif trial.reports and has_ended_well:
        begun = allocation.end
    saved = allocation.end
    if not has_ended_well:
        saved = max([begun, *checkpoints])
    return {"begun": begun, "saved": saved, "stop": stop}


def _stop(allocation: Allocation, trial: Trial) -> str:
    """Return what ended an allocation before its trial; empty: nothing did."""
    is_last = allocation.id == trial.allocations[-1].id
    if allocation.running or (is_last and "completed" in trial.state):
        return ""
    for words, ending in ENDINGS.items():
        if words in allocation.exit:
            return ending
    return "" if allocation.exit else "unknown"


def _idle(
    machine: MachineLife,
    tasks: Sequence[Allocation],
    pool: RecordedPool,
) -> Iterator[dict[str, object]]:
    """Yield the slots of a machine that no task holds, with who pays them: the task that came last,
    or before all others the first.

    Nobody pays what is idle for longer than the pool's patience, nor machines of your own.
    """
    # An agent that connects while it is disabled is recorded without slots.
    slots = machine.slots or max([task.slots_each for task in tasks], default=0) or 1
    changes: list[Change] = [(machine.end, 0.0, None)]
    for task in tasks:
        start = max(task.start, machine.start)
        end = min(task.end, machine.end)
        if start < end:
            changes.append((start, task.slots_each, task.owner))
            changes.append((end, -task.slots_each, None))
    changes.sort(key=lambda change: change[0])

    # Between two changes the same tasks hold it.
    held = 0.0
    left = machine.start
    payer = changes[0][-1] or NOBODY
    for right, more_slots, newcomer in changes:
        is_paid = machine.launched and (held or right - left <= pool.patience)
        yield {
            "owner": payer if is_paid else NOBODY,
            "pool": pool.name,
            "phase": "idle",
            "left": left,
            "right": right,
            "slots": max(slots - held, 0),
        }
        held += more_slots
        payer = newcomer or payer
        left = right


def _cut(frame: pd.DataFrame, since: Moment | None, until: Moment) -> pd.DataFrame:
    """Return the parts of all stretches that are in the span, cut where a month begins."""
    first = since or min(frame["left"].min(), until)
    months = pd.date_range(
        start=first.normalize().replace(day=1),
        end=until,
        freq="MS",
    )
    pieces = []
    for month in months:
        begin = max(month, first)
        end = min(month + pd.offsets.MonthBegin(), until)
        left = frame["left"].clip(lower=begin)
        right = frame["right"].clip(upper=end)
        piece = frame.assign(
            left=left,
            right=right,
            month=f"{month:%Y-%m}",
        )
        pieces.append(piece[left < right])
    return pd.concat(pieces)


def _measure(frame: pd.DataFrame, prices: Mapping[str, SlotPrice]) -> pd.DataFrame:
    """Return the stretches with the columns SUMS."""
    hours = (frame["right"] - frame["left"]) / HOUR
    slot_hours = hours * frame["slots"]
    # Rows of idle time have no start and end of an allocation.
    is_end = frame["right"] == frame["end"]
    columns = {
        "starts": frame["left"] == frame["start"],
        "hours": hours.where(frame["start"].notna(), 0.0),
    }
    for stop in STOPS:
        columns[stop] = is_end & (frame["stop"] == stop)
    for phase in PHASES:
        columns[phase] = slot_hours.where(frame["phase"] == phase, 0.0)
    rates = pd.DataFrame([*prices.values()], index=[*prices], columns=SlotPrice._fields)
    columns["dollars"] = slot_hours * frame["pool"].map(rates["dollars"]).astype(float)
    columns["on demand"] = slot_hours * frame["pool"].map(rates["on_demand"]).astype(float)
    columns["unpriced"] = slot_hours.where(columns["dollars"].isna(), 0.0)
    return frame.assign(**columns)
