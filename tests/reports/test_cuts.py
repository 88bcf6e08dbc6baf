"""Bills of drawn clusters of all kinds of machines: every cut of a span adds up to the cent."""

import datetime
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.facts.rates import Rates
from reports import bills, shares
from reports.phases import PHASES
from reports.queries import parse_time
from reports.usage import (
    Allocation,
    Entry,
    Experiment,
    Moment,
    RecordedPool,
    Records,
    TrainingReport,
    Trial,
)
from tests.conftest import max_examples

START = parse_time("2026-10-24T22:00:00Z")  # summer time ends in that night, a month in a week
NOW = 8 * 24 * 3600  # seconds from there
EXITS = ["", "allocation failed: x", "allocation preempted by the scheduler", "killed"]
PRICES = """date: 2026-10-01
instances:
  p3.16xlarge: {regions: {us-east-1: {on_demand: 24.48, spot: 7}}}
  p4d.24xlarge:
    regions:
      us-east-1: {on_demand: 21, spot: 9}
      eu-central-1: {on_demand: 27, spot: 10}
  t2.xlarge: {region: us-east-1, on_demand: 0.1856, spot: 0.06}
  g5.12xlarge: {region: us-east-1, on_demand: 5.672, spot: 3.1}
"""
POOLS = {
    "spot": RecordedPool("p3.16xlarge", True, slots=8, name="spot"),
    "there": RecordedPool("p4d.24xlarge", False, region="eu-central-1", slots=8, name="there"),
    "nowhere": RecordedPool("p4d.24xlarge", False, region="sa-east-1", slots=16, name="nowhere"),
    "unpriced": RecordedPool("g6e.24xlarge", False, slots=2, name="unpriced"),
    "aux": RecordedPool("t2.xlarge", False, slots=0, name="aux"),
    "own": RecordedPool("g5.12xlarge", False, own=True, name="own"),
}
SLOTS = {"spot": 8, "there": 8, "nowhere": 16, "unpriced": 2, "aux": 0, "own": 4}
# Dollars an hour of a machine by its pool; of two pools with 8 slots only where a task names it.
PAID = {"spot": 7.0, "there": 27.0, "aux": 0.1856, "own": 5.672}


class Drawn(NamedTuple):
    records: Records
    cuts: list[Moment]
    paid: float  # dollars of all machines in the span, by another way


class Machine(NamedTuple):
    """A machine of a pool, in seconds."""

    pool: str
    start: int
    end: int


def moment(second: float) -> Moment:
    return START + datetime.timedelta(seconds=second)


def seconds(time: Moment) -> float:
    return (time - START).total_seconds()


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    pool = draw(st.sampled_from(sorted(POOLS)))
    start = draw(st.integers(0, NOW - 7200))
    length = draw(st.integers(1, 3 * 24 * 3600))
    return Machine(pool, start, min(start + length, NOW - 3600))


@st.composite
def allocations(draw: st.DrawFn, alive: dict[str, Machine]) -> list[Allocation]:
    """Return tasks on machines of the right pool, some of them taken back at once."""
    tasks = []
    for number in range(draw(st.integers(0, 8))):
        name = draw(st.sampled_from(sorted(alive)))
        pool, first, last = alive[name]
        skew = draw(st.integers(-30, 30))  # clocks differ
        start = draw(st.integers(first, last)) + skew
        longest = 60 if draw(st.booleans()) else 10**6
        end = min(start + draw(st.integers(1, longest)), last + skew)
        if start < end:
            owner = draw(st.sampled_from([1, 2, 3, "notebook of bob"]))
            slots = draw(st.integers(0, SLOTS[pool]))
            task = Allocation(
                id=f"{owner}.{number}.0",
                start=moment(start),
                end=moment(end),
                pool=pool,
                nodes=(name,),
                slots=slots,
                owner=owner,
                exit=draw(st.sampled_from(EXITS)),
            )
            tasks.append(task)
    return tasks


@st.composite
def experiments(
    draw: st.DrawFn, number: int, tasks: list[Allocation]
) -> tuple[Experiment, list[Entry]]:
    """Return an experiment of one trial, and the raw entries of those tasks that worked."""
    own = [task for task in tasks if task.owner == number]
    own.sort(key=lambda task: task.start)
    entries = []
    checkpoints = []
    reports = []
    for task in own:
        if draw(st.booleans()):
            length = task.end - task.start
            middle = task.start + length * draw(st.floats(0.1, 0.9))
            entries.append(Entry("training", number, "ada", start=task.start, end=middle))
            if draw(st.booleans()):
                checkpoints.append(middle)
                report = TrainingReport(
                    middle, windows=64, seconds=length.total_seconds() / 20, tokens=0
                )
                reports.append(report)
    trial = Trial(
        id=number,
        state=draw(st.sampled_from(["STATE_ERROR", "STATE_COMPLETED", "STATE_CANCELED"])),
        allocations=tuple(own),
        checkpoints=tuple(checkpoints),
        windows=1,
        reports=tuple(reports),
        scores={},
        restarts=draw(st.integers(0, 2)),
    )
    experiment = Experiment(
        id=number,
        name="e",
        user="ada",
        labels=(),
        model=None,
        config={},
        slots=8,
        pool="spot",
        trials=(trial,),
    )
    return experiment, entries


