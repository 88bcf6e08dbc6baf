"""Determined's records -> bills, through the real client against a master on loopback."""

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cluster.facts import live_prices
from cluster.facts.rates import PricedType, Rates
from reports.queries import parse_time
from tests.fakes.http import AnswerServer, Request, assert_recorded
from tests.fakes.records import (
    DEFAULT,
    SPOT,
    TOKEN,
    Cluster,
    FakeRecords,
    Held,
    Kept,
    Ran,
    answer,
)

UNTIL = ["--until", "2026-11-20T13:00:00Z"]
SEVEN = [*UNTIL, "--experiment", "7"]
HOUR = 24.48  # dollars of a p3.16xlarge, on demand
SPOT_HOUR = HOUR * 0.3


def test_a_trial_restarted_twice_and_one_still_running(bill):
    answer = bill(DEFAULT, *UNTIL, "--experiment", "7", "8")
    ended, running = answer["tables"][0]["rows"]

    machine_hours = (160 + 111 + 45) / 60  # i-a, i-b, i-c, from launch to termination
    cost = machine_hours * SPOT_HOUR
    expected = {
        "slots": 16,
        "elapsed h": 141 / 60,
        "worked h": 121 / 60,
        "lost h": 0.5,
        "stops": 2,
        "windows/s": 400 * 256 / (55 * 60),
        "EM": 86.0,
        "F1": 89.0,
        "cost": cost,
        "low": machine_hours * 2.67,
        "high": cost,
        "on demand": machine_hours * HOUR,
        "$/hour": 2 * SPOT_HOUR,
    }
    assert {head: ended[head] for head in expected} == pytest.approx(expected)
    assert ended["hardware"] == "2 x p3.16xlarge"
    assert ended["kinds"] == "1 failed, 1 reclaimed"

    # One that runs is not compared.
    assert running["run"].endswith("(running) *")
    assert running["stops"] == 0
    assert running["cost"] == pytest.approx(70 / 60 * HOUR)  # i-d since 11:50
    assert running["lost h"] == 0
    assert running["EM"] is None
    assert running["windows/s"] == pytest.approx(100 * 256 / 2700)  # no report says it
    assert running["faster"] is None
    assert running["cheaper"] is None
    assert answer["total"] == pytest.approx(ended["cost"] + running["cost"])


@pytest.mark.parametrize("until", ["2999-11-20", "9999-12-31"])
def test_what_runs_costs_nothing_in_the_future(bill, until):
    answer = bill(DEFAULT, "--experiment", "8", "--until", until)

    hours = (pd.Timestamp.now("UTC") - pd.Timestamp("2026-11-20T11:50Z")) / pd.Timedelta(hours=1)
    assert answer["total"] == pytest.approx(hours * HOUR, abs=HOUR / 60)
    assert f"--until {until} 00:00:00+00:00 is in the future: the bill ends now" in answer["notes"]


def test_what_the_money_was_for(bill):
    tables = bill(DEFAULT, *UNTIL, "--experiment", "7", "8")["tables"]
    row = tables[0]["rows"][0]
    paid = tables[1]["rows"][0]

    pair = 2 * SPOT_HOUR / 60  # a minute of both machines
    parts = {
        "start-up": 25 / 60 * SPOT_HOUR + (5 + 5 + 5) * pair,  # boots of 10, 10 and 5 min
        "work": (20 + 20 + 15 + 5 + 15 + 1) * pair,
        "lost": 30 * pair,
        "idle": (10 + 10 + 10 + 1 + 9 + 9) / 60 * SPOT_HOUR,
    }
    assert paid.keys() == {"run", "sum", *parts}
    assert {part: paid[part] for part in parts} == pytest.approx(parts)
    assert paid["sum"] == pytest.approx(sum(parts.values()))
    between = (10 + 10 + 10 + 1 + 5) / 60 * SPOT_HOUR  # idle in the two gaps, boot of i-c
    assert row["interruptions"] == pytest.approx(40 * pair + between)


@pytest.mark.parametrize(
    "hidden, minutes, words",
    [
        (("allocation/raw", "-csv"), 2 * 121, "does not show this user"),  # paid while held
        (("-csv",), 316, "who else held the machines is not seen"),
    ],
)
def test_without_the_allocation_records(bill, hidden, minutes, words):
    answer = bill(FakeRecords(hide=hidden), *SEVEN)
    pool = ["--price-pool", f"{SPOT}=p3.16xlarge"]  # a pool that is not on EC2
    on_demand = bill(FakeRecords(hide=hidden), *SEVEN, *pool)

    assert answer["total"] == pytest.approx(minutes / 60 * SPOT_HOUR)
    assert on_demand["total"] == pytest.approx(minutes / 60 * HOUR)
    assert any(words in note for note in answer["notes"])


