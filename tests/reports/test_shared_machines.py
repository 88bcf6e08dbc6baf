"""Machines that several experiments use: who pays what, and that it adds up."""

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


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    return found["tables"][0]["rows"]


def ran(name: str, start: str, end: str, machines=("i-x",), **more: Any) -> Ran:
    pool = more.pop("pool", ON_DEMAND)
    return Ran([Kept([Held(f"{name}.0", start, end, list(machines), pool)])], **more)


MINE = ran("mine", "12:00", "13:00")
LIFE = [("i-x", "00:00", "13:05")]


@pytest.mark.parametrize("kind", ["NOTEBOOK", "TRIAL"])
def test_who_comes_last_to_a_machine_does_not_pay_its_day(bill, kind):
    """13 hours of the machine are $318. A notebook counts as much as an experiment; one that may
    not be seen is said to be there."""
    theirs = ran("theirs", "00:10", "11:55", user="bob", kind=kind)
    seen = Cluster({1: MINE, 2: theirs}, LIFE)
    found = bill(seen, "--experiment", "1")
    shared = 20 / 60 * HOUR * 1 / (1 + 11.75)  # boot and idle, by slot-hours
    assert found["total"] == pytest.approx(HOUR + shared)
    assert found["notes"] and not any("could not be seen" in note for note in found["notes"])
    found = bill(seen._replace(hidden=("theirs",)), "--experiment", "1")
    assert found["total"] == pytest.approx(HOUR * 65 / 60)  # idle 5 min
    said = "\n".join(found["notes"])
    assert "1 allocations of other tasks ran could not be seen" in said
    assert "12.00 machine-hours ($293.76)" in said


@pytest.mark.parametrize("end, minutes", [("12:45", 45), ("13:00", 60), ("13:15", 75)])
def test_a_spot_machine_taken_in_its_first_hour_is_free(bill, end, minutes):
    """It ends with its allocation; another that ended idle is the provisioner's, and is paid."""
    taken = ran("a", "12:05", end, pool=SPOT)
    idle = ran("b", "12:05", "12:30", ["i-y"], pool=SPOT)
    lives = [("i-x", "12:00", end), ("i-y", "12:00", "12:40")]
    one, two = rows(bill(Cluster({1: taken, 2: idle}, lives), "--experiment", "1", "2"))
    assert one["cost"] == pytest.approx(75 / 60 * 7.344 if minutes > 60 else 0)
    assert two["cost"] == pytest.approx(40 / 60 * 7.344)
    assert one["on demand"] == pytest.approx(minutes / 60 * HOUR)


@pytest.mark.parametrize("restart", ["", "2026-11-20T20:00:00"])  # which ends the open rows
def test_machines_that_ec2_took_in_their_first_hour(bill, restart):
    """Their `instance` rows stay open for hours; they were $48.96 and 1,337 h of nobody's time."""
    names = [f"i-{n}" for n in range(8)]
    trial = Kept([Held("1.t.0", "12:05", "12:50", names)], state="QUEUED")
    cluster = Cluster(
        {1: Ran([trial], 64)},
        [(name, "12:00", restart) for name in names],
        agents=[(name, "12:03", "12:50") for name in names],
    )
    found = bill(cluster, "--since", "2026-11-20T00:00:00Z", "--by", "user")
    totals, runs = (table["rows"] for table in found["tables"][:2])
    assert [row["cost"] for row in totals] == [0, 0, 0, 0] and found["total"] == 0
    assert {row["user"]: row["hours"] for row in totals if row["user"] != "all"} == {
        "ada": pytest.approx(8 * 50 / 60), "(nobody)": 0, "(unheld)": 0
    }  # fmt: skip
    assert runs[0]["kinds"] == "8 reclaimed" and len(runs) == 1


def test_what_nobody_held_has_a_row(bill):
    """A notebook, a machine that nothing ran on, and one that never came up; not a request."""
    book = ran("book", "12:00", "12:30", ["i-y"], kind="NOTEBOOK", user="bob")
    lives = [("i-x", "11:50", "13:05"), ("i-y", "11:50", "12:40"), ("i-z", "11:55", "12:55")]
    lives += [("i-dead", "12:00", ""), ("sir-1", "11:40", "")]
    agents = [(name, start, end) for name, start, end in lives[:3]]
    other = {SPOT: {"instanceType": "g5.xlarge"}}  # no machine has its one slot
    cluster = Cluster({1: MINE, 2: book}, lives, agents=agents, aws=other)
    since = ["--since", "2026-11-20T00:00:00Z"]
    for by in ("user", "label", "month"):
        totals, runs = (t["rows"] for t in bill(cluster, *since, "--by", by)["tables"][:2])
        costs = {row[by]: row["cost"] for row in totals}
        assert costs.pop("all") == pytest.approx(sum(costs.values()))
        assert costs["notebook of bob"] == pytest.approx(50 / 60 * HOUR)
        assert costs["(unheld)"] == pytest.approx((60 + 25) / 60 * HOUR)
        assert sum(row["cost"] for row in runs) == pytest.approx(sum(costs.values()))
    said = "\n".join(bill(cluster, *since)["notes"])
    assert "of machines that nobody held" in said and "in UTC" in said


