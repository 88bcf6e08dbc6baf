"""Records of a master, read through the real client: bills by hand, and what is no master."""

import json

import pytest

from tests.fakes.http import AnswerServer, assert_recorded
from tests.fakes.records import (
    CSV,
    DEFAULT,
    FAILED,
    LEFT,
    ON_DEMAND,
    SPOT,
    Cluster,
    FakeRecords,
    Held,
    Ran,
    Tried,
    answer,
)

HOUR = 24.48  # dollars of a p3.16xlarge
UNTIL = ["--until", "2026-11-20T13:00:00Z"]
SINCE = ["--since", "2026-11-19", *UNTIL]


def one(number, *held, **fields):
    """Return an experiment, or another task, of one trial."""
    return {number: Ran([Tried(list(held))], **fields)}


def test_experiments_by_hand(report):
    """One was restarted twice, on 16 slots of spot machines; one still runs."""
    rows = report("cost", "--experiment", "7", "8", *UNTIL, of=DEFAULT)["rows"]

    ended, running = rows
    minutes = {
        "start-up": 16 * (5 + 5 + 5),
        "work": 16 * (25 + 25 + 26),
        "lost": 16 * 30,
        # i-a and i-b boot, and idle twice; i-b is gone at 11:51; i-c boots; both idle at the end.
        "idle": 8 * (10 + 10 + 10 + 10 + 10 + 1 + 5 + 9 + 9),
    }
    slot_hours = {phase: pytest.approx(value / 60) for phase, value in minutes.items()}
    assert {phase: ended[phase] for phase in minutes} == slot_hours
    machine_hours = (160 + 111 + 45) / 60  # i-a, i-b, i-c, from launch to termination
    expected = {
        "experiment": 7,
        "starts": 3,
        "failed": 1,
        "agent lost": 1,
        "hours": 121 / 60,
        "dollars": machine_hours * HOUR * 0.3,
        "on demand": machine_hours * HOUR,
    }
    assert {column: ended[column] for column in expected} == pytest.approx(expected)
    assert running["dollars"] == pytest.approx(70 / 60 * HOUR)  # i-d since 11:50
    assert running["hours"] == 1


def test_cuts_of_a_cluster_have_one_sum(report):
    """Also machines that nobody held, a notebook, and a deleted experiment."""
    extra = one(
        1, Held("book.0", "12:00", "12:30", ["i-x"], ON_DEMAND), kind="NOTEBOOK", user="eve"
    )
    extra |= one(2, Held("old.t.0", "12:40", "12:50", ["i-x"], ON_DEMAND), kind="DELETED")
    cluster = DEFAULT._replace(
        ran={**DEFAULT.ran, **extra},
        instances=[
            *DEFAULT.instances,
            ("i-x", "11:30", "13:00"),
            ("i-dead", "09:00", ""),
            ("sir-1", "11:00", ""),
        ],
    )
    unknown = report("cost", *SINCE, "--by", "pool", of=cluster)["rows"][0]
    # No agent started on i-dead, which is given up then; no task says of which pool it is.
    assert (unknown["pool"], unknown["unpriced"]) == ("(unknown)", pytest.approx(8 * 25 / 60))

    total = sum(row["dollars"] or 0 for row in report("cost", *SINCE, of=cluster)["rows"])
    for cut in (["user"], ["label"], ["month", "pool"], ["experiment", "user", "month"]):
        rows = report("cost", *SINCE, "--by", *cut, of=cluster)["rows"]
        assert sum(row["dollars"] or 0 for row in rows) == pytest.approx(total, abs=0.005)

    rows = report("cost", *SINCE, "--by", "user", of=cluster)["rows"]
    dollars = {row["user"]: row["dollars"] for row in rows}
    # The boot of i-x is longer than its pool waits for it; its idle time falls to who came last.
    assert dollars["eve"] == pytest.approx((30 + 10) / 60 * HOUR)
    assert dollars[""] == pytest.approx(30 / 60 * HOUR)
    assert dollars["ada"] == pytest.approx(38.6784 + (10 + 10) / 60 * HOUR, abs=0.005)


