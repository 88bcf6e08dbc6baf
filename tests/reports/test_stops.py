"""What ended a trial's allocations, and the work of searches and predictions."""

from collections.abc import Callable
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

HOUR = 24.48
SPOT_HOUR = HOUR * 0.3


@pytest.fixture
def row(bill) -> Callable[..., dict[str, Any]]:
    """The row of experiment 9 in the first table of its bill, or another."""
    return lambda cluster, table=0: bill(cluster, "--experiment", "9")["tables"][table]["rows"][0]


def minutes(parts: dict[str, Any]) -> dict[str, float]:
    """Return the minutes of a machine that the parts of a bill are, but those of none."""
    parts = {part: cost for part, cost in parts.items() if part not in ("run", "sum") and cost}
    return {part: pytest.approx(cost / HOUR * 60) for part, cost in parts.items()}


def test_windows_of_a_search_are_those_of_each_trial(row):
    """Steps were counted as windows where the batch is searched: 20 times too dear."""
    batches = 48, 128, 256, 384, 512, 48
    trials = [
        Kept([Held(f"9.t{n}.0", "12:00", "12:30", [f"i-{n}"])], steps=10, hparams=hparams)
        for n, hparams in enumerate({"global_batch_size": batch} for batch in batches)
    ]
    lives = [(f"i-{n}", "12:00", "12:40") for n in range(6)]
    cluster = Cluster({9: Ran(trials, hyperparameters={"model": "albert-xxlarge-v2"})}, lives)
    found = row(cluster)
    assert found["cost"] == pytest.approx(6 * 40 / 60 * SPOT_HOUR)
    assert found["$/1,000 windows"] == pytest.approx(found["cost"] / (10 * sum(batches)) * 1000)


def test_the_start_up_of_a_search_is_no_validation(row):
    """An allocation's first entry begins with it: 11 min of which 10 are start-up. Of $0.044 on a
    real master $0.021 were validation, for 6 s of 157."""
    trials, lives, work = [], [], []
    for m in (0, 2, 25):  # minutes past 12:00; the last one begins when the others leave
        times = [f"12:{minute + m:02}" for minute in (0, 11, 21, 22, 23, 30)]
        held = Held(f"9.t{m}.0", times[0], times[-1], [f"i-{m}"], ON_DEMAND)
        trials.append(Kept([held], reports=[(times[2], 100, 25600 / 600)]))
        lives.append((f"i-{m}", times[0], times[-1]))
        kinds = "validation", "training", "validation", "checkpointing"
        work += [(9, *row) for row in zip(kinds, times, times[1:], strict=False)]
    parts = row(Cluster({9: Ran(trials)}, lives, work=work), 1)
    assert minutes(parts) == {"start-up": 30, "work": 60}


@pytest.mark.parametrize(
    "launched, parts", [("12:10", {"start-up": 10, "work": 20}), ("", {"work": 30})]
)
def test_a_prediction_starts_and_answers_questions(row, launched, parts):
    """Both were checkpoints, as its first entry is one; without its log they are one."""
    held = Held("9.t.0", "12:00", "12:30", ["i-0"], ON_DEMAND, launched=launched)
    config = {"entrypoint": "python3 predict.py --model a"}
    work = [(9, "checkpointing", "12:00", "12:25"), (9, "checkpointing", "12:25", "12:26"),
            (9, "validation", "12:26", "12:27")]  # fmt: skip
    trial = Kept([held], scores={"total": 11873, "f1": 90.0}, steps=25)
    ran = Ran([trial], hyperparameters={}, config=config)
    cluster = Cluster({9: ran}, [("i-0", "12:00", "12:30")], work=work)
    assert minutes(row(cluster, 1)) == parts
    assert (found := row(cluster))["$/1,000 windows"] == pytest.approx(found["cost"] / 11.873)


def test_work_that_was_lost_is_nothing_else(row):
    """A validation after the last save; start-up is none of it, though nothing was saved."""
    held = [Held(f"9.t.{n}", f"1{n}:00", f"1{n}:30", ["i-0"], ON_DEMAND, FAILED) for n in range(3)]
    work = [(9, "training", "10:00", "10:25"), (9, "training", "11:00", "11:05"),
            (9, "validation", "11:05", "11:06"), (9, "validation", "11:20", "11:25"),
            (9, "training", "12:00", "12:20")]  # fmt: skip
    reports = [("10:25", 100, 25600 / 600), ("12:20", 200, 25600 / 600)]
    trial = Kept(held, ["11:10", "12:20"], reports)
    parts = row(Cluster({9: Ran([trial])}, [("i-0", "10:00", "12:30")], work=work), 1)
    assert minutes(parts) == {"start-up": 15 + 10, "work": 10 + 20, "lost": 15 + 20}


def taken_back(exit: str, log: str, **more: Any) -> Held:
    """An allocation of five minutes that was ended before its work began."""
    number = more.pop("number")
    span = f"1{number}:00", f"1{number}:05"
    return Held(f"9.t.{number}", *span, ["i-0"], ON_DEMAND, exit, log, **more)