OWN: Any = {"details": {"aws": None}}
PRICED = [word for name in (ON_DEMAND, SPOT) for word in ("--price-pool", f"{name}=p3.16xlarge")]
SINCE = ["--since", "2026-11-20T00:00:00Z"]


def test_an_own_machine_is_idle_where_nobody_holds_it(bill):
    """It has no `instance` row; the idle time of one that was held once was in no bill."""
    agents = [("own-a", "10:00", "11:00"), ("own-a", "11:30", "13:00"), ("i-x", "10:00", "14:00")]
    cluster = Cluster({1: MINE}, agents=agents, pool=OWN)
    costs = {row["run"]: row["cost"] for row in rows(bill(cluster, *SINCE, *PRICED))}
    expected = {"experiment 1, albert-squad": HOUR, "(unheld) *": (2.5 + 3) * HOUR}
    assert costs == pytest.approx(expected)
    unpriced = bill(cluster, *SINCE)
    assert [row["cost"] for row in rows(unpriced)] == [None, None]
    assert [row["worked h"] for row in rows(unpriced)] == pytest.approx([1, 5.5])
    notes = "\n".join(unpriced["notes"])
    assert f"give --price-pool {ON_DEMAND}=INSTANCE[:spot]" in notes
    assert "2.50 machine-hours are not in the dollars; the master does not record which" in notes


def test_bills_of_two_spans_add_up_on_own_machines(bill):
    """13:00 to 14:05 and 14:05 to 14:13 were $5.92, and 13:00 to 14:13 $5.75."""
    later = ran("later", "14:06", "14:10")
    cluster = Cluster({1: later}, agents=[("i-x", "12:00", "15:00")], pool=OWN)

    def total(since: str, until: str) -> float:
        span = ["--since", f"2026-11-20T{since}:00Z", "--until", f"2026-11-20T{until}:00Z"]
        return sum(row["cost"] for row in rows(bill(cluster, *span, *PRICED)))

    whole = total("13:00", "14:13")
    assert total("13:00", "14:05") + total("14:05", "14:13") == pytest.approx(whole)
    assert whole == pytest.approx(73 / 60 * HOUR)


def test_free_slots_of_an_own_machine_are_unheld(bill):
    """A notebook that holds two of four slots pays half of four slots, whose type has eight."""
    trial = Kept([Held("mine.0", "12:00", "13:00", ["i-x"], ON_DEMAND)])
    cluster = Cluster(
        {1: Ran([trial], slots=2)},
        agents=[("i-x", "12:00", "13:00")],
        pool=OWN,
        slots={"i-x": 4},
    )
    mine, unheld = rows(bill(cluster, *SINCE, *PRICED))
    assert mine["cost"] == pytest.approx(HOUR / 4) and unheld["cost"] == pytest.approx(HOUR / 4)
    assert unheld["worked h"] == pytest.approx(0.5)


def test_a_disabled_machine_has_the_slots_that_were_held(bill):
    """An agent that connects while it is disabled is recorded with 0 slots: its tasks cost $0."""
    trial = ran("mine", "12:00", "13:00", slots=4)
    life = [("i-x", "12:00", "14:00")]
    cluster = Cluster({1: trial}, agents=life, pool=OWN, slots={"i-x": 0})
    mine, unheld = rows(bill(cluster, *SINCE, *PRICED))
    assert mine["cost"] == pytest.approx(HOUR / 2) == unheld["cost"]