def test_past_spot_hours_have_the_price_of_their_time(bill, monkeypatch):
    """Half price until 12:00, the double from then on; before the history, the file's."""
    moments = pd.to_datetime(["2026-11-20T11:00:00Z", "2026-11-20T12:00:00Z"])
    prices = pd.Series([SPOT_HOUR / 2, SPOT_HOUR * 2], index=moments)
    history = {PricedType("p3.16xlarge"): prices}
    monkeypatch.setattr(live_prices, "priced", lambda _, base, *__: (base, []))
    monkeypatch.setattr(Rates, "history", lambda *_, **__: (history, []))

    answer = bill(DEFAULT, *SEVEN, "--live")

    row = answer["tables"][0]["rows"][0]
    hours = 2 * 1 + (1 + 51 / 60 + 5 / 60) / 2 + 2 * (40 + 40) / 60
    assert row["cost"] == pytest.approx(hours * SPOT_HOUR)
    assert row["low"] is None


def test_scaling_takes_experiments_and_does_not_mix_them(bill):
    """8 slots that still run and 16 that ended are no series: they gave 506 % efficiency."""
    answer = bill(DEFAULT, *UNTIL, "--experiment", "7", "8", command="scaling")

    rows = [row for row in answer["tables"][0]["rows"] if row["source"] == "measured"]
    assert sorted(row["N"] for row in rows) == [8, 16]
    assert {row["efficiency"] for row in rows} == {1.0}
    assert all(row["series"].startswith("albert-xxlarge on p3.16xlarge, ") for row in rows)


def test_a_search_is_the_sum_of_its_trials(bill):
    """Two trials at once, then one alone: slots at most, rate and windows as they were."""
    short = Kept(
        [Held("9.t0.0", "12:00", "12:30", ["i-0"])],
        reports=[("12:30", 100, 50.0)],
        state="STOPPING_COMPLETED",  # as one whose search dropped it
    )
    long = Kept([Held("9.t1.0", "12:00", "13:00", ["i-1"])], reports=[("13:00", 100, 100.0)])
    search = Ran([short, long], hyperparameters={"global_batch_size": 256})
    lives = [("i-0", "12:00", "12:40"), ("i-1", "12:00", "13:10")]

    answer = bill(Cluster({9: search}, instances=lives), *UNTIL, "--experiment", "9")

    (row,) = answer["tables"][0]["rows"]
    assert row["slots"] == 16
    assert row["hardware"] == "2 x p3.16xlarge"
    assert row["run"].endswith("(running)")
    assert row["worked h"] == 1
    assert row["$/hour"] == pytest.approx(1.5 * SPOT_HOUR)
    trial_speed = 200 / (100 / 50 + 100 / 100)  # windows per second of one trial, on average
    assert row["windows/s"] == pytest.approx(1.5 * trial_speed)
    assert row["cost"] == pytest.approx((40 + 60) / 60 * SPOT_HOUR)


@pytest.mark.parametrize(
    "token, arguments, words",
    [
        (TOKEN, "9", "--experiment 9: the master has none"),
        ("stale", "7", "wants a login"),
        (TOKEN, "7 --user bob", "wants a login"),  # not with the token of the environment
    ],
)
def test_what_the_master_refuses_is_one_line(refused, monkeypatch, token, arguments, words):
    monkeypatch.setenv("DET_USER_TOKEN", token)

    with FakeRecords() as master:
        line = refused("cost", "--master", master.url, "--experiment", *arguments.split())

    assert words in line


def test_every_form_of_time_the_master_writes():
    moment = datetime.datetime(2026, 11, 20, 10, 0, 0, 500000, tzinfo=datetime.timezone.utc)
    for text in (
        "2026-11-20T10:00:00.5Z",
        "2026-11-20T10:00:00.500000000+00:00",
        "2026-11-20T12:00:00.5+02:00",
        "2026-11-20T10:00:00.5",  # the database's own
        "2026-11-20 10:00:00.5 +0000 UTC",  # Go's
    ):
        assert parse_time(text) == moment


def recorded(shared: Path) -> dict[str, Any]:
    """Return the exchanges with a real master."""
    return json.loads((shared / "golden" / "determined-api.json").read_text())


