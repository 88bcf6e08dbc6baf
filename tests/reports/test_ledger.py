"""Bills of drawn clusters, held against a ledger that is kept by the minute."""

import collections
import datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cluster.facts.prices import load_prices
from cluster.facts.rates import Rates
from reports import bills, shares
from reports.queries import parse_time
from reports.usage import Allocation, Entry, Experiment, RecordedPool, Records, Trial
from tests.conftest import max_examples

START = parse_time("2026-10-31T12:00:00Z")  # summer time ends in the night, and the month
NOW = 2400  # minutes from there
PRICES = load_prices()
RATES = Rates()
BOOT = 20


class Machine(NamedTuple):
    """What became of a machine, in minutes; `fate`: open, terminated, reclaimed, or never up."""

    start: int
    end: int
    fate: str


class Drawn(NamedTuple):
    """A cluster as it was, and as the master recorded it."""

    records: Records
    machines: dict[str, Machine]
    cut: Any


def moment(minute: int, zone: str = "Z") -> Any:
    """Return the minute's time as the master may write it: with the hours of a zone."""
    away = datetime.timedelta(hours=0 if zone == "Z" else int(zone[:3]))
    return parse_time(
        f"{START + datetime.timedelta(minutes=minute) + away:%Y-%m-%dT%H:%M:%S}{zone}"
    )


@st.composite
def machines(draw: Any) -> Machine:
    start, end = sorted(draw(st.tuples(st.integers(0, NOW - 90), st.integers(0, NOW - 90))))
    fate = draw(st.sampled_from(["open", "terminated", "reclaimed", "never up"]))
    short = draw(st.booleans()) and fate == "reclaimed"  # in its first hour
    end = min(end, start + 50) if short else end
    return Machine(start, {"open": NOW, "never up": start + BOOT + 5}.get(fate, end + 2), fate)


def entries(name: str, machine: Machine, restart: int) -> list[Entry]:
    """Return the rows of ScaleDecider and agent; all open ones end where the master restarts."""
    start, end, fate = machine
    rows = [("instance", start, end if fate in ("open", "terminated") else NOW)]
    if fate != "never up":  # the agent leaves after the master has terminated its machine
        rows.append(("agent", start + 1, end + (fate == "terminated")))
    found = []
    for kind, first, last in rows:
        spans = [(first, last)]
        if first < restart < last:
            spans = [(first, restart)] + [(restart + 1, last)] * (restart < end)
        found += [Entry(kind, 0, name, moment(a), moment(b), 8) for a, b in spans]
    return found


@st.composite
def clusters(draw: Any) -> Drawn:
    there = {f"i-{n}": draw(machines()) for n in range(draw(st.integers(1, 4)))}
    there["i-up"] = Machine(0, NOW, "open")
    up = [name for name, machine in there.items() if machine.fate != "never up"]
    tasks = []
    for task in range(draw(st.integers(0, 6))):
        nodes = draw(st.lists(st.sampled_from(up), min_size=1, max_size=2, unique=True))
        start, end = sorted(draw(st.tuples(st.integers(0, NOW), st.integers(0, NOW))))
        skew = draw(st.integers(-1, 1))  # clocks differ
        start = max(start, *(there[node].start + skew for node in nodes))
        end = min(end, NOW, *(there[node].end + skew for node in nodes))
        zone = draw(st.sampled_from(["Z", "-04:00", "-05:00", "+01:00"]))
        owner = draw(st.sampled_from([1, 2, 3, "notebook of bob"]))
        slots = draw(st.integers(1, 8)) * len(nodes)
        span = moment(start, zone), moment(end, zone)
        if start < end:
            tasks.append(Allocation(f"{owner}.{task}", *span, "p", tuple(nodes), slots, owner))
    experiments = []
    for number in (1, 2, 3):
        mine = tuple(a for a in tasks if a.owner == number)
        trial = Trial(number, "STATE_ERROR", mine, (), 1, (), {})
        experiments.append(Experiment(number, "e", "ada", (), None, {}, 8, "p", (trial,)))
    restart = draw(st.integers(1, NOW - 3))
    late = [machine for machine in there.values() if machine.fate == "never up"]
    assume(all(restart < machine.start for machine in late))  # else it ends their rows, too late
    assume(all(abs(restart - t) > 2 for machine in there.values() for t in machine[:2]))
    rows = [row for name in there for row in entries(name, there[name], restart)]
    idle = draw(st.sampled_from([2, 5, 30, 10**6]))
    pool = RecordedPool("p3.16xlarge", draw(st.booleans()), BOOT * 60, idle * 60)
    since, cut, until = sorted(draw(st.tuples(*[st.integers(0, NOW)] * 3)))
    others = tuple(a for a in tasks if a.owner == "notebook of bob")
    span: Any = {"since": moment(since), "now": moment(NOW)}
    records = Records(tuple(experiments), {"p": pool}, moment(until), tuple(rows), others, **span)
    return Drawn(records, there, moment(cut))