@pytest.mark.parametrize(
    ("second", "again", "minutes"),
    [("i-a", "12:10", 31), ("i-b", "12:11", 30)],
)
def test_a_container_that_did_not_start_is_on_its_agents_machine(report, second, again, minutes):
    """Its time was billed twice: to the trial, and as the machine's idle time."""
    held = [
        Held("9.t.0", "12:00", "12:10", ["i-a"], exit=LEFT, silent=True),
        Held("9.t.1", again, "12:31", [second]),
    ]
    lives = [("i-a", "12:00", "12:31")]
    if second != "i-a":
        lives = [("i-a", "12:00", "12:10"), (second, again, "12:31")]
    (row,) = report("cost", *SINCE, of=Cluster(one(9, *held), lives, lives))["rows"]
    assert row["dollars"] == pytest.approx(minutes / 60 * HOUR * 0.3)
    assert row["preempted"] == 1


def test_a_start_that_saved_nothing_lost_its_work_and_not_its_start(report):
    """The master hides its reports once another start has taken the same steps."""
    held = [
        Held("9.t.0", "12:00", "12:30", ["i-a"], exit=FAILED),
        Held("9.t.1", "12:31", "13:00", ["i-a"]),
    ]
    speed = 100 * 256 / 300  # so that 100 steps take five minutes
    reports = [
        ("12:10", 100, speed),
        ("12:15", 200, speed),
        ("12:42", 100, speed),
        ("12:55", 200, speed),
    ]
    trial = Tried(held, checkpoints=["12:59"], reports=reports)
    (row,) = report("cost", "--experiment", "9", *UNTIL, of=Cluster({9: Ran([trial])}))["rows"]
    assert row["start-up"] == pytest.approx(8 * (5 + 6) / 60)
    assert row["lost"] == pytest.approx(8 * 25 / 60)


def test_another_task_is_of_no_experiment(report):
    """The master's CSV has no number for it; 1 is the number of an experiment."""
    ran = one(1, Held("1.t.0", "12:00", "12:30", ["i-a"]))
    ran |= one(2, Held("book.0", "12:00", "12:30", ["i-b"]), kind="NOTEBOOK")
    lives = [("i-a", "12:00", "12:30"), ("i-b", "12:00", "12:30")]
    rows = report("cost", *SINCE, of=Cluster(ran, lives, lives))["rows"]
    assert {row["name"]: row["starts"] for row in rows} == {"albert-squad": 1, "notebook": 1}


def test_what_has_no_windows_has_no_price_of_a_thousand(report):
    ran = one(1, Held("1.t.0", "12:00", "12:30", ["i-a"]))
    (row,) = report("cost", "--experiment", "1", of=Cluster(ran))["rows"]
    assert (row["windows"], row["$/1,000 windows"]) == (0, None)


def test_your_own_machines_have_hours_and_a_price_that_you_give(report):
    cluster = Cluster(
        one(1, Held("1.t.0", "12:00", "13:00", ["a"], "own"), slots=4),
        agents=[("a", "11:00", "13:00")],
        own=True,
    )
    answer = report("cost", *SINCE, of=cluster)
    assert {row["dollars"] for row in answer["rows"]} == {None}
    assert {row["name"]: row["unpriced"] for row in answer["rows"]} == pytest.approx(
        {"albert-squad": 4.0, "(idle)": 12.0}
    )
    assert answer["title"] == "What it cost: $0.00, and not all of it has a price"
    assert answer["notes"] == [
        "start-up to idle: slot-hours, from 2026-11-19 00:00 until 2026-11-20 13:00 UTC",
        "16.00 slot-hours have no price; give --price-pool POOL=INSTANCE[:spot]",
    ]

    priced = [*SINCE, "--price-pool", "own=p3.16xlarge"]
    answer = report("cost", *priced, of=cluster)
    assert {row["name"]: row["dollars"] for row in answer["rows"]} == pytest.approx(
        {"albert-squad": HOUR / 2, "(idle)": HOUR * 1.5}
    )
    assert not any("have no price" in note for note in answer["notes"])


@pytest.fixture
def exchanges(golden_dir):
    text = (golden_dir / "determined-api.json").read_text()
    return json.loads(text)["exchanges"]


def test_the_recorded_paused_run(report, exchanges):
    """Experiment 20 was paused once for 9 s."""
    answers = {
        exchange["path"].partition("?")[0]: exchange["response"] for exchange in exchanges[106:114]
    }
    csv = CSV.encode() + b"\n"
    answers |= {"/api/v1/me": {}, "/resources/allocation/allocations-csv": csv}
    arguments = ["--experiment", "20", "--price-pool", "default=g5.xlarge"]

    master = AnswerServer(lambda request: answers.get(request.path))
    (row,) = report("cost", *arguments, of=master)["rows"]

    assert row["starts"] == 2
    assert row["hours"] * 3600 == pytest.approx(32.866 + 28.416, abs=0.01)
    assert row["start-up"] * 3600 == pytest.approx(16.65 + 14.19, abs=0.01)
    assert row["dollars"] == pytest.approx(61.282 / 3600 * 1.006, rel=1e-4)
    assert row["exact"] == 50
    assert row["windows"] == 1600


