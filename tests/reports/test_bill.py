"""Bills of drawn clusters beside a ledger that is kept by the minute; how allocations end."""

import datetime
from collections import defaultdict

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.bill import NOBODY, PHASES, STOPS, SUMS, bill, pool_prices
from reports.records import (
    Allocation,
    MachineLife,
    Owner,
    RecordedPool,
    Records,
    TrainingReport,
    Trial,
)
from tests.conftest import max_examples
from tests.fakes.records import FAILED, GONE, KILLED, LEFT, LOST

START = datetime.datetime(2026, 10, 31, 12, tzinfo=datetime.timezone.utc)  # a month ends at 720
NOW = 2000  # minutes from there
MINUTES = st.integers(0, NOW - 2)
POOLS = {
    "spot": RecordedPool("spot", "p3.16xlarge:spot", patience=pd.Timedelta(minutes=15)),
    "own": RecordedPool("own"),
}
PRICES = pool_prices(POOLS, priced_pools=["own=p3.16xlarge"])


def moment(minute):
    return pd.Timestamp(START + datetime.timedelta(minutes=minute))


def minute_of(moment):
    return int((moment - START).total_seconds() // 60)


@st.composite
def clusters(draw):
    """Draw machines, and allocations that failed, or of other tasks, while those were there."""
    slots = draw(st.sampled_from([8, 8, 0]))  # recorded of a machine: a disabled one has none
    machines = []
    for number in range(draw(st.integers(1, 3))):
        pool = draw(st.sampled_from(["spot", "own"]))
        start, end = sorted(draw(st.tuples(MINUTES, MINUTES)))
        name = f"{pool}-{number}"
        machines.append(MachineLife(name, moment(start), moment(end + 1), slots, pool == "spot"))
    trials = []
    times = {}
    for number in range(draw(st.integers(0, 6))):
        launched = draw(st.sampled_from(machines)).launched
        peers = [machine for machine in machines if machine.launched == launched]
        chosen = draw(st.lists(st.sampled_from(peers), min_size=1, max_size=2, unique=True))
        earliest = minute_of(max(machine.start for machine in chosen))
        latest = minute_of(min(machine.end for machine in chosen))
        if earliest >= latest:
            continue
        minutes = st.integers(earliest, latest)
        start, begun, saved, end = sorted(draw(st.tuples(*[minutes] * 4)))
        if start == end:
            continue
        experiment = draw(st.integers(0, 3))  # 0: another task
        owner = Owner("e", experiment=experiment, trial=experiment and number + 1)
        allocation = Allocation(
            id=f"t{number}.0",
            start=moment(start),
            end=moment(end),
            pool="spot" if launched else "own",
            nodes=[machine.name for machine in chosen],
            slots=draw(st.integers(1, 8)) * len(chosen),
            owner=owner,
            exit=FAILED,
        )
        trial = Trial(owner, "completed", [allocation])
        times[allocation.id] = [start, start, end, end]
        if experiment:
            reported = min(begun + 5, end)
            report = TrainingReport(moment(reported), 1, seconds=60 * (reported - begun))
            trial = Trial(owner, "error", [allocation], [report], [moment(saved)])
            times[allocation.id] = [start, begun, saved, end]
        trials.append(trial)
    records = Records(trials, POOLS, until=moment(NOW), whole=True, machines=machines)
    return records, times


def keep_ledger(records, times):
    """Write down what each minute of each machine was for, and who pays it."""
    ledger = defaultdict[tuple[str, int, str], float](float)
    allocations = [trial.allocations[0] for trial in records.trials]
    for machine in records.machines:
        tasks = [task for task in allocations if machine.name in task.nodes]
        tasks.sort(key=lambda task: task.start)
        width = machine.slots or max([task.slots_each for task in tasks], default=1)
        for minute in range(minute_of(machine.start), minute_of(machine.end)):
            free = width
            for task in tasks:
                start, begun, saved, end = times[task.id]
                if start <= minute < end:
                    phase = "start-up" if minute < begun else "work" if minute < saved else "lost"
                    ledger[task.owner.name, task.owner.experiment, phase] += task.slots_each
                    free -= task.slots_each
            payer = NOBODY
            if machine.launched and tasks:
                payer = pay_idle(machine, tasks, minute)
            ledger[payer.name, payer.experiment, "idle"] += max(free, 0)
    return ledger


def pay_idle(machine, tasks, minute):
    """Return who pays what is idle: who came last, or nobody if nobody came for too long."""
    now = moment(minute)
    came = [task for task in tasks if task.start <= now]
    if not any(now < task.end for task in came):
        left = max([task.end for task in came], default=machine.start)
        right = min([task.start for task in tasks if task.start > now], default=machine.end)
        if right - left > POOLS["spot"].patience:
            return NOBODY
    return (came or tasks[:1])[-1].owner


def sums(records):
    return bill(records, PRICES).groupby(["name", "experiment"])[SUMS].sum()


@pytest.mark.slow
@max_examples(100)
@given(clusters(), MINUTES)
def test_a_bill_is_that_of_a_ledger_and_its_cuts_add_up(drawn, cut):
    records, times = drawn
    frame = bill(records, PRICES)
    whole = frame.groupby(["name", "experiment"])[SUMS].sum()
    ledger = keep_ledger(records, times)
    for name, experiment in {*whole.index, *(owner[:2] for owner in ledger)}:
        for phase in PHASES:
            minutes = whole[phase].get((name, experiment), 0.0) * 60
            assert minutes == pytest.approx(ledger[name, experiment, phase], abs=1e-6)

    # A machine that nobody held has the price of the pool that has machines as large.
    nodes = {node for trial in records.trials for node in trial.allocations[0].nodes}
    unpriced = 0.0
    for machine in records.machines:
        if machine.name not in nodes and not (machine.launched and machine.slots):
            unpriced += (machine.end - machine.start).total_seconds() * (machine.slots or 1) / 3600
    assert frame["unpriced"].sum() == pytest.approx(unpriced)

    # Cut into two spans, and into months and pools.
    before = sums(records._replace(until=moment(cut + 1)))
    after = sums(records._replace(since=moment(cut + 1)))
    spans = before.add(after, fill_value=0.0).reindex(whole.index)
    assert spans.to_numpy(float) == pytest.approx(whole.to_numpy(float), abs=1e-6)
    rows = frame.groupby(["month", "pool"])[SUMS].sum()
    assert rows.sum().tolist() == pytest.approx(whole.sum().tolist(), abs=1e-6)


def allocation(number, exit="", task="t", **changes):
    """Return the allocation of half an hour from 100 x `number` on."""
    start = 100 * number
    return Allocation(
        id=f"{task}.{number}",
        start=moment(start),
        end=moment(start + 30),
        pool="own",
        nodes=[],
        slots=8,
        owner=Owner("e", experiment=9, trial=1),
        exit=exit,
        **changes,
    )


def test_a_moment_between_two_allocations_is_of_the_first():
    before = allocation(0)
    after = allocation(1)._replace(start=before.end)
    moments = [before.start, moment(15), before.end, moment(31)]
    assert [before.has(time) for time in moments] == [False, True, True, False]
    assert [after.has(time) for time in moments] == [False, False, False, True]


# Of an allocation of 30 minutes, of which 5 are start-up, that saved after 20: its exit reason,
# what it is called, and minutes that were lost.
@pytest.mark.parametrize(
    ("reason", "stop", "lost"),
    [
        (FAILED, "failed", 10),
        (LOST, "agent lost", 10),
        (GONE, "agent lost", 10),
        (KILLED, "killed", 10),
        (LEFT, "preempted", 0),
        ("", "unknown", 10),  # as a restart of the master leaves it
        ("allocation exited", "", 0),
    ],
)
def test_what_an_allocation_lost(reason, stop, lost):
    trial = Trial(
        owner=Owner("e", experiment=9, trial=1),
        state="completed",
        allocations=[allocation(0, reason), allocation(1)],
        reports=[TrainingReport(moment(15), 1, 600), TrainingReport(moment(115), 1, 600)],
        checkpoints=[moment(20), moment(120)],
    )
    row = sums(Records([trial], POOLS, until=moment(NOW))).iloc[0]
    slot_minutes = [row[phase] * 60 / 8 for phase in PHASES]
    assert slot_minutes == pytest.approx([5 + 5, 25 - lost + 25, lost, 0])
    assert [name for name in STOPS if row[name]] == [stop] * bool(stop)
    assert (row["starts"], row["hours"]) == (2, 1)


def test_without_a_report_time_is_start_up_or_lost():
    """One was taken back before its work, one failed before it, and another task goes on."""
    trial = Trial(
        owner=Owner("e", experiment=9, trial=1),
        state="active",
        allocations=[
            allocation(0, LEFT),
            allocation(1, FAILED),
            allocation(2, "allocation exited"),
            allocation(3, task="t-1", running=True),
        ],
        reports=[TrainingReport(moment(220), 1, 600), TrainingReport(moment(310), 1, 600)],
    )
    row = sums(Records([trial], POOLS, until=moment(NOW))).iloc[0]
    slot_minutes = [row[phase] * 60 / 8 for phase in PHASES]
    assert slot_minutes == pytest.approx([30 + 10, 20 + 30, 30, 0])
    assert row["unknown"] == 0