def replay(
    exchanges: list[dict[str, Any]], changed: Mapping[str, Any] | None = None
) -> AnswerServer:
    """Return a master that gives recorded answers.

    Args:
        changed: other answers, by the end of their path.
    """
    answers: dict[str, Any] = {}
    for exchange in exchanges:
        path, _, _ = exchange["path"].partition("?")
        if exchange["method"] == "GET":
            answers[path] = exchange["response"]
    csv = b"allocation_id,slots,start_time,end_time\n"
    answers |= {"/api/v1/me": {}, "/resources/allocation/allocations-csv": csv}

    def respond(request: Request) -> Any:
        for end, response in (changed or {}).items():
            if request.path.endswith(end):
                return response
        return answers.get(request.path)

    return AnswerServer(respond)


@pytest.mark.parametrize(
    "path, index",
    [
        ("experiments/7", 106),
        ("experiments/7/trials", 107),
        ("tasks/7.task", 108),
        ("tasks/7.task/acceleratorData", 109),
        ("trials/70/checkpoints", 110),
        ("trials/metrics/training_metrics", 111),
        ("resource-pools", 112),
        ("resources/allocation/raw", 113),
    ],
)
def test_the_fake_answers_as_was_recorded(shared, path, index):
    fake = answer(DEFAULT, f"/api/v1/{path}", {"trialIds": "70"})
    assert_recorded(fake, recorded(shared)["exchanges"][index]["response"], path)


def test_the_recorded_paused_run(bill, shared):
    """It was paused once for 9 s; 61 s of work and 70 s in all; nothing was lost."""
    arguments = [
        *["--experiment", "20"],
        *["--until", "2026-11-22T01:00:00Z"],
        *["--price-pool", "default=g5.xlarge"],
    ]
    exchanges = recorded(shared)["exchanges"][106:114]

    answer = bill(replay(exchanges), *arguments)
    in_tokens = bill(replay(exchanges), *arguments, "--tokens")

    (row,) = answer["tables"][0]["rows"]
    assert row["stops"] == 1
    assert row["kinds"] == "1 paused"
    assert row["lost h"] == 0
    assert row["worked h"] * 3600 == pytest.approx(32.866 + 28.416, abs=0.01)
    assert row["elapsed h"] * 3600 == pytest.approx(69.966, abs=0.01)
    assert row["windows/s"] == pytest.approx(93.2, abs=0.5)
    assert row["EM"] == 50
    assert row["F1"] == pytest.approx(52.876, abs=1e-3)
    assert row["slots"] == 1
    assert row["cost"] == pytest.approx(61.282 / 3600 * 1.006, abs=1e-5)
    tokens_per_second = in_tokens["tables"][0]["rows"][0]["tokens/s"]
    assert 100 < tokens_per_second / row["windows/s"] < 130

    # All interruptions are the second start-up.
    (paid,) = answer["tables"][1]["rows"]
    first_start = paid["start-up"] - row["interruptions"]
    share = (23.177 - 4.396 - 2.13) / 61.28
    assert first_start / row["cost"] == pytest.approx(share, abs=0.01)
    assert row["interruptions"] > 0
    assert paid["lost"] == 0


def test_the_recorded_run_continued(bill, shared):
    """`trial.taskIds` names a second task then, and its allocations count as well."""
    exchanges = recorded(shared)["exchanges"]
    trial = exchanges[121]["response"]["trial"]
    accelerators = exchanges[117]["request"]["acceleratorData"]
    task = exchanges[108]["response"]["task"]
    second = {
        **task["allocations"][0],
        "allocationId": accelerators["allocationId"],
        "startTime": "2026-11-22T01:15:00",
        "endTime": "2026-11-22T01:15:20",
    }
    pagination = exchanges[107]["response"]["pagination"]
    changed = {
        "/trials": {"trials": [trial], "pagination": pagination},
        "-1": {"task": {**task, "allocations": [second]}},
        "-1/acceleratorData": {"acceleratorData": [{**accelerators, "resourcePool": "default"}]},
    }
    master = replay(exchanges[106:114], changed)

    answer = bill(master, "--experiment", "20", "--until", "2026-11-22T02:00:00Z")

    (row,) = answer["tables"][0]["rows"]
    assert row["kinds"] == "1 continued, 1 paused"
    assert row["run"].endswith("(running)")
    assert row["elapsed h"] * 3600 == pytest.approx(48 * 60 + 75.6, abs=1)
    assert row["worked h"] * 3600 == pytest.approx(61.282 + 20, abs=0.01)
