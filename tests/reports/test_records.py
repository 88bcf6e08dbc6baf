"""Determined's records -> bills, through the real client against a master on loopback."""

import datetime
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cluster.facts import live_prices
from cluster.facts.rates import PricedType, Rates
from reports import records
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
SPOT_HOUR, HOUR = 24.48 * 0.3, 24.48


def test_a_trial_restarted_twice_and_one_still_running(bill):
    found = bill(DEFAULT, *UNTIL, "--experiment", "7", "8")
    ended, running = found["tables"][0]["rows"]
    machine_hours = (160 + 111 + 45) / 60  # i-a, i-b, i-c, from launch to termination
    cost = machine_hours * SPOT_HOUR
    expected = {"slots": 16, "elapsed h": 141 / 60, "worked h": 121 / 60, "lost h": 0.5, "stops": 2}
    expected |= {"windows/s": 400 * 256 / (55 * 60), "EM": 86.0, "F1": 89.0, "cost": cost}
    expected |= {"low": machine_hours * 2.67, "high": cost, "on demand": machine_hours * HOUR}
    expected |= {"$/hour": 2 * SPOT_HOUR}
    assert {head: ended[head] for head in expected} == pytest.approx(expected)
    assert (ended["hardware"], ended["kinds"]) == ("2 x p3.16xlarge", "1 failed, 1 reclaimed")
    assert running["run"].endswith("(running) *") and running["stops"] == 0
    assert running["cost"] == pytest.approx(70 / 60 * HOUR)  # i-d since 11:50
    assert running["lost h"] == 0 and running["EM"] is None
    assert running["windows/s"] == pytest.approx(100 * 256 / 2700)  # no report says it
    assert running["faster"] is None and running["cheaper"] is None
    assert found["total"] == pytest.approx(ended["cost"] + running["cost"])
    # What the money was for.
    (paid, _), pair = found["tables"][1]["rows"], 2 * SPOT_HOUR / 60  # a minute of both machines
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
    assert ended["interruptions"] == pytest.approx(40 * pair + between)


@pytest.mark.parametrize(
    "hidden, minutes, said",
    [
        (("allocation/raw", "-csv"), 2 * 121, "does not show this user"),  # paid while held
        (("-csv",), 316, "who else held the machines is not seen"),
    ],
)
def test_without_the_allocation_records(bill, hidden, minutes, said):
    found = bill(FakeRecords(hide=hidden), *SEVEN)
    priced = ["--price-pool", f"{SPOT}=p3.16xlarge"]  # a pool that is not on EC2
    told = bill(FakeRecords(hide=hidden), *SEVEN, *priced)
    assert found["total"] == pytest.approx(minutes / 60 * SPOT_HOUR)
    assert told["total"] == pytest.approx(minutes / 60 * HOUR)
    assert any(said in note for note in found["notes"])


def test_past_spot_hours_have_the_price_of_their_time(bill, monkeypatch):
    """Half price until 12:00, the double from then on; before the history, the file's."""
    steps = pd.to_datetime(["2026-11-20T11:00:00Z", "2026-11-20T12:00:00Z"])
    series = {PricedType("p3.16xlarge"): pd.Series([SPOT_HOUR / 2, SPOT_HOUR * 2], index=steps)}
    monkeypatch.setattr(live_prices, "priced", lambda _, base, *__: (base, []))
    monkeypatch.setattr(Rates, "history", lambda *_, **__: (series, []))
    found = bill(DEFAULT, *SEVEN, "--live")
    hours = 2 * 1 + (1 + 51 / 60 + 5 / 60) / 2 + 2 * (40 + 40) / 60
    row = found["tables"][0]["rows"][0]
    assert row["cost"] == pytest.approx(hours * SPOT_HOUR) and row["low"] is None


def test_scaling_takes_experiments_and_does_not_mix_them(bill):
    """8 slots that still run and 16 that ended are no series: they gave 506 % efficiency."""
    found = bill(DEFAULT, *UNTIL, "--experiment", "7", "8", command="scaling")
    rows = found["tables"][0]["rows"]
    assert sorted(row["N"] for row in rows) == [8, 16]
    assert {row["efficiency"] for row in rows} == {1.0}
    assert all(row["series"].startswith("albert-xxlarge on p3.16xlarge, ") for row in rows)


def test_a_search_is_the_sum_of_its_trials(bill):
    """Two trials at once, then one alone: slots at most, rate and windows as they were."""
    trials = [
        Kept([Held(f"9.t{n}.0", "12:00", end, [f"i-{n}"])], [], [(end, 100, speed)], state)
        for n, end, speed, state in (
            (0, "12:30", 50.0, "STOPPING_COMPLETED"),  # as one whose search dropped it
            (1, "13:00", 100.0, "COMPLETED"),
        )
    ]
    lives = [("i-0", "12:00", "12:40"), ("i-1", "12:00", "13:10")]
    cluster = Cluster({9: Ran(trials, hyperparameters={"global_batch_size": 256})}, lives)
    (row,) = bill(cluster, *UNTIL, "--experiment", "9")["tables"][0]["rows"]
    assert (row["slots"], row["hardware"]) == (16, "2 x p3.16xlarge")
    assert row["run"].endswith("(running)")
    assert row["worked h"] == 1 and row["$/hour"] == pytest.approx(1.5 * SPOT_HOUR)
    each = 200 / (100 / 50 + 100 / 100)  # windows a second of one trial, on average
    assert row["windows/s"] == pytest.approx(1.5 * each)
    assert row["cost"] == pytest.approx((40 + 60) / 60 * SPOT_HOUR)