@pytest.mark.parametrize(
    ("path", "index"),
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
def test_the_fake_answers_as_was_recorded(exchanges, path, index):
    fake = answer(DEFAULT, f"/api/v1/{path}", {"trialIds": "70"})
    assert_recorded(fake, exchanges[index]["response"], path)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--experiment 9", "--experiment 9: the master has none; see det e list"),
        ("--workspace sqaud", "--workspace, --project: the master has no experiment there"),
        ("--experiment 7 --user bob", "wants a login"),  # not with the token of the environment
        ("--since 2026-11-20 --until 2026-11-19", "--since 2026-11-20 00:00:00+00:00: not before"),
        ("--since yesterday", "--since: 'yesterday' is not as 2026-11-20 or"),
        ("--since now", "'now' is not as 2026-11-20"),
        ("--experiment 7 --price-pool p9=p3.2xlarge", "the master has no such pool"),
        (f"--experiment 7 --price-pool {SPOT}=p3.2xlarg", "did you mean 'p3.2xlarge'?"),
    ],
)
def test_what_a_master_lacks_is_one_line(refused, words, line):
    with FakeRecords() as master:
        assert line in refused("cost", *words.split(), "--master", master.url)


def refuse(response, refused):
    """Return the line about a server that answers so after the login."""

    def respond(request):
        return {} if request.path.endswith("/me") else response

    with AnswerServer(respond) as master:
        return refused("cost", "--experiment", "7", "--master", master.url)


DEEP = b'{"experiment": ' + b"[" * 100_000


@pytest.mark.parametrize(
    "response",
    [
        (302, b"", {"Location": "/login"}),
        b"<html>Please log in</html>",
        b"null",
        b"[]",
        b"{}",
        DEEP,
        (500, b"<html>"),
        (429, {"error": {"code": 8, "error": "too many requests"}}),
        {"experiment": "seven"},
    ],
)
def test_what_is_no_master_is_one_line(refused, response):
    assert "cannot be read (" in refuse(response, refused)


class OddRecords(FakeRecords):
    """Its answers at one path have one value under a key; text in place of an answer."""

    def __init__(self, path, key, value):
        self.path, self.key, self.value = path, key, value
        super().__init__()

    def respond(self, request):
        content = super().respond(request)
        if not request.path.endswith(self.path):
            return content
        if not self.key:
            return self.value
        nodes = [content]
        for node in nodes:
            if isinstance(node, dict):
                if self.key in node:
                    node[self.key] = self.value
                nodes += node.values()
            elif isinstance(node, list):
                nodes += node
        return content


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        ("allocations/7.task.1", "exitReason", 5),
        ("experiments/8", "slots_per_trial", {"a": 1}),
        ("experiments/8", "searcher", ["x"]),
        ("experiments/8", "name", [[1]]),
        ("resource-pools", "region", float("nan")),
        ("resource-pools", "instanceType", {}),
        ("raw", "slots", "x"),
        ("allocations-csv", "", b"null"),
        ("allocations-csv", "", b""),
        ("acceleratorData", "", (502, b"<html>")),
        ("allocations/7.task.1", "", (500, {"error": {"code": 2, "error": "no database"}})),
    ],
)
def test_a_value_of_another_type_is_one_line(refused, path, key, value):
    """The client's bindings take any, and a bill would be made of it."""
    with OddRecords(path, key, value) as master:
        line = refused("cost", "--experiment", "7", "8", *UNTIL, "--master", master.url)
    assert "cannot be read (" in line


@pytest.mark.parametrize("status", [403, 404])
def test_what_a_user_may_not_see_is_no_machine(report, status):
    answer = status, {"error": {"code": 5, "error": "not found"}}
    with OddRecords("acceleratorData", "", answer) as master:
        bill = report("cost", "--experiment", "7", "8", *UNTIL, "--master", master.url)
    assert {row["name"] for row in bill["rows"]} == {"albert-squad"}
