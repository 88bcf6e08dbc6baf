"""Bills of drawn clusters of all kinds of machines: every cut of a span adds up to the cent."""

import collections
import datetime
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
    cuts: list[Any]
    paid: float  # dollars of all machines in the span, by another way


def moment(second: float) -> Any:
    return START + datetime.timedelta(seconds=second)


def spans(least: int = 1) -> Any:
    both = st.tuples(st.integers(0, NOW - 7200), st.integers(least, 3 * 24 * 3600))
    return both.map(lambda span: (span[0], min(span[0] + span[1], NOW - 3600)))


@st.composite
def allocations(draw: Any, there: dict[str, Any]) -> list[Allocation]:
    """Return tasks on machines of the right pool, some of them taken back at once."""
    tasks = []
    for number in range(draw(st.integers(0, 8))):
        name = draw(st.sampled_from(sorted(there)))
        pool, (first, last) = there[name]
        skew = draw(st.integers(-30, 30))  # clocks differ
        start = draw(st.integers(first, last)) + skew
        longest = 60 if draw(st.booleans()) else 10**6
        end = min(start + draw(st.integers(1, longest)), last + skew)
        if start < end:
            owner = draw(st.sampled_from([1, 2, 3, "notebook of bob"]))
            slots = draw(st.integers(0, SLOTS[pool]))
            exit = draw(st.sampled_from(EXITS))
            tasks.append(
                Allocation(
                    id=f"{owner}.{number}.0",
                    start=moment(start),
                    end=moment(end),
                    pool=pool,
                    nodes=(name,),
                    slots=slots,
                    owner=owner,
                    exit=exit,
                )
            )
    return tasks


@st.composite
def experiments(draw: Any, number: int, tasks: list[Allocation]) -> tuple[Experiment, list[Entry]]:
    """Return an experiment of one trial, and the raw entries of those tasks that worked."""
    own = sorted((a for a in tasks if a.owner == number), key=lambda a: a.start)
    entries, checkpoints, reports = [], [], []
    for a in own:
        if draw(st.booleans()):
            length = a.end - a.start
            middle = a.start + length * draw(st.floats(0.1, 0.9))
            entries.append(Entry("training", number, "ada", a.start, middle))
            if draw(st.booleans()):
                checkpoints.append(middle)
                reports.append(TrainingReport(middle, 64, length.total_seconds() / 20, 0))
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


def machine_entries(name: str, pool: str, start: int, end: int) -> list[Entry]:
    span = moment(start), moment(end)
    entries = [Entry("agent", 0, name, *span, SLOTS[pool])]
    if pool != "own":
        entries.append(Entry("instance", 0, name, *span, SLOTS[pool]))
    return entries


@st.composite
def clusters(draw: Any) -> Drawn:
    there = {}
    for number in range(draw(st.integers(1, 6))):
        pool = draw(st.sampled_from(sorted(POOLS)))
        there[f"i-{number}"] = pool, draw(spans())
    tasks = draw(allocations(there))
    entries = [
        e for name, (pool, span) in there.items() for e in machine_entries(name, pool, *span)
    ]
    made = [draw(experiments(number, tasks)) for number in (1, 2, 3)]
    for _, work in made:
        entries += work
    since, *cuts, until = sorted(draw(st.lists(st.integers(0, NOW), min_size=4, max_size=5)))
    records = Records(
        experiments=tuple(experiment for experiment, _ in made),
        pools=POOLS,
        until=moment(until),
        entries=tuple(entries),
        others=tuple(a for a in tasks if isinstance(a.owner, str)),
        since=moment(since),
        now=moment(NOW),
    )
    paid = sum(
        dollars(pool, span, [a for a in tasks if name in a.nodes], since, until)
        for name, (pool, span) in there.items()
    )
    return Drawn(records, [moment(cut) for cut in cuts], paid)


def dollars(
    pool: str, span: tuple[int, int], holds: list[Allocation], since: int, until: int
) -> float:
    """Return what a machine cost in the span: its time there, whoever held it."""
    if pool not in PAID or (pool == "there" and not holds) or (pool == "spot" and not holds):
        return 0.0
    seconds = [((a.start - START).total_seconds(), (a.end - START).total_seconds()) for a in holds]
    start = min([span[0], *(first for first, _ in seconds)])
    end = max([span[1], *(last for _, last in seconds)])
    if pool == "own":  # where it was connected or held; between them it was away
        inside, reached = 0.0, since
        for first, last in sorted([span, *seconds]):
            inside += max(0.0, min(last, until) - max(first, reached)) / 3600
            reached = max(reached, last)
        return inside * PAID[pool]
    inside = max(0.0, min(end, until) - max(start, since)) / 3600
    last = max((last for _, last in seconds), default=-(10**9))
    if pool == "spot" and span[1] - last < 300 and end - start <= 3600:
        return 0.0
    return inside * PAID[pool] * max(1.0, 60 / (end - start))


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Rates:
    file: Path = tmp_path_factory.mktemp("prices") / "prices.yaml"
    file.write_text(PRICES)
    return Rates(file)


def amounts(records: Records, rates: Rates) -> collections.Counter[Any]:
    """Return dollars, hours and dollars by phase of each row, and those of the totals."""
    table = shares.segments(records, rates, {})
    sums = collections.Counter[Any]()
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
            sums[by, name] += 0 if row["cost"] != row["cost"] else row["cost"]
            sums[by, name, "hours"] += row["hours"]
        assert sums[by, "all"] == pytest.approx(sums["rows"], abs=1e-6)
    return sums


@max_examples(40)
@given(drawn=clusters())
def test_every_cut_of_a_span_adds_up_to_the_cent(rates, drawn):
    whole = amounts(drawn.records, rates)
    assert whole["rows"] == pytest.approx(drawn.paid, abs=0.005)
    parts = collections.Counter[Any]()
    ends = [drawn.records.since, *drawn.cuts, drawn.records.until]
    for since, until in zip(ends, ends[1:], strict=False):
        if since < until:
            parts.update(amounts(drawn.records._replace(since=since, until=until), rates))
    for what in {*whole, *parts}:
        assert parts[what] == pytest.approx(whole[what], abs=0.005), what