@pytest.mark.parametrize("exit, log", [(LEFT, SCHEDULER), (KILLED, PAUSE), ("", "")])
def test_what_is_taken_back_before_its_work_is_no_interruption(bill, exit, log):
    """A search's normal queueing was a restart each time: 422 of 1,146 s, really 45."""
    held = [taken_back(exit, log, number=number) for number in (0, 1)]
    held.append(Held("9.t.2", "12:00", "12:30", ["i-0"], ON_DEMAND, LEFT, SCHEDULER))
    held.append(taken_back(exit, log, number=3))
    held.append(Held("9.t.4", "14:00", "14:30", ["i-0"], ON_DEMAND))
    reports = [("12:25", 100, 25600 / 600), ("14:25", 200, 25600 / 600)]
    trial = Kept(held, ["12:25", "14:25"], reports)
    # Another's work: that the records have entries says that this one's are not missing.
    other = Ran([Kept([Held("8.t.0", "09:00", "09:30", ["i-1"], ON_DEMAND)])])
    work = [(8, "training", "09:00", "09:20")]
    cluster = Cluster({8: other, 9: Ran([trial])}, [("i-0", "10:00", "14:30")], work=work)
    bills = bill(cluster, "--experiment", "9")
    found, parts = bills["tables"][0]["rows"][0], bills["tables"][1]["rows"][0]
    assert found["kinds"] == "1 preempted" and found["lost h"] == 0
    assert minutes(parts) == {"start-up": 5 + 5 + 15 + 5 + 15, "work": 15 + 15}
    assert found["interruptions"] / HOUR * 60 == pytest.approx(5 + 15)  # after work had begun


def test_a_prediction_taken_back_before_its_script_did_nothing_twice(bill):
    held = [taken_back(LEFT, SCHEDULER, number=0)]
    held.append(Held("9.t.1", "11:00", "11:30", ["i-0"], ON_DEMAND, launched="11:10"))
    config = {"entrypoint": "python3 predict.py --model a"}
    work = [(9, "checkpointing", "11:00", "11:25")]
    ran = Ran([Kept(held, scores={"total": 10}, steps=1)], hyperparameters={}, config=config)
    bills = bill(Cluster({9: ran}, [("i-0", "10:00", "11:30")], work=work), "--experiment", "9")
    assert minutes(bills["tables"][1]["rows"][0]) == {"start-up": 5 + 10, "work": 20}
    assert bills["tables"][0]["rows"][0]["interruptions"] == 0


def test_idle_time_between_trials_is_no_interruption(bill):
    """One trial ended, and the machine waited for the next."""
    trials = [
        Kept([Held(f"9.t{n}.0", f"12:{n}0", f"12:{n}5", ["i-0"], ON_DEMAND)]) for n in range(3)
    ]
    cluster = Cluster({9: Ran(trials)}, [("i-0", "12:00", "12:25")])
    bills = bill(cluster, "--experiment", "9")
    assert minutes(bills["tables"][1]["rows"][0]) == {"work": 15, "idle": 10}
    assert bills["tables"][0]["rows"][0]["interruptions"] == 0


# Restarts; of each allocation but the last: exit reason, log, if it had just saved; hours lost.
SOON, LATE = 15 / 3600, 20 / 60
STOPS = [
    (0, [(LEFT, PAUSE, True), (LEFT, SCHEDULER, False)], "1 paused, 1 preempted", 0),
    (0, [(LEFT, "", True)], "1 paused", 0),  # its log was deleted
    (0, [(KILLED, PAUSE, False)], "1 paused", LATE),  # before it was ready
    (0, [(LOST, "", True)], "1 failed", SOON),
    (2, [(LEFT, PAUSE, True), (FAILED, "", True), (FAILED, "", False)], "2 failed, 1 paused",
     SOON + LATE),
    (1, [("", "", True)], "1 failed", SOON),  # as a master's restart leaves it
    (2, [("", "", True), ("", "", False), ("", "", False)], "2 failed, 1 paused", 2 * LATE),
    (0, [("", "", False), ("", "", True)], "1 failed, 1 paused", LATE),
]  # fmt: skip


@pytest.mark.parametrize("restarts, ends, kinds, lost", STOPS)
def test_the_master_says_why_an_allocation_ended(row, restarts, ends, kinds, lost):
    """A crash just after a checkpoint was "1 paused", for nothing."""
    held, saved = [], []
    for n, (reason, log, just) in enumerate([*ends, ("", "", True)]):
        held.append(Held(f"9.t.{n}", f"1{n}:00", f"1{n}:30", ["i-0"], ON_DEMAND, reason, log))
        saved.append(f"2026-11-20T1{n}:29:45" if just else f"1{n}:10")
    trial = Kept(held, saved, steps=1, restarts=restarts)
    found = row(Cluster({9: Ran([trial])}, [("i-0", "09:50", "14:40")]))
    assert (found["kinds"], found["stops"]) == (kinds, len(ends))
    assert found["lost h"] == pytest.approx(lost)
