"""What ended a trial's allocations, and the work of searches and predictions."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.fakes.records import (
    FAILED,
    KILLED,
    LEFT,
    LOST,
    ON_DEMAND,
    PAUSE,
    SCHEDULER,
    Cluster,
    Held,
    Kept,
    Ran,
)

HOUR = 24.48  # dollars of a p3.16xlarge, on demand
SPOT_HOUR = HOUR * 0.3
SPEED = 25600 / 600  # windows per second: 100 steps of 256 windows in 10 minutes
PREDICTION = {"entrypoint": "python3 predict.py --model a"}

Row = Mapping[str, Any]


@pytest.fixture
def bill_rows(bill) -> Callable[[Cluster], tuple[Row, Row]]:
    """The row of experiment 9 in the first table of its bill, and that of what was paid for."""

    def ask(cluster: Cluster) -> tuple[Row, Row]:
        runs, paid, *_ = bill(cluster, "--experiment", "9")["tables"]
        return runs["rows"][0], paid["rows"][0]

    return ask


def minutes(paid: Row) -> dict[str, float]:
    """Return the minutes of a machine that the parts of a bill are, but those of none."""
    parts = {}
    for part, cost in paid.items():
        if part not in ("run", "sum") and cost:
            parts[part] = pytest.approx(cost / HOUR * 60)
    return parts


def test_windows_of_a_search_are_those_of_each_trial(bill_rows):
    """Steps were counted as windows where the batch is searched: 20 times too dear."""
    batches = [48, 128, 256, 384, 512, 48]
    trials = []
    lives = []
    for number, batch in enumerate(batches):
        machine = f"i-{number}"
        held = Held(f"9.t{number}.0", "12:00", "12:30", [machine])
        trials.append(Kept([held], steps=10, hparams={"global_batch_size": batch}))
        lives.append((machine, "12:00", "12:40"))
    search = Ran(trials, hyperparameters={"model": "albert-xxlarge-v2"})

    row, _ = bill_rows(Cluster({9: search}, instances=lives))

    windows = 10 * sum(batches)
    assert row["cost"] == pytest.approx(6 * 40 / 60 * SPOT_HOUR)
    assert row["$/1,000 windows"] == pytest.approx(row["cost"] / windows * 1000)


def test_the_start_up_of_a_search_is_no_validation(bill_rows):
    """An allocation's first entry begins with it: 11 min of which 10 are start-up. Of $0.044 on a
    real master $0.021 were validation, for 6 s of 157."""
    kinds = ["validation", "training", "validation", "checkpointing"]
    trials = []
    lives = []
    work = []
    for shift in (0, 2, 25):  # minutes past 12:00; the last one begins when the others leave
        times = [f"12:{minute + shift:02}" for minute in (0, 11, 21, 22, 23, 30)]
        machine = f"i-{shift}"
        held = Held(f"9.t{shift}.0", times[0], times[-1], [machine], pool=ON_DEMAND)
        trials.append(Kept([held], reports=[(times[2], 100, SPEED)]))
        lives.append((machine, times[0], times[-1]))
        for kind, start, end in zip(kinds, times, times[1:], strict=False):
            work.append((9, kind, start, end))

    _, paid = bill_rows(Cluster({9: Ran(trials)}, instances=lives, work=work))

    assert minutes(paid) == {"start-up": 30, "work": 60}


@pytest.mark.parametrize(
    "launched, parts", [("12:10", {"start-up": 10, "work": 20}), ("", {"work": 30})]
)
def test_a_prediction_starts_and_answers_questions(bill_rows, launched, parts):
    """Both were checkpoints, as its first entry is one; without its log they are one."""
    held = Held("9.t.0", "12:00", "12:30", ["i-0"], pool=ON_DEMAND, launched=launched)
    work = [
        (9, "checkpointing", "12:00", "12:25"),
        (9, "checkpointing", "12:25", "12:26"),
        (9, "validation", "12:26", "12:27"),
    ]
    trial = Kept([held], scores={"total": 11873, "f1": 90.0}, steps=25)
    prediction = Ran([trial], hyperparameters={}, config=PREDICTION)

    row, paid = bill_rows(
        Cluster({9: prediction}, instances=[("i-0", "12:00", "12:30")], work=work)
    )

    assert minutes(paid) == parts
    assert row["$/1,000 windows"] == pytest.approx(row["cost"] / 11.873)


def test_work_that_was_lost_is_nothing_else(bill_rows):
    """A validation after the last save; start-up is none of it, though nothing was saved."""
    held = []
    for hour in (10, 11, 12):
        number = hour - 10
        start = f"{hour}:00"
        end = f"{hour}:30"
        held.append(Held(f"9.t.{number}", start, end, ["i-0"], pool=ON_DEMAND, exit=FAILED))
    work = [
        (9, "training", "10:00", "10:25"),
        (9, "training", "11:00", "11:05"),
        (9, "validation", "11:05", "11:06"),
        (9, "validation", "11:20", "11:25"),
        (9, "training", "12:00", "12:20"),
    ]
    trial = Kept(
        held,
        checkpoints=["11:10", "12:20"],
        reports=[("10:25", 100, SPEED), ("12:20", 200, SPEED)],
    )

    _, paid = bill_rows(
        Cluster({9: Ran([trial])}, instances=[("i-0", "10:00", "12:30")], work=work)
    )

    assert minutes(paid) == {"start-up": 15 + 10, "work": 10 + 20, "lost": 15 + 20}


def taken_back(number: int, exit: str, log: str) -> Held:
    """Return an allocation of five minutes that was ended before its work began."""
    start = f"1{number}:00"
    end = f"1{number}:05"
    return Held(f"9.t.{number}", start, end, ["i-0"], pool=ON_DEMAND, exit=exit, log=log)


@pytest.mark.parametrize("exit, log", [(LEFT, SCHEDULER), (KILLED, PAUSE), ("", "")])
def test_what_is_taken_back_before_its_work_is_no_interruption(bill_rows, exit, log):
    """A search's normal queueing was a restart each time: 422 of 1,146 s, really 45."""
    held = [
        taken_back(0, exit, log),
        taken_back(1, exit, log),
        Held("9.t.2", "12:00", "12:30", ["i-0"], pool=ON_DEMAND, exit=LEFT, log=SCHEDULER),
        taken_back(3, exit, log),
        Held("9.t.4", "14:00", "14:30", ["i-0"], pool=ON_DEMAND),
    ]
    trial = Kept(
        held,
        checkpoints=["12:25", "14:25"],
        reports=[("12:25", 100, SPEED), ("14:25", 200, SPEED)],
    )
    # Another's work: that the records have entries says that this one's are not missing.
    other = Ran([Kept([Held("8.t.0", "09:00", "09:30", ["i-1"], pool=ON_DEMAND)])])
    work = [(8, "training", "09:00", "09:20")]
    cluster = Cluster({8: other, 9: Ran([trial])}, instances=[("i-0", "10:00", "14:30")], work=work)

    row, paid = bill_rows(cluster)

    assert row["kinds"] == "1 preempted"
    assert row["lost h"] == 0
    assert minutes(paid) == {"start-up": 5 + 5 + 15 + 5 + 15, "work": 15 + 15}
    assert row["interruptions"] / HOUR * 60 == pytest.approx(5 + 15)  # after work had begun