def minute(time: Any) -> int:
    return round((time - START).total_seconds() / 60)


def ledger(drawn: Drawn) -> dict[Any, float]:
    """Return dollars by owner, as README.md's rules say it, a minute after the other."""
    records, paid = drawn.records, collections.Counter[Any]()
    pool = records.pools["p"]
    rate = PRICES["p3.16xlarge"].hourly(pool.spot) / 60
    since, until = minute(records.since), minute(records.until)
    for name, machine in drawn.machines.items():
        holds = [
            (minute(a.start), minute(a.end), a.slots / len(a.nodes), a.owner)
            for a in (*records.allocations, *records.others)
            if name in a.nodes
        ]
        start = min([machine.start, *(hold[0] for hold in holds)])
        end = max([machine.end, *(hold[1] for hold in holds)])
        near = [h for h in holds if machine.end - h[1] < min(5, pool.idle / 120)]
        taken = machine.fate == "reclaimed" or (machine.fate == "terminated" and near)
        if pool.spot and taken and machine.end < NOW and end - start <= 60:
            continue
        used = collections.Counter[Any]()
        for a, b, slots, owner in holds:
            used[owner] += slots * (b - a)
        free = [all(not a <= m < b for a, b, _, _ in holds) for m in range(start, end)]
        for m in range(max(start, since), min(end, until)):
            now = {i: hold for i, hold in enumerate(holds) if hold[0] <= m < hold[1]}
            if now:
                for _, _, slots, owner in now.values():
                    paid[owner] += rate * slots / sum(hold[2] for hold in now.values())
                continue
            left = next((i + 1 for i in range(m - start, -1, -1) if not free[i]), 0)
            right = next((i for i in range(m - start, end - start) if not free[i]), end - start)
            booting = all(b > m for _, b, _, _ in holds)
            limit = (pool.boot if booting else pool.idle) / 60 + 5
            if not used or right - left > limit:
                paid["(nobody)" if holds else "(unheld)"] += rate
                continue
            for owner, weight in used.items():
                paid[owner] += rate * weight / sum(used.values())
    return dict(paid)


def bill(records: Records) -> dict[Any, float]:
    table = shares.segments(records, RATES, {})
    runs = bills.experiment_runs(records, table)
    for by in ("user", "label", "month"):
        totals = bills.totals(records, table, by).set_index(by)["cost"]
        assert totals.pop("all") == pytest.approx(totals.sum(), abs=0.005)
        assert totals.sum() == pytest.approx(sum(run.bill.cost or 0 for run in runs), abs=0.005)
    for run in runs:
        assert not run.work.worked or sum(run.bill.parts.values()) == pytest.approx(
            run.bill.cost, abs=0.005
        )
    names = {f"experiment {n}, e": n for n in (1, 2, 3)}
    return {names.get(run.name, run.name): run.bill.cost for run in runs if run.bill.cost}


@max_examples(40)
@given(clusters())
def test_bills_are_those_of_a_ledger(drawn):
    """Of everybody, of idle machines and those nobody held; and those of any two parts add up."""
    whole = bill(drawn.records)
    expected = ledger(drawn)
    for owner in {*whole, *expected}:
        assert whole.get(owner, 0) == pytest.approx(expected.get(owner, 0), abs=0.005), owner
    first = bill(drawn.records._replace(until=drawn.cut))
    second = bill(drawn.records._replace(since=drawn.cut))
    for owner in {*whole, *first, *second}:
        parts = first.get(owner, 0) + second.get(owner, 0)
        assert parts == pytest.approx(whole.get(owner, 0), abs=0.005), owner


@max_examples(15)
@given(clusters())
def test_a_bill_is_the_same_whether_others_are_named(drawn):
    whole = bill(drawn.records)
    for experiment in drawn.records.experiments:
        rest = [a for a in drawn.records.allocations if a.owner != experiment.id]
        others = (*drawn.records.others, *rest)
        alone = drawn.records._replace(experiments=(experiment,), others=others)
        assert bill(alone).get(experiment.id, 0) == pytest.approx(whole.get(experiment.id, 0))