def machine_entries(name: str, machine: Machine) -> list[Entry]:
    """Return the entry of its agent, and of its launch if the master did that."""
    agent = Entry(
        "agent",
        experiment=0,
        name=name,
        start=moment(machine.start),
        end=moment(machine.end),
        slots=SLOTS[machine.pool],
    )
    if machine.pool == "own":
        return [agent]
    return [agent, agent._replace(kind="instance")]


@st.composite
def clusters(draw: st.DrawFn) -> Drawn:
    alive = {f"i-{number}": draw(machines()) for number in range(draw(st.integers(1, 6)))}
    tasks = draw(allocations(alive))
    entries = []
    for name, machine in alive.items():
        entries += machine_entries(name, machine)
    drawn = []
    for number in (1, 2, 3):
        experiment, work = draw(experiments(number, tasks))
        drawn.append(experiment)
        entries += work
    since, *cuts, until = sorted(draw(st.lists(st.integers(0, NOW), min_size=4, max_size=5)))
    records = Records(
        experiments=tuple(drawn),
        pools=POOLS,
        until=moment(until),
        entries=tuple(entries),
        others=tuple(task for task in tasks if isinstance(task.owner, str)),
        since=moment(since),
        now=moment(NOW),
    )
    paid = 0.0
    for name, machine in alive.items():
        holds = [task for task in tasks if name in task.nodes]
        paid += dollars(machine, holds, since, until)
    return Drawn(records, cuts=[moment(cut) for cut in cuts], paid=paid)


def dollars(machine: Machine, holds: list[Allocation], since: int, until: int) -> float:
    """Return what a machine cost in the span: its time there, whoever held it."""
    pool, launch, end = machine
    spans: list[tuple[float, float]] = [(launch, end)]
    spans += [(seconds(task.start), seconds(task.end)) for task in holds]
    if pool not in PAID:
        return 0.0
    if pool in ("there", "spot") and not holds:
        return 0.0
    if pool == "own":  # where it was connected or held; between them it was away
        paid_seconds = 0.0
        reached: float = since
        for left, right in sorted(spans):
            paid_seconds += max(0.0, min(right, until) - max(left, reached))
            reached = max(reached, right)
        return paid_seconds / 3600 * PAID[pool]

    first = min(left for left, _ in spans)
    last = max(right for _, right in spans)
    released = max([right for _, right in spans[1:]], default=-math.inf)
    taken = end - released < 300
    if pool == "spot" and taken and last - first <= 3600:
        return 0.0
    hours = max(0.0, min(last, until) - max(first, since)) / 3600
    return hours * PAID[pool] * max(1.0, 60 / (last - first))  # a minute at least


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Rates:
    file: Path = tmp_path_factory.mktemp("prices") / "prices.yaml"
    file.write_text(PRICES)
    return Rates(file)


def amounts(records: Records, rates: Rates) -> Counter[Any]:
    """Return dollars, hours and dollars by phase of each row, and those of the totals."""
    table = shares.segments(records, rates, {})
    sums = Counter[Any]()
    for run in bills.experiment_runs(records, table):
        bill = run.bill
        sums[run.name, "cost"] += bill.cost or 0
        sums[run.name, "unpriced"] += bill.unpriced
        sums[run.name, "lost"] += run.work.lost_hours or 0
        sums[run.name, "stopped"] += bill.stopped or 0
        if run.slots and run.work.worked:
            sums[run.name, "worked"] += run.work.worked
        assert bill.parts.keys() <= {*PHASES}
        assert sum(bill.parts.values()) == pytest.approx(bill.cost or 0, abs=1e-6)
        for phase, cost in bill.parts.items():
            sums[run.name, phase] += cost
        sums["rows"] += bill.cost or 0

    for by in ("user", "label", "month"):
        totals = bills.totals(records, table, by).set_index(by)
        for name, row in totals.iterrows():
            if not math.isnan(row["cost"]):
                sums[by, name] += row["cost"]
            sums[by, name, "hours"] += row["hours"]
        assert sums[by, "all"] == pytest.approx(sums["rows"], abs=1e-6)
    return sums


@max_examples(15)
@given(drawn=clusters())
def test_a_month_costs_what_its_own_span_does(rates, drawn):
    """October's machines cost $36.66, and its row said $36.45."""
    totals = amounts(drawn.records, rates)
    november = parse_time("2026-11-01T00:00:00Z")
    since, until = drawn.records.since, drawn.records.until
    spans = {
        "2026-10": (since, min(until, november)),
        "2026-11": (max(since, november), until),
    }
    for month, (first, last) in spans.items():
        rows = 0.0
        if first < last:
            own = drawn.records._replace(since=first, until=last)
            rows = amounts(own, rates)["rows"]
        assert totals["month", month] == pytest.approx(rows, abs=0.005)


@pytest.mark.slow
@max_examples(40)
@given(drawn=clusters())
def test_every_cut_of_a_span_adds_up_to_the_cent(rates, drawn):
    span_amounts = amounts(drawn.records, rates)
    assert span_amounts["rows"] == pytest.approx(drawn.paid, abs=0.005)

    parts = Counter[Any]()
    ends = [drawn.records.since, *drawn.cuts, drawn.records.until]
    for since, until in pairwise(ends):
        if since < until:
            part = drawn.records._replace(since=since, until=until)
            parts.update(amounts(part, rates))
    for key in {*span_amounts, *parts}:
        assert parts[key] == pytest.approx(span_amounts[key], abs=0.005), key