def test_a_prediction_taken_back_before_its_script_did_nothing_twice(bill_rows):
    held = [
        taken_back(0, LEFT, SCHEDULER),
        Held("9.t.1", "11:00", "11:30", ["i-0"], pool=ON_DEMAND, launched="11:10"),
    ]
    work = [(9, "checkpointing", "11:00", "11:25")]
    trial = Kept(held, scores={"total": 10}, steps=1)
    prediction = Ran([trial], hyperparameters={}, config=PREDICTION)

    row, paid = bill_rows(
        Cluster({9: prediction}, instances=[("i-0", "10:00", "11:30")], work=work)
    )

    assert minutes(paid) == {"start-up": 5 + 10, "work": 20}
    assert row["interruptions"] == 0


def test_idle_time_between_trials_is_no_interruption(bill_rows):
    """One trial ended, and the machine waited for the next."""
    trials = []
    for number in range(3):
        held = Held(f"9.t{number}.0", f"12:{number}0", f"12:{number}5", ["i-0"], pool=ON_DEMAND)
        trials.append(Kept([held]))

    row, paid = bill_rows(Cluster({9: Ran(trials)}, instances=[("i-0", "12:00", "12:25")]))

    assert minutes(paid) == {"work": 15, "idle": 10}
    assert row["interruptions"] == 0


# Hours lost by an allocation of half an hour that saved 15 s before its end, or after 10 min.
SOON = 15 / 3600
LATE = 20 / 60
# Restarts; of each allocation but the last: exit reason, log, if it had just saved; hours lost.
STOPS = [
    (0, [(LEFT, PAUSE, True), (LEFT, SCHEDULER, False)], "1 paused, 1 preempted", 0),
    (0, [(LEFT, "", True)], "1 paused", 0),  # its log was deleted
    (0, [(KILLED, PAUSE, False)], "1 paused", LATE),  # before it was ready
    (0, [(LOST, "", True)], "1 failed", SOON),
    (
        2,
        [(LEFT, PAUSE, True), (FAILED, "", True), (FAILED, "", False)],
        "2 failed, 1 paused",
        SOON + LATE,
    ),
    (1, [("", "", True)], "1 failed", SOON),  # as a master's restart leaves it
    (2, [("", "", True), ("", "", False), ("", "", False)], "2 failed, 1 paused", 2 * LATE),
    (0, [("", "", False), ("", "", True)], "1 failed, 1 paused", LATE),
]


@pytest.mark.parametrize("restarts, ends, kinds, lost", STOPS)
def test_the_master_says_why_an_allocation_ended(bill_rows, restarts, ends, kinds, lost):
    """A crash just after a checkpoint was "1 paused", for nothing."""
    held = []
    checkpoints = []
    for number, (reason, log, just_saved) in enumerate([*ends, ("", "", True)]):
        hour = 10 + number
        held.append(
            Held(
                f"9.t.{number}",
                start=f"{hour}:00",
                end=f"{hour}:30",
                machines=["i-0"],
                pool=ON_DEMAND,
                exit=reason,
                log=log,
            )
        )
        checkpoints.append(f"2026-11-20T{hour}:29:45" if just_saved else f"{hour}:10")
    trial = Kept(held, checkpoints=checkpoints, steps=1, restarts=restarts)

    row, _ = bill_rows(Cluster({9: Ran([trial])}, instances=[("i-0", "09:50", "14:40")]))

    assert row["kinds"] == kinds
    assert row["stops"] == len(ends)
    assert row["lost h"] == pytest.approx(lost)