@pytest.mark.parametrize("machine", ["own", "EC2"])
@pytest.mark.parametrize("kind", ["TRIAL", "DELETED"])
def test_a_task_whose_container_did_not_come_up_is_on_its_machine(bill, machine, kind):
    """Seen on 0.38.1: a trial that was preempted while its image was pulled named no machine. Its
    time was billed twice: to the trial, and as the machine's free slots or idle time."""
    held = [
        Held("a.0", "12:10", "12:20", ["i-x"], ON_DEMAND, exit=LEFT, silent=True),
        Held("a.1", "12:30", "12:40", ["i-y"], ON_DEMAND),
    ]
    lives = [("i-x", "12:00", "12:30"), ("i-y", "12:20", "12:50")]
    cluster = Cluster({1: Ran([Kept(held)], kind=kind)}, lives)
    paid = 1.0  # boot and idle time, too
    if machine == "own":
        cluster = Cluster(cluster.ran, agents=lives, pool=OWN)
        paid = 20 / 60
    costs = {row["run"]: row["cost"] for row in rows(bill(cluster, *SINCE, *PRICED))}
    assert sum(costs.values()) == pytest.approx(HOUR)
    held_by_nobody = sum(cost for name, cost in costs.items() if name.startswith("(unheld)"))
    assert HOUR - held_by_nobody == pytest.approx(paid * HOUR)


def test_tasks_without_slots_share_what_no_other_holds(bill):
    """A TensorBoard and a notebook on an aux machine had no row: all of it was (unheld)."""
    pools = {"aux": {"instanceType": "t2.xlarge"}}
    book = ran("book", "12:00", "13:00", ["i-aux"], pool="aux", kind="NOTEBOOK", slots=0)
    board = ran("board", "12:30", "13:30", ["i-aux"], pool="aux", kind="TENSORBOARD", slots=0)
    trial = ran("trial", "13:30", "14:00", ["i-aux"], pool="aux", slots=0, user="bob")
    cluster = Cluster(
        {1: trial, 2: book, 3: board._replace(user="bob")},
        [("i-aux", "12:00", "14:00")],
        aws=pools,
        slots={"i-aux": 0},
    )
    parts = {row["run"]: row["worked h"] for row in rows(bill(cluster, *SINCE))}
    expected = {"experiment 1, albert-squad": 0.5}
    expected |= {"notebook of ada *": 0.75, "tensorboard of bob *": 0.75}
    assert parts == pytest.approx(expected)


def test_a_task_without_slots_pays_no_slots(bill):
    """A TensorBoard beside a trial pays nothing; alone it pays a machine of EC2, and of one's own
    only one without slots, as all others still have their slots to give."""
    board = ran("board", "12:00", "14:00", kind="TENSORBOARD", slots=0)
    life = [("i-x", "12:00", "14:00")]
    on_ec2 = rows(bill(Cluster({1: MINE, 2: board}, life), *SINCE))
    own = Cluster({1: MINE, 2: board}, agents=life, pool=OWN)
    assert [row["cost"] for row in on_ec2] == pytest.approx([HOUR, HOUR])
    for slots, payer in ((8, "(unheld) *"), (0, "tensorboard of ada")):
        task = {2: board} if slots == 0 else {1: MINE, 2: board}
        cluster = own._replace(ran=task, slots={"i-x": slots})
        paid = [row["run"] for row in rows(bill(cluster, *SINCE, *PRICED))]
        assert paid == ["experiment 1, albert-squad", payer][-len(task) :]


@pytest.mark.parametrize("clock", ["", "12:30"])
def test_what_only_waited_has_no_row(bill, clock):
    """The master's CSV has allocations that are in the queue. Those that ended there get the time
    of the last heartbeat as start and end when the master restarts."""
    waits = Ran([Kept([Held("waits.0", clock, clock, [], ON_DEMAND)], state="QUEUED")])
    found = bill(Cluster({1: MINE, 2: waits, 3: waits._replace(kind="DELETED")}, LIFE), *SINCE)
    assert {row["run"] for row in rows(found)} == {"experiment 1, albert-squad", "(nobody) *"}
    assert not any("could not be seen" in note for note in found["notes"])


def test_the_slots_of_a_machine_tell_its_pool(bill, tmp_path):
    """3.5 h of an aux machine were $76.85: it was taken for the GPU machine launched nearest."""
    file = tmp_path / "prices.yaml"
    file.write_text(
        "date: 2026-11-01\ninstances:\n  t2.xlarge: {on_demand: 0.1856, spot: 0.06}\n"
        "  p3.16xlarge: {on_demand: 24.48, spot: 7}\n"
    )
    pools = {SPOT: {"instanceType": "t2.xlarge", "spotEnabled": False}}
    lives = [*LIFE, ("i-aux", "09:30", "13:00")]
    cluster = Cluster({1: MINE}, lives, aws=pools, slots={"i-aux": 0})
    costs = {x["run"]: x["cost"] for x in rows(bill(cluster, *SINCE, "--prices", str(file)))}
    assert costs["(unheld) *"] == pytest.approx(3.5 * 0.1856)