@pytest.mark.parametrize(
    "token, words, said",
    [
        (TOKEN, "9", "--experiment 9: the master has none"),
        ("stale", "7", "wants a login"),
        (TOKEN, "7 --user bob", "wants a login"),  # not with the token of the environment
    ],
)
def test_what_the_master_refuses_is_one_line(refused, monkeypatch, token, words, said):
    monkeypatch.setenv("DET_USER_TOKEN", token)
    with FakeRecords() as master:
        asked = ["cost", "--master", master.url, "--experiment", *words.split()]
        assert said in refused(*asked)


def test_every_form_of_time_the_master_writes():
    for text in (
        "2026-11-20T10:00:00.5Z",
        "2026-11-20T10:00:00.500000000+00:00",
        "2026-11-20T12:00:00.5+02:00",
        "2026-11-20T10:00:00.5",  # the database's own
        "2026-11-20 10:00:00.5 +0000 UTC",  # Go's
    ):
        utc = datetime.timezone.utc
        assert records.parse_time(text) == datetime.datetime(2026, 11, 20, 10, 0, 0, 500000, utc)


def recorded(shared: Path) -> dict[str, Any]:
    return json.loads((shared / "golden" / "determined-api.json").read_text())


def replay(exchanges: list[dict[str, Any]], *changed: tuple[str, Any]) -> AnswerServer:
    """A master that gives recorded answers; `changed`: what others give, by the path's end."""
    found: Any = {
        x["path"].partition("?")[0]: x["response"] for x in exchanges if x["method"] == "GET"
    }

    found["/api/v1/me"] = {}
    found["/resources/allocation/allocations-csv"] = b"allocation_id,slots,start_time,end_time\n"

    def respond(request: Request) -> Any:
        ends = (given for end, given in changed if request.path.endswith(end))
        return next(ends, found.get(request.path))

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
    asked = ["--experiment", "20", "--until", "2026-11-22T01:00:00Z"]
    asked += ["--price-pool", "default=g5.xlarge"]
    exchanges = recorded(shared)["exchanges"][106:114]
    found = bill(replay(exchanges), *asked)
    in_tokens = bill(replay(exchanges), *asked, "--tokens")
    (row,) = found["tables"][0]["rows"]
    assert (row["stops"], row["kinds"], row["lost h"]) == (1, "1 paused", 0)
    assert 100 < in_tokens["tables"][0]["rows"][0]["tokens/s"] / row["windows/s"] < 130
    assert row["worked h"] * 3600 == pytest.approx(32.866 + 28.416, abs=0.01)
    assert row["elapsed h"] * 3600 == pytest.approx(69.966, abs=0.01)
    assert row["windows/s"] == pytest.approx(93.2, abs=0.5)
    assert (row["EM"], row["F1"], row["slots"]) == (50, pytest.approx(52.876, abs=1e-3), 1)
    assert row["cost"] == pytest.approx(61.282 / 3600 * 1.006, abs=1e-5)
    (parts,) = found["tables"][1]["rows"]
    started = (23.177 - 4.396 - 2.13) / 61.28
    first = parts["start-up"] - row["interruptions"]  # which are the second start-up
    assert first / row["cost"] == pytest.approx(started, abs=0.01)
    assert row["interruptions"] > 0 and parts["lost"] == 0


def test_the_recorded_run_continued(bill, shared):
    """`trial.taskIds` names a second task then, and its allocations count as well."""
    exchanges = recorded(shared)["exchanges"]
    trial = exchanges[121]["response"]["trial"]
    asked = exchanges[117]["request"]["acceleratorData"]
    first = exchanges[108]["response"]["task"]
    again = {**first["allocations"][0], "allocationId": asked["allocationId"]}
    again |= {"startTime": "2026-11-22T01:15:00", "endTime": "2026-11-22T01:15:20"}
    page = {"trials": [trial], "pagination": exchanges[107]["response"]["pagination"]}
    changed = {
        "/trials": page,
        "-1": {"task": {**first, "allocations": [again]}},
        "-1/acceleratorData": {"acceleratorData": [{**asked, "resourcePool": "default"}]},
    }
    asked = ["--experiment", "20", "--until", "2026-11-22T02:00:00Z"]
    found = bill(replay(exchanges[106:114], *changed.items()), *asked)
    (row,) = found["tables"][0]["rows"]
    assert row["kinds"] == "1 continued, 1 paused" and row["run"].endswith("(running)")
    assert row["elapsed h"] * 3600 == pytest.approx(48 * 60 + 75.6, abs=1)
    assert row["worked h"] * 3600 == pytest.approx(61.282 + 20, abs=0.01)
