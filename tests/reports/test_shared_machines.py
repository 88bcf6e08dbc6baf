"""Machines that several experiments use: who pays what, and that it adds up."""

from collections.abc import Sequence
from typing import Any

import pytest

from reports.__main__ import main
from tests.fakes.records import (
    FAILED,
    LEFT,
    ON_DEMAND,
    SPOT,
    Cluster,
    FakeRecords,
    Held,
    Kept,
    Ran,
)
from tests.reports.conftest import UNTIL

HOUR = 24.48  # dollars, on demand
SINCE = ["--since", "2026-11-20T00:00:00Z"]
OWN: Any = {"details": {"aws": None}}  # a pool of machines of one's own
PRICED = ["--price-pool", f"{ON_DEMAND}=p3.16xlarge", "--price-pool", f"{SPOT}=p3.16xlarge"]
EXPERIMENT = "experiment 1, albert-squad"


def rows(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return answer["tables"][0]["rows"]


def column(answer: dict[str, Any], name: str) -> dict[str, float]:
    """Return a column of the runs by their names."""
    return {row["run"]: row[name] for row in rows(answer)}


def ran(
    task: str,
    start: str,
    end: str,
    machines: Sequence[str] = ("i-x",),
    pool: str = ON_DEMAND,
    **fields: Any,
) -> Ran:
    """Return an experiment, or another task, of one allocation."""
    held = Held(f"{task}.0", start, end, list(machines), pool)
    return Ran([Kept([held])], **fields)


MINE = ran("mine", "12:00", "13:00")
LIFE = [("i-x", "00:00", "13:05")]


@pytest.mark.parametrize("kind", ["NOTEBOOK", "TRIAL"])
def test_who_comes_last_to_a_machine_does_not_pay_its_day(bill, kind):
    """13 hours of the machine are $318. A notebook counts as much as an experiment; one that may
    not be seen is said to be there."""
    other = ran("other", "00:10", "11:55", user="bob", kind=kind)
    cluster = Cluster({1: MINE, 2: other}, instances=LIFE)

    answer = bill(cluster, "--experiment", "1")
    share = 20 / 60 * HOUR * 1 / (1 + 11.75)  # of boot and idle, by slot-hours
    assert answer["total"] == pytest.approx(HOUR + share)
    assert answer["notes"]
    assert not any("could not be seen" in note for note in answer["notes"])

    answer = bill(cluster._replace(hidden=("other",)), "--experiment", "1")
    notes = "\n".join(answer["notes"])
    assert answer["total"] == pytest.approx(HOUR * 65 / 60)  # idle 5 min
    assert "1 allocations of other tasks ran could not be seen" in notes
    assert "12.00 machine-hours ($293.76)" in notes


@pytest.mark.parametrize("end, minutes", [("12:45", 45), ("13:00", 60), ("13:15", 75)])
def test_a_spot_machine_taken_in_its_first_hour_is_free(bill, end, minutes):
    """It ends with its allocation; another that ended idle is the provisioner's, and is paid."""
    taken = ran("a", "12:05", end, pool=SPOT)
    idle = ran("b", "12:05", "12:30", ["i-y"], pool=SPOT)
    lives = [("i-x", "12:00", end), ("i-y", "12:00", "12:40")]
    cluster = Cluster({1: taken, 2: idle}, instances=lives)

    taken_row, idle_row = rows(bill(cluster, "--experiment", "1", "2"))

    free = minutes <= 60
    assert taken_row["cost"] == pytest.approx(0 if free else 75 / 60 * 7.344)
    assert taken_row["on demand"] == pytest.approx(minutes / 60 * HOUR)
    assert idle_row["cost"] == pytest.approx(40 / 60 * 7.344)


@pytest.mark.parametrize("restart", ["", "2026-11-20T20:00:00"])  # which ends the open rows
def test_machines_that_ec2_took_in_their_first_hour(bill, restart):
    """Their `instance` rows stay open for hours; they were $48.96 and 1,337 h of nobody's time."""
    names = [f"i-{number}" for number in range(8)]
    trial = Kept([Held("1.t.0", "12:05", "12:50", names)], state="QUEUED")
    cluster = Cluster(
        {1: Ran([trial], slots=64)},
        instances=[(name, "12:00", restart) for name in names],
        agents=[(name, "12:03", "12:50") for name in names],
    )

    answer = bill(cluster, *SINCE, "--by", "user")

    totals, runs, *_ = answer["tables"]
    (run,) = runs["rows"]
    hours = {row["user"]: row["hours"] for row in totals["rows"]}
    assert [row["cost"] for row in totals["rows"]] == [0, 0, 0, 0]
    assert answer["total"] == 0
    assert hours["ada"] == pytest.approx(8 * 50 / 60)
    assert hours["(nobody)"] == hours["(unheld)"] == 0
    assert hours.keys() == {"ada", "(nobody)", "(unheld)", "all"}
    assert run["kinds"] == "8 reclaimed"


def test_what_nobody_held_has_a_row(bill):
    """A notebook, a machine that nothing ran on, and one that never came up; not a request."""
    book = ran("book", "12:00", "12:30", ["i-y"], kind="NOTEBOOK", user="bob")
    agents = [("i-x", "11:50", "13:05"), ("i-y", "11:50", "12:40"), ("i-z", "11:55", "12:55")]
    cluster = Cluster(
        {1: MINE, 2: book},
        instances=[*agents, ("i-dead", "12:00", ""), ("sir-1", "11:40", "")],
        agents=agents,
        aws={SPOT: {"instanceType": "g5.xlarge"}},  # no machine has its one slot
    )
    for by in ("user", "label", "month"):
        totals, runs, *_ = bill(cluster, *SINCE, "--by", by)["tables"]
        costs = {row[by]: row["cost"] for row in totals["rows"]}
        assert costs.pop("all") == pytest.approx(sum(costs.values()))
        if by != "month":  # a month has all of that month
            assert costs["notebook of bob"] == pytest.approx(50 / 60 * HOUR)
            assert costs["(unheld)"] == pytest.approx((60 + 25) / 60 * HOUR)
        assert sum(row["cost"] for row in runs["rows"]) == pytest.approx(sum(costs.values()))

    notes = "\n".join(bill(cluster, *SINCE)["notes"])
    assert "of machines that nobody held" in notes
    assert "in UTC" in notes


def test_an_own_machine_is_idle_where_nobody_holds_it(bill):
    """It has no `instance` row; the idle time of one that was held once was in no bill."""
    agents = [("own-a", "10:00", "11:00"), ("own-a", "11:30", "13:00"), ("i-x", "10:00", "14:00")]
    cluster = Cluster({1: MINE}, agents=agents, pool=OWN)

    costs = column(bill(cluster, *SINCE, *PRICED), "cost")
    assert costs == pytest.approx({EXPERIMENT: HOUR, "(unheld) *": (2.5 + 3) * HOUR})

    unpriced = bill(cluster, *SINCE)
    notes = "\n".join(unpriced["notes"])
    assert [row["cost"] for row in rows(unpriced)] == [None, None]
    assert [row["worked h"] for row in rows(unpriced)] == pytest.approx([1, 5.5])
    assert f"give --price-pool {ON_DEMAND}=INSTANCE[:spot]" in notes
    assert "2.50 machine-hours are not in the dollars; the master does not record which" in notes


def test_bills_of_two_spans_add_up_on_own_machines(bill):
    """13:00 to 14:05 and 14:05 to 14:13 were $5.92, and 13:00 to 14:13 $5.75."""
    later = ran("later", "14:06", "14:10")
    cluster = Cluster({1: later}, agents=[("i-x", "12:00", "15:00")], pool=OWN)

    def total(since: str, until: str) -> float:
        span = ["--since", f"2026-11-20T{since}:00Z", "--until", f"2026-11-20T{until}:00Z"]
        return sum(row["cost"] for row in rows(bill(cluster, *span, *PRICED)))

    parts = total("13:00", "14:05") + total("14:05", "14:13")
    span = total("13:00", "14:13")
    assert parts == pytest.approx(span)
    assert span == pytest.approx(73 / 60 * HOUR)


def test_free_slots_of_an_own_machine_are_unheld(bill):
    """A notebook that holds two of four slots pays half of four slots, whose type has eight."""
    cluster = Cluster(
        {1: ran("mine", "12:00", "13:00", slots=2)},
        agents=[("i-x", "12:00", "13:00")],
        pool=OWN,
        slots={"i-x": 4},
    )

    mine, unheld = rows(bill(cluster, *SINCE, *PRICED))

    assert mine["cost"] == pytest.approx(HOUR / 4)
    assert unheld["cost"] == pytest.approx(HOUR / 4)
    assert unheld["worked h"] == pytest.approx(0.5)


def test_a_disabled_machine_has_the_slots_that_were_held(bill):
    """An agent that connects while it is disabled is recorded with 0 slots: its tasks cost $0."""
    cluster = Cluster(
        {1: ran("mine", "12:00", "13:00", slots=4)},
        agents=[("i-x", "12:00", "14:00")],
        pool=OWN,
        slots={"i-x": 0},
    )

    mine, unheld = rows(bill(cluster, *SINCE, *PRICED))

    assert mine["cost"] == pytest.approx(HOUR / 2)
    assert unheld["cost"] == mine["cost"]


def test_tasks_that_overlap_by_their_clocks_make_no_larger_machine(bill):
    """All of an hour cost twice as much if two tasks of four slots overlapped for a minute."""
    first = ran("first", "12:00", "12:31", slots=4)
    second = ran("second", "12:30", "13:00", slots=4)
    cluster = Cluster(
        {1: first, 2: second}, agents=[("i-x", "12:00", "13:00")], pool=OWN, slots={"i-x": 4}
    )
    costs = column(bill(cluster, *SINCE, *PRICED), "cost").values()
    assert sum(costs) == pytest.approx(HOUR / 2)


@pytest.mark.parametrize("machine", ["own", "EC2"])
@pytest.mark.parametrize("kind", ["TRIAL", "DELETED"])
def test_a_task_whose_container_did_not_come_up_is_on_its_machine(bill, machine, kind):
    """Seen on 0.38.1: a trial that was preempted while its image was pulled named no machine. Its
    time was billed twice: to the trial, and as the machine's free slots or idle time."""
    held = [
        Held("a.0", "12:10", "12:20", ["i-x"], pool=ON_DEMAND, exit=LEFT, silent=True),
        Held("a.1", "12:30", "12:40", ["i-y"], pool=ON_DEMAND),
    ]
    tasks = {1: Ran([Kept(held)], kind=kind)}
    lives = [("i-x", "12:00", "12:30"), ("i-y", "12:20", "12:50")]
    if machine == "own":
        cluster = Cluster(tasks, agents=lives, pool=OWN)
        paid_hours = 20 / 60
    else:
        cluster = Cluster(tasks, instances=lives)
        paid_hours = 1.0  # boot and idle time, too

    costs = column(bill(cluster, *SINCE, *PRICED), "cost")

    total = sum(costs.values())
    unheld = sum(cost for name, cost in costs.items() if name.startswith("(unheld)"))
    assert total == pytest.approx(HOUR)
    assert HOUR - unheld == pytest.approx(paid_hours * HOUR)


def test_tasks_without_slots_share_what_no_other_holds(bill):
    """A TensorBoard and a notebook on an aux machine had no row: all of it was (unheld)."""
    on_aux: dict[str, Any] = {"machines": ["i-aux"], "pool": "aux", "slots": 0}
    book = ran("book", "12:00", "13:00", kind="NOTEBOOK", **on_aux)
    board = ran("board", "12:30", "13:30", kind="TENSORBOARD", user="bob", **on_aux)
    trial = ran("trial", "13:30", "14:00", user="bob", **on_aux)
    cluster = Cluster(
        {1: trial, 2: book, 3: board},
        instances=[("i-aux", "12:00", "14:00")],
        aws={"aux": {"instanceType": "t2.xlarge"}},
        slots={"i-aux": 0},
    )

    hours = column(bill(cluster, *SINCE), "worked h")

    expected = {EXPERIMENT: 0.5, "notebook of ada *": 0.75, "tensorboard of bob *": 0.75}
    assert hours == pytest.approx(expected)


def test_a_task_without_slots_pays_no_slots(bill):
    """A TensorBoard beside a trial pays nothing; alone it pays a machine of EC2, and of one's own
    only one without slots, as all others still have their slots to give."""
    board = ran("board", "12:00", "14:00", kind="TENSORBOARD", slots=0)
    life = [("i-x", "12:00", "14:00")]
    both = {1: MINE, 2: board}

    on_ec2 = rows(bill(Cluster(both, instances=life), *SINCE))
    assert [row["cost"] for row in on_ec2] == pytest.approx([HOUR, HOUR])

    own = Cluster(both, agents=life, pool=OWN, slots={"i-x": 8})
    answer = bill(own, *SINCE, *PRICED)
    assert [row["run"] for row in rows(answer)] == [EXPERIMENT, "(unheld) *"]

    without_slots = Cluster({2: board}, agents=life, pool=OWN, slots={"i-x": 0})
    answer = bill(without_slots, *SINCE, *PRICED)
    assert [row["run"] for row in rows(answer)] == ["tensorboard of ada"]


@pytest.mark.parametrize("clock", ["", "12:30"])
def test_what_only_waited_has_no_row(bill, clock):
    """The master's CSV has allocations that are in the queue. Those that ended there get the time
    of the last heartbeat as start and end when the master restarts."""
    waits = Ran([Kept([Held("waits.0", clock, clock, [], pool=ON_DEMAND)], state="QUEUED")])
    tasks = {1: MINE, 2: waits, 3: waits._replace(kind="DELETED")}

    answer = bill(Cluster(tasks, instances=LIFE), *SINCE)

    assert {row["run"] for row in rows(answer)} == {EXPERIMENT, "(nobody) *"}
    assert not any("could not be seen" in note for note in answer["notes"])


PRICES = """date: 2026-11-01
instances:
  t2.xlarge: {on_demand: 0.1856, spot: 0.06}
  p3.16xlarge: {on_demand: 24.48, spot: 7}
"""


def test_the_slots_of_a_machine_tell_its_pool(bill, tmp_path):
    """3.5 h of an aux machine were $76.85: it was taken for the GPU machine launched nearest."""
    file = tmp_path / "prices.yaml"
    file.write_text(PRICES)
    cluster = Cluster(
        {1: MINE},
        instances=[*LIFE, ("i-aux", "09:30", "13:00")],
        aws={SPOT: {"instanceType": "t2.xlarge", "spotEnabled": False}},
        slots={"i-aux": 0},
    )

    costs = column(bill(cluster, *SINCE, "--prices", str(file)), "cost")

    assert costs["(unheld) *"] == pytest.approx(3.5 * 0.1856)


def test_a_machine_of_two_pools_is_not_guessed(bill):
    """On spot or on demand: nothing says it, and a guess was the dollars of one of them."""
    cluster = Cluster({1: MINE}, instances=[*LIFE, ("i-y", "12:00", "14:00")])

    answer = bill(cluster, *SINCE)

    costs = column(answer, "cost")
    assert costs["(unheld) *"] is None
    assert costs[EXPERIMENT] > HOUR
    words = "machines with 8 slots that nobody held, of aws-spot-p3-16xlarge or aws-p3-16xlarge"
    assert any(note.startswith(f"{words}: no price; 2.00") for note in answer["notes"])


def test_a_machine_costs_a_minute_at_least(bill):
    """AWS's least; any two parts of ten seconds add up to it."""
    end = "2026-11-20T12:00:10"
    middle = "2026-11-20T12:00:04Z"
    cluster = Cluster({1: ran("a", "12:00", end)}, instances=[("i-x", "12:00", end)])

    (row,) = rows(bill(cluster, "--experiment", "1"))
    assert row["cost"] == pytest.approx(HOUR / 60)
    assert row["worked h"] == pytest.approx(10 / 3600)

    before = bill(cluster, *SINCE, "--until", middle)["total"]
    after = bill(cluster, "--since", middle)["total"]
    assert before + after == pytest.approx(HOUR / 60)
    assert before == pytest.approx(0.4 * HOUR / 60)


def test_both_ends_cut_a_bill(bill):
    """15 h over the first of November were $244.80 in October and $367.20 in November."""
    start = "2026-10-31T14:00:00"
    midnight = "2026-11-01T00:00:00Z"
    end = "2026-11-01T05:00:00"
    cluster = Cluster({1: ran("a", start, end)}, instances=[("i-x", start, end)])

    october = bill(cluster, "--since", "2026-10-01T00:00:00Z", "--until", midnight)
    november = bill(cluster, "--since", midnight)
    assert october["total"] == pytest.approx(244.80)
    assert november["total"] == pytest.approx(122.40)

    (row,) = rows(bill(cluster, "--experiment", "1"))
    assert row["cost"] == pytest.approx(367.20)
    (row,) = rows(bill(cluster, "--experiment", "1", "--since", midnight))
    assert row["cost"] == pytest.approx(122.40)
    assert row["worked h"] == pytest.approx(5)


def test_idle_time_of_another_pool_is_short(bill):
    """A pool that idles 2 min: its machine ended 3 min after a failure, which took none."""
    trial = Kept([Held("1.t.0", "12:00", "12:30", ["i-x"], exit=FAILED)], state="QUEUED")
    lives = [("i-x", "11:50", "12:33")]
    cluster = Cluster({1: Ran([trial])}, instances=lives, pool={"maxIdleAgentPeriod": 120})

    (row,) = rows(bill(cluster, "--experiment", "1"))

    assert row["kinds"] == "1 failed"
    assert row["cost"] > 0


def test_totals_of_all_that_ran(bill, capsys):
    """By month, a bill is cut at midnight of the first; all rows add up to the last."""
    start = "2026-10-31T22:00:00"
    end = "2026-11-01T04:00:00"
    morning = "2026-11-01T03:00:00"
    cluster = Cluster(
        {
            1: ran("a", start, "2026-11-01T02:00:00", labels=["x"]),
            2: ran("b", morning, end, user="bob"),
            3: ran("c", morning, end, ["i-y"], kind="DELETED"),
        },
        instances=[("i-x", start, end)],
    )
    since = ["--since", "2026-10-01T00:00:00Z"]

    costs = {}
    for by in ("user", "label", "month"):
        totals = rows(bill(cluster, *since, "--by", by))
        costs[by] = {row[by]: row["cost"] for row in totals}
    assert costs["month"] == {"2026-10": 2 * HOUR, "2026-11": 5 * HOUR, "all": 7 * HOUR}
    others = {"experiment 3, deleted": HOUR, "(nobody)": HOUR, "(unheld)": 0, "all": 7 * HOUR}
    assert costs["user"] == pytest.approx({"ada": 4 * HOUR, "bob": HOUR, **others})
    assert costs["label"] == pytest.approx({"x": 4 * HOUR, "(no label)": HOUR, **others})

    with FakeRecords(cluster) as master:
        assert main(["cost", *since, "--by", "user", "--csv", "--master", master.url, *UNTIL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "user,experiments,hours,unpriced h,cost,low,high,on demand"
    assert len(lines) == 7