def test_a_machine_of_two_pools_is_not_guessed(bill):
    """On spot or on demand: nothing says it, and a guess was the dollars of one of them."""
    cluster = Cluster({1: MINE}, [*LIFE, ("i-y", "12:00", "14:00")])
    bills = bill(cluster, *SINCE)
    costs = {row["run"]: row["cost"] for row in rows(bills)}
    assert costs["(unheld) *"] is None and costs["experiment 1, albert-squad"] > HOUR
    words = "machines with 8 slots that nobody held, of aws-spot-p3-16xlarge or aws-p3-16xlarge"
    assert any(note.startswith(f"{words}: no price; 2.00") for note in bills["notes"])


def test_a_machine_costs_a_minute_at_least(bill):
    """AWS's least; any two parts of ten seconds add up to it."""
    end = "2026-11-20T12:00:10"
    short = Ran([Kept([Held("a.0", "12:00", end, ["i-x"], ON_DEMAND)])])
    cluster = Cluster({1: short}, [("i-x", "12:00", end)])
    (row,) = rows(bill(cluster, "--experiment", "1"))
    assert row["cost"] == pytest.approx(HOUR / 60) and row["worked h"] == pytest.approx(10 / 3600)
    halves = [
        bill(cluster, *SINCE, "--until", "2026-11-20T12:00:04Z")["total"],
        bill(cluster, "--since", "2026-11-20T12:00:04Z")["total"],
    ]
    assert sum(halves) == pytest.approx(HOUR / 60) and halves[0] == pytest.approx(0.4 * HOUR / 60)


def test_both_ends_cut_a_bill(bill):
    """15 h over the first of November were $244.80 in October and $367.20 in November."""
    long = ran("a", "2026-10-31T14:00:00", "2026-11-01T05:00:00")
    cluster = Cluster({1: long}, [("i-x", "2026-10-31T14:00:00", "2026-11-01T05:00:00")])
    october, november = (
        bill(cluster, "--since", since, *until)
        for since, until in (
            ("2026-10-01T00:00:00Z", ["--until", "2026-11-01T00:00:00Z"]),
            ("2026-11-01T00:00:00Z", []),
        )
    )
    assert (october["total"], november["total"]) == pytest.approx((244.80, 122.40))
    (whole,) = rows(bill(cluster, "--experiment", "1"))
    assert whole["cost"] == pytest.approx(367.20)
    (named,) = rows(bill(cluster, "--experiment", "1", "--since", "2026-11-01T00:00:00Z"))
    assert (named["cost"], named["worked h"]) == pytest.approx((122.40, 5))


def test_idle_time_of_another_pool_is_short(bill):
    """A pool that idles 2 min: its machine ended 3 min after a failure, which took none."""
    times = {"maxIdleAgentPeriod": 120}
    trial = Kept([Held("1.t.0", "12:00", "12:30", ["i-x"], exit=FAILED)], state="QUEUED")
    cluster = Cluster({1: Ran([trial])}, [("i-x", "11:50", "12:33")], pool=times)
    (row,) = rows(bill(cluster, "--experiment", "1"))
    assert row["kinds"] == "1 failed" and row["cost"] > 0


def test_totals_of_all_that_ran(bill, capsys):
    """By month, a bill is cut at midnight of the first; all rows add up to the last."""
    one = ran("a", "2026-10-31T22:00:00", "2026-11-01T02:00:00", labels=["x"])
    two = ran("b", "2026-11-01T03:00:00", "2026-11-01T04:00:00", user="bob")
    gone = ran("c", "2026-11-01T03:00:00", "2026-11-01T04:00:00", ["i-y"], kind="DELETED")
    life = ("i-x", "2026-10-31T22:00:00", "2026-11-01T04:00:00")
    cluster = Cluster({1: one, 2: two, 3: gone}, [life])
    since = ["--since", "2026-10-01T00:00:00Z"]
    found = {
        by: {row[by]: row["cost"] for row in rows(bill(cluster, *since, "--by", by))}
        for by in ("user", "label", "month")
    }
    rest = {"experiment 3, deleted": HOUR, "(nobody)": HOUR, "(unheld)": 0, "all": 7 * HOUR}
    assert found["month"] == pytest.approx({"2026-10": 2 * HOUR, "2026-11": 3 * HOUR, **rest})
    assert found["user"] == pytest.approx({"ada": 4 * HOUR, "bob": HOUR, **rest})
    assert found["label"] == pytest.approx({"x": 4 * HOUR, "(no label)": HOUR, **rest})
    with FakeRecords(cluster) as master:
        assert main(["cost", *since, "--by", "user", "--csv", "--master", master.url, *UNTIL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "user,experiments,hours,cost,low,high,on demand" and len(lines) == 7
