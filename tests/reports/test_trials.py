"""`runs` of a master: trials of experiments, workspaces and projects, beside what they cost."""

import re
import sys

import pytest

from reports.__main__ import main
from tests.conftest import ROOT
from tests.fakes.records import ON_DEMAND, Cluster, FakeRecords, Held, Kept, Ran
from tests.reports.conftest import UNTIL
from tests.reports.test_cost import Terminal

HOUR = 24.48  # of a p3.16xlarge
SEARCH = {
    "entrypoint": "python3 train.py",
    "searcher": {"metric": "f1", "smaller_is_better": False},
}
PERPLEXITY = {**SEARCH, "searcher": {"metric": "loss", "smaller_is_better": True}}


def trial(name: str, times: tuple[str, str], scores: dict[str, float] | None, scale: float) -> Kept:
    """A trial of 100 steps with a machine of its own, whose speed is 50 windows per second."""
    held = Held(f"{name}.0", *times, [f"i-{name}"], pool=ON_DEMAND)
    hparams = {"lr_scale": scale, "max_steps": 100, "global_batch_size": 32}
    reports = [(times[1], 100, 50.0)]
    return Kept([held], [], reports, "COMPLETED", scores, steps=100, hparams=hparams)


def lives(*times: tuple[str, str, str]) -> list[tuple[str, str, str]]:
    return [(f"i-{name}", start, end) for name, start, end in times]


# A search on two machines that are idle for 10 minutes each, and an experiment of another metric.
WORST = trial("9.a", ("12:00", "12:30"), {"f1": 70.0, "exact": 60.0}, 0.5)
BEST = trial("9.b", ("12:00", "13:00"), {"f1": 90.0, "exact": 80.0}, 2.0)
NONE = trial("9.c", ("12:00", "12:30"), None, 1.0)
SMALL = trial("5.a", ("12:00", "13:00"), {"loss": 2.0}, 1.0)
LARGE = trial("6.a", ("12:00", "13:00"), {"loss": 3.0}, 1.0)
CLUSTER = Cluster(
    ran={
        5: Ran([SMALL], name="small", config=PERPLEXITY),
        6: Ran([LARGE], name="large", config=PERPLEXITY),
        9: Ran([WORST, BEST, NONE], name="search", config=SEARCH),
    },
    instances=lives(
        ("9.a", "12:00", "12:40"),
        ("9.b", "12:00", "13:10"),
        ("9.c", "12:00", "12:30"),
        ("5.a", "12:00", "13:00"),
        ("6.a", "12:00", "13:00"),
    ),
    projects={
        ("Uncategorized", "Uncategorized"): [],
        ("squad", "search"): [9],
        ("text", "search"): [6],
        ("text", "old"): [5],
    },
)


def test_trials_of_a_search_are_best_first_beside_their_cost(bill):
    """The dollars of its trials, idle time of their machines included, are those of its bill."""
    table = bill(CLUSTER, "--experiment", "9", command="runs")
    rows = table["tables"][0]["rows"]
    assert [row["f1"] for row in rows] == [90.0, 70.0, None]
    assert [row["run"] for row in rows] == [
        f"trial 9{number} of experiment 9, search" for number in (1, 0, 2)
    ]
    best = rows[0]
    expected = {"state": "completed", "steps": 100, "of": 100, "best at": 100, "exact": 80.0}
    expected |= {"starts": 1, "windows/s": 50.0, "worked h": 1.0, "hyperparameters.lr_scale": 2.0}
    assert expected.items() <= best.items()
    assert {key for key in best if "." in key} == {"hyperparameters.lr_scale"}
    # Two hours are held and 20 minutes idle, which its trials share by held hours.
    costs = [row["cost"] / HOUR for row in rows]
    assert costs == pytest.approx([1 + 1 / 6, 0.5 + 1 / 12, 0.5 + 1 / 12])
    (whole,) = bill(CLUSTER, "--experiment", "9")["tables"][0]["rows"]
    assert sum(costs) * HOUR == pytest.approx(whole["cost"])
    assert table["title"].startswith("Runs, best first: prices of us-east-1, 2026-05-24, ")


def test_less_is_better_where_the_searcher_says_so(bill):
    """Each metric apart, as with folders."""
    table = bill(CLUSTER, "--experiment", "6", "9", "5", command="runs")
    rows = table["tables"][0]["rows"]
    names = [row["run"].partition(", ")[2] for row in rows]
    assert names == ["search"] * 3 + ["small", "large"]
    assert [row["loss"] for row in rows[3:]] == [2.0, 3.0]
    assert rows[3]["run"] == "experiment 5, small"


def test_without_a_price_there_are_hours(bill):
    own = CLUSTER._replace(pool={"details": {}, "instanceType": ""})
    rows = bill(own, "--experiment", "9", command="runs")["tables"][0]["rows"]
    assert "cost" not in rows[0] and rows[0]["worked h"] == 1.0
    priced = ["--price-pool", f"{ON_DEMAND}=p3.16xlarge"]
    rows = bill(own, "--experiment", "9", *priced, command="runs")["tables"][0]["rows"]
    assert rows[0]["cost"] == pytest.approx(HOUR)


@pytest.mark.parametrize(
    "words, names",
    [
        ("--workspace squad", {"search"}),
        ("--workspace text", {"small", "large"}),
        ("--project search", {"search", "large"}),
        ("--project search --workspace squad", {"search"}),
        ("--project search --experiment 5 --workspace squad", {"search", "small"}),
    ],
)
def test_a_workspace_and_a_project_are_their_experiments(bill, words, names):
    for command in ("runs", "cost"):
        rows = bill(CLUSTER, *words.split(), command=command)["tables"][0]["rows"]
        shown = [re.sub(r"^.*, | \*$", "", row["run"]) for row in rows]
        assert {*shown} == names


@pytest.mark.parametrize(
    "words, said",
    [
        (
            "--workspace sqaud",
            "--workspace sqaud: the master has none; it has Uncategorized, squad",
        ),
        ("--project new", "--project new: the master has none; it has Uncategorized, old, search"),
        ("--project old --workspace squad", "--project old: the master has none; it has search"),
        ("--workspace Uncategorized", "runs: nothing to report"),
        ("--experiment 7", "--experiment 7: the master has none"),
    ],
)
def test_what_is_not_there_is_one_line(refused, words, said):
    with FakeRecords(CLUSTER) as master:
        assert said in refused("runs", *words.split(), "--master", master.url)


def test_a_terminal_shows_what_the_page_has(monkeypatch):
    """The table of 80 columns in README.md is what is printed."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", Terminal())
    with FakeRecords(CLUSTER) as master:
        assert main(["runs", "--workspace", "squad", "--master", master.url, *UNTIL]) == 0
    text = re.sub(r"\x1b\[\d+m", "", sys.stdout.getvalue())
    lines = [line.rstrip() for line in text.splitlines()]
    table = lines[lines.index("Runs") + 2 : lines.index("", lines.index("Runs") + 2)]
    page = (ROOT / "reports" / "README.md").read_text(encoding="utf-8")
    assert len(table) == 9 and "```\n" + "\n".join(table) + "\n```" in page
