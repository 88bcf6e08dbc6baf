"""Bills of drawn clusters, held against a ledger that is kept by the minute."""

import datetime
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cluster.facts.prices import load_prices
from cluster.facts.rates import Rates
from reports import bills, shares
from reports.queries import parse_time
from reports.usage import (
    Allocation,
    Entry,
    Experiment,
    Moment,
    RecordedPool,
    Records,
    Trial,
)
from tests.conftest import max_examples

START = parse_time("2026-10-31T12:00:00Z")  # summer time ends in the night, and the month
NOW = 2400  # minutes from there
PRICES = load_prices()
RATES = Rates()
BOOT = 20
NOTEBOOK = "notebook of bob"

Owner: TypeAlias = int | str
Dollars: TypeAlias = Mapping[Owner, float]


class Machine(NamedTuple):
    """What became of a machine, in minutes; `fate`: open, terminated, reclaimed, or never up."""

    start: int
    end: int
    fate: str


class Drawn(NamedTuple):
    """A cluster as it was, and as the master recorded it."""

    records: Records
    machines: dict[str, Machine]
    cut: Moment


class Hold(NamedTuple):
    """A task on one machine, in minutes."""

    start: int
    end: int
    slots: float
    owner: Owner


def moment(minute: int, zone: str = "Z") -> Moment:
    """Return the minute's time as the master may write it: with the hours of a zone."""
    hours = 0 if zone == "Z" else int(zone[:3])
    time = START + datetime.timedelta(minutes=minute, hours=hours)
    return parse_time(f"{time:%Y-%m-%dT%H:%M:%S}{zone}")


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    start, end = sorted(draw(st.tuples(st.integers(0, NOW - 90), st.integers(0, NOW - 90))))
    fate = draw(st.sampled_from(["open", "terminated", "reclaimed", "never up"]))
    in_first_hour = draw(st.booleans())
    if in_first_hour and fate == "reclaimed":
        end = min(end, start + 50)
    if fate == "open":
        return Machine(start, NOW, fate)
    if fate == "never up":
        return Machine(start, start + BOOT + 5, fate)
    return Machine(start, end + 2, fate)


def entries(name: str, machine: Machine, restart: int) -> list[Entry]:
    """Return the rows of ScaleDecider and agent; all open ones end where the master restarts."""
    start, end, fate = machine
    closed = fate in ("open", "terminated")
    lives = [("instance", start, end if closed else NOW)]
    if fate != "never up":
        # The agent leaves after the master has terminated its machine.
        agent_end = end + 1 if fate == "terminated" else end
        lives.append(("agent", start + 1, agent_end))
    rows = []
    for kind, first, last in lives:
        spans = [(first, last)]
        if first < restart < last:
            spans = [(first, restart)]
            if restart < end:
                spans.append((restart + 1, last))
        for left, right in spans:
            rows.append(Entry(kind, 0, name, moment(left), moment(right), slots=8))
    return rows


@st.composite
def tasks(draw: st.DrawFn, alive: dict[str, Machine]) -> list[Allocation]:
    """Return tasks on machines that were up."""
    up = [name for name, machine in alive.items() if machine.fate != "never up"]
    held = []
    for number in range(draw(st.integers(0, 6))):
        nodes = draw(st.lists(st.sampled_from(up), min_size=1, max_size=2, unique=True))
        start, end = sorted(draw(st.tuples(st.integers(0, NOW), st.integers(0, NOW))))
        skew = draw(st.integers(-1, 1))  # clocks differ
        start = max(start, *(alive[node].start + skew for node in nodes))
        end = min(end, NOW, *(alive[node].end + skew for node in nodes))
        zone = draw(st.sampled_from(["Z", "-04:00", "-05:00", "+01:00"]))
        owner = draw(st.sampled_from([1, 2, 3, NOTEBOOK]))
        slots = draw(st.integers(1, 8)) * len(nodes)
        if start < end:
            task = Allocation(
                f"{owner}.{number}",
                start=moment(start, zone),
                end=moment(end, zone),
                pool="p",
                nodes=tuple(nodes),
                slots=slots,
                owner=owner,
            )
            held.append(task)
    return held


