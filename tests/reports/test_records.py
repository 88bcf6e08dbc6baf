"""Determined's records -> bills, through the real client against a master on loopback."""

import datetime
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import bills, records
from reports.__main__ import main
from tests.fakes.records import SPOT, TOKEN, FakeRecords

UNTIL = ["--until", "2026-11-20T13:00:00Z", "--today", "2026-11-21"]
SPOT_HOUR, HOUR = 24.48 * 0.3, 24.48


@pytest.fixture(autouse=True)
def logged_in(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))  # no token store of the developer's
    monkeypatch.setenv("DET_USER", "ada")
    monkeypatch.setenv("DET_USER_TOKEN", TOKEN)


def report(capsys, master: FakeRecords, *arguments: str) -> dict:
    assert main([*arguments, "--master", master.url, *UNTIL, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_trial_restarted_twice_and_one_still_running(capsys):
    with FakeRecords() as master:
        found = report(capsys, master, "cost", "--experiment", "7", "8")
    ended, running = found["tables"][0]["rows"]
    assert ended["restarts"] == 2 and ended["slots"] == 16
    assert ended["hours"] == pytest.approx(141 / 60, abs=1e-3)
    assert ended["lost h"] == pytest.approx(0.5, abs=1e-3)
    assert ended["windows/s"] == pytest.approx(2 / (1 / 80 + 1 / 120))
    assert (ended["EM"], ended["F1"]) == (86.0, 89.0)
    machine_hours = 160 / 60 + 115 / 60 + 45 / 60  # i-a, i-b, i-c, from launch to termination
    assert ended["cost"] == pytest.approx(machine_hours * SPOT_HOUR, abs=0.01)
    assert running["run"].endswith("(running)") and running["restarts"] == 0
    assert running["cost"] == pytest.approx(70 / 60 * HOUR, abs=0.01)  # i-d since 11:50
    assert running["lost h"] == 0 and running["EM"] is None
    assert running["windows/s"] == pytest.approx(100 * 256 / 2700)  # no report says it


def test_what_the_money_was_for(capsys):
    with FakeRecords() as master:
        found = report(capsys, master, "cost", "--experiment", "7")
    (parts,) = found["tables"][1]["rows"]
    pair = 2 * SPOT_HOUR / 60  # a minute of both machines
    expected = {
        "boot": 25 / 60 * SPOT_HOUR,  # i-a and i-b 10 min each, i-c 5
        "idle": (10 + 10 + 10 + 5 + 9 + 9) / 60 * SPOT_HOUR,
        "training": (20 + 20 + 15) * pair,
        "validation": 5 * pair,
        "checkpoints": 15 * pair,
        "image": 5 * pair,
        "lost": 30 * pair,
        "other": 11 * pair,
    }
    for part, dollars in expected.items():
        assert parts[part] == pytest.approx(dollars, abs=0.02), part
    assert parts["sum"] == pytest.approx(sum(parts[part] for part in expected))


def test_without_the_allocation_records_machines_are_paid_while_held(capsys):
    with FakeRecords(hide_raw=True) as master:
        found = report(capsys, master, "cost", "--experiment", "7")
    (row,) = found["tables"][0]["rows"]
    assert row["cost"] == pytest.approx(2 * 121 / 60 * SPOT_HOUR, abs=0.01)
    assert any("does not show this user" in note for note in found["notes"])


def test_a_pool_that_is_not_on_ec2_is_priced_as_told(capsys):
    with FakeRecords() as master:
        found = report(capsys, master, "cost", "--experiment", "7", "--price-pool",
                       f"{SPOT}=p3.16xlarge")  # fmt: skip
    assert found["tables"][0]["rows"][0]["cost"] == pytest.approx(320 / 60 * HOUR)


def test_scaling_takes_experiments(capsys):
    with FakeRecords() as master:
        found = report(capsys, master, "scaling", "--experiment", "7", "8")
    assert [row["N"] for row in found["tables"][0]["rows"]] == [8, 16]


@pytest.mark.parametrize(
    "token, experiment, said",
    [(TOKEN, "9", "--experiment 9: the master has none"), ("stale", "7", "not logged in")],
)
def test_what_the_master_refuses_is_one_line(capsys, monkeypatch, token, experiment, said):
    monkeypatch.setenv("DET_USER_TOKEN", token)
    with FakeRecords() as master:
        assert main(["cost", "--experiment", experiment, "--master", master.url]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_no_master(capsys, monkeypatch):
    monkeypatch.setattr("urllib3.util.retry.time.sleep", lambda _: None)  # between its five tries
    assert main(["cost", "--experiment", "7", "--master", "http://127.0.0.1:9"]) == 2
    assert "no master answers there" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-20T10:00:00.5Z",
        "2026-11-20T10:00:00.500000000+00:00",
        "2026-11-20T12:00:00.5+02:00",
        "2026-11-20T10:00:00.5",  # the database's own
        "2026-11-20 10:00:00.5 +0000 UTC",  # Go's
    ],
)
def test_every_form_of_time_the_master_writes(text):
    utc = datetime.timezone.utc
    assert records.parse_time(text) == datetime.datetime(2026, 11, 20, 10, 0, 0, 500000, utc)


moments = st.integers(0, 1000).map(
    lambda minute: datetime.datetime(2026, 1, 1) + datetime.timedelta(minutes=minute)
)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 8), moments, moments), min_size=1, max_size=6
    ),
    moments,
    moments,
)
def test_a_machines_life_is_paid_exactly_once(raw, first, last):
    holds = [bills.Hold(e, s, min(a, b), max(a, b)) for e, s, a, b in raw]
    start = min([first, last, *(hold.start for hold in holds)])
    end = max([first, last, *(hold.end for hold in holds)])
    paid = bills.share_life(start, end, holds)
    assert sum(paid.values()) == pytest.approx((end - start).total_seconds())
    assert all(seconds >= 0 for seconds in paid.values())