def experiment(number: int, held: list[Allocation]) -> Experiment:
    own = tuple(task for task in held if task.owner == number)
    trial = Trial(
        number,
        state="STATE_ERROR",
        allocations=own,
        checkpoints=(),
        windows=1,
        reports=(),
        scores={},
    )
    return Experiment(
        number,
        name="e",
        user="ada",
        labels=(),
        model=None,
        config={},
        slots=8,
        pool="p",
        trials=(trial,),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Drawn:
    alive = {f"i-{n}": draw(machines()) for n in range(draw(st.integers(1, 4)))}
    alive["i-up"] = Machine(0, NOW, "open")
    held = draw(tasks(alive))

    # A restart ends the rows of a machine that never came up, too late; and it is apart from ends.
    restart = draw(st.integers(1, NOW - 3))
    rows = []
    for name, machine in alive.items():
        assume(machine.fate != "never up" or restart < machine.start)
        assume(abs(restart - machine.start) > 2 and abs(restart - machine.end) > 2)
        rows += entries(name, machine, restart)
    idle = draw(st.sampled_from([2, 5, 30, 10**6]))
    pool = RecordedPool("p3.16xlarge", spot=draw(st.booleans()), boot=BOOT * 60, idle=idle * 60)
    minutes = st.integers(0, NOW)
    since, cut, until = sorted(draw(st.tuples(minutes, minutes, minutes)))
    records = Records(
        experiments=tuple(experiment(number, held) for number in (1, 2, 3)),
        pools={"p": pool},
        until=moment(until),
        entries=tuple(rows),
        others=tuple(task for task in held if task.owner == NOTEBOOK),
        since=moment(since),
        now=moment(NOW),
    )
    return Drawn(records, machines=alive, cut=moment(cut))


def minute(time: Any) -> int:
    return round((time - START).total_seconds() / 60)


def ledger(drawn: Drawn) -> Dollars:
    """Return dollars by owner, as README.md's rules say it, a minute after the other."""
    records = drawn.records
    paid = Counter[Owner]()
    for name, machine in drawn.machines.items():
        holds = []
        for task in (*records.allocations, *records.others):
            if name in task.nodes:
                slots = task.slots / len(task.nodes)
                holds.append(Hold(minute(task.start), minute(task.end), slots, task.owner))
        paid.update(machine_ledger(machine, holds, records))
    return paid


def machine_ledger(machine: Machine, holds: list[Hold], records: Records) -> Dollars:
    """Return the dollars of one machine by owner."""
    pool = records.pools["p"]
    paid = defaultdict[Owner, float](float)
    start = min([machine.start, *(hold.start for hold in holds)])
    end = max([machine.end, *(hold.end for hold in holds)])

    # A spot machine that AWS took in its first hour is free.
    ended = [hold for hold in holds if machine.end - hold.end < min(5, pool.idle / 120)]
    taken = machine.fate == "reclaimed" or (machine.fate == "terminated" and ended)
    if pool.spot and taken and machine.end < NOW and end - start <= 60:
        return paid

    rate = PRICES["p3.16xlarge"].hourly(pool.spot) / 60
    used = Counter[Owner]()
    for hold in holds:
        used[hold.owner] += hold.slots * (hold.end - hold.start)
    first = max(start, minute(records.since))
    last = min(end, minute(records.until))
    for now in range(first, last):
        active = [hold for hold in holds if hold.start <= now < hold.end]
        for hold in active:
            paid[hold.owner] += rate * hold.slots / sum(hold.slots for hold in active)
        if active:
            continue
        # Boot and idle time: from the end before to the start after.
        left = max([hold.end for hold in holds if hold.end <= now], default=start)
        right = min([hold.start for hold in holds if hold.start > now], default=end)
        booting = all(hold.end > now for hold in holds)
        limit = (pool.boot if booting else pool.idle) / 60 + 5
        if not used or right - left > limit:
            paid["(nobody)" if holds else "(unheld)"] += rate
            continue
        for owner, weight in used.items():
            paid[owner] += rate * weight / sum(used.values())
    return paid


def bill(records: Records) -> Dollars:
    """Return the dollars of each run by owner; all totals are their sum, as all phases are."""
    table = shares.segments(records, RATES, {})
    runs = bills.experiment_runs(records, table)
    dollars = sum(run.bill.cost or 0 for run in runs)
    for by in ("user", "label", "month"):
        totals = bills.totals(records, table, by).set_index(by)["cost"]
        assert totals.pop("all") == pytest.approx(totals.sum(), abs=0.005)
        assert totals.sum() == pytest.approx(dollars, abs=0.005)

    names = {f"experiment {number}, e": number for number in (1, 2, 3)}
    costs = {}
    for run in runs:
        if run.work.worked:
            parts = sum(run.bill.parts.values())
            assert parts == pytest.approx(run.bill.cost, abs=0.005)
        if run.bill.cost:
            costs[names.get(run.name, run.name)] = run.bill.cost
    return costs


@pytest.mark.slow
@max_examples(40)
@given(clusters())
def test_bills_are_those_of_a_ledger(drawn):
    """Of everybody, of idle machines and those nobody held; and those of any two parts add up."""
    dollars = bill(drawn.records)
    expected = ledger(drawn)
    for owner in {*dollars, *expected}:
        assert dollars.get(owner, 0) == pytest.approx(expected.get(owner, 0), abs=0.005), owner

    before = bill(drawn.records._replace(until=drawn.cut))
    after = bill(drawn.records._replace(since=drawn.cut))
    for owner in {*dollars, *before, *after}:
        parts = before.get(owner, 0) + after.get(owner, 0)
        assert parts == pytest.approx(dollars.get(owner, 0), abs=0.005), owner


@max_examples(15)
@given(clusters())
def test_a_bill_is_the_same_whether_others_are_named(drawn):
    dollars = bill(drawn.records)
    for named in drawn.records.experiments:
        unnamed = [task for task in drawn.records.allocations if task.owner != named.id]
        others = (*drawn.records.others, *unnamed)
        alone = bill(drawn.records._replace(experiments=(named,), others=others))
        assert alone.get(named.id, 0) == pytest.approx(dollars.get(named.id, 0))
