"""`runs`: folders and trials, best first, and the keys in which they differ."""

import json
import re
from argparse import Namespace

import pytest

from reports.__main__ import main
from reports.bill import bill
from reports.forms import write
from reports.records import Owner, Records, Trial
from reports.runs import trial_runs
from tests.conftest import ROOT
from tests.fakes.records import ON_DEMAND, Cluster, FakeRecords, Held, Ran, Tried
from tests.reports.conftest import SPEED, write_run
from tests.reports.test_bill import NOW, POOLS, PRICES, allocation, moment

HOUR = 24.48  # dollars of a p3.16xlarge


@pytest.fixture
def array(tmp_path):
    """A job array's runs: of f1, of loss (one without a score), and one that cannot be read."""
    runs = tmp_path / "runs"
    write_run(runs / "job_0", {"steps": 10, "f1": 70.5, "exact": 60.0}, lr_scale=0.5)
    write_run(runs / "job_1", {"steps": 20, "f1": 90.25}, lr_scale=1, seed=3)
    write_run(runs / "job_2", {"steps": 5, "loss": 4.5}, metric="loss", lr_scale=0.5)
    write_run(runs / "job_3", {"steps": 5, "loss": 2.25}, metric="loss", lr_scale=0.5)
    write_run(runs / "job_4", metric="loss", lr_scale=0.5)
    write_run(runs / "job_5", [1], lr_scale=0.5)
    return runs


def test_a_name_is_printed_as_it_is(capsys):
    args = Namespace(html=None, form="")
    write(args, "[b]Runs[/b] :rocket:", [{"name": "[red]a[/red] :smile:"}], notes=[])
    printed = capsys.readouterr().out
    assert "[b]Runs[/b] :rocket:" in printed
    assert "[red]a[/red] :smile:" in printed


def test_the_best_run_is_first(report, array):
    """By each run's own metric; beside it the keys in which the runs differ, and no others."""
    answer = report("runs", str(array))

    rows = answer["rows"]
    assert [row["run"] for row in rows] == [f"{array}/job_{n}" for n in (1, 0, 3, 2, 4)]
    best = rows[0]
    assert {key for key in best if "." in key} == {
        "hyperparameters.lr_scale",
        "hyperparameters.seed",
    }
    expected = {
        "f1": 90.25,
        "exact": None,
        "loss": None,
        "steps": 20,
        "best at": 20,
        "starts": 1,
        "windows/s": 8.0,
        "hyperparameters.lr_scale": 1,
        "hyperparameters.seed": 3,
    }
    assert expected.items() <= best.items()
    assert best["hours"] == pytest.approx(1 / 60)
    (note,) = answer["notes"]
    assert note.startswith(f"{array}/job_5: no run in it (AttributeError: ")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("metrics.json", ""),
        ("metrics.json", "[]"),
        ("metrics.json", "[" * 100_000),
        ("metrics.json", '{"throughput": {"examples_per_second": "8"}}'),
        ("metrics.json", json.dumps({"throughput": {**SPEED, "training_windows": -1}})),
        ("metrics.json", json.dumps({"throughput": {**SPEED, "starts": [{"start": "today"}]}})),
        ("config.yaml", "a: ["),
        ("config.yaml", "x"),
        ("config.yaml", "searcher: 7"),
        ("config.yaml", "hyperparameters: {global_batch_size: many}"),
    ],
)
@pytest.mark.parametrize("command", ["runs", "cost", "scaling"])
def test_files_that_are_no_run_are_one_line(refused, array, command, file, text):
    (array / "job_0" / file).write_text(text)
    assert f"{array}/job_0: no run in it (" in refused(command, f"{array}/job_0")


def trial(name, end, scores, scale):
    """A trial of 100 steps with a machine of its own, whose speed is 50 windows per second."""
    held = Held(f"{name}.0", "12:00", end, [f"i-{name}"], pool=ON_DEMAND)
    return Tried(
        held=[held],
        reports=[(end, 100, 50.0)],
        scores=scores,
        hparams={"lr_scale": scale, "max_steps": 100, "global_batch_size": 32},
    )


SEARCH = Ran(
    [
        trial("9.a", "12:30", {"f1": 70.0}, 0.5),
        trial("9.b", "13:00", {"f1": 90.0}, 2.0),
        trial("9.c", "12:30", None, 1.0),
    ],
    name="search",
    searcher={"metric": "f1", "smaller_is_better": False},
)
PRINTED = json.loads((ROOT / "tests" / "golden" / "reports.json").read_text())
LIVES = [("i-9.a", "12:00", "12:52"), ("i-9.b", "12:00", "13:10"), ("i-9.c", "12:00", "12:30")]


@pytest.mark.parametrize(("arguments", "lines"), PRINTED.items(), ids=PRINTED)
def test_what_is_printed_of_a_search(arguments, lines, capsys):
    with FakeRecords(Cluster({9: SEARCH}, instances=LIVES, agents=LIVES)) as master:
        assert main([*arguments.split(), "--master", master.url]) == 0
    text = re.sub(" until .*", "", capsys.readouterr().out)  # now
    assert text.strip().splitlines() == lines


def test_trials_of_a_search_are_best_first_beside_their_cost(report):
    """Each pays what is idle of its machine: their dollars add up to the bill."""
    cluster = Cluster({9: SEARCH}, instances=LIVES, agents=LIVES)
    rows = report("runs", "--experiment", "9", of=cluster)["rows"]
    assert [(row["experiment"], row["trial"]) for row in rows] == [(9, 91), (9, 90), (9, 92)]
    assert [row["f1"] for row in rows] == [90.0, 70.0, None]
    best = rows[0]
    expected = {"state": "completed", "steps": 100, "of": 100, "hyperparameters.lr_scale": 2.0}
    assert expected.items() <= best.items()
    costs = [row["dollars"] / HOUR for row in rows]
    assert costs == pytest.approx([1 + 1 / 6, 0.5 + 22 / 60, 0.5])
    (whole,) = report("cost", "--experiment", "9", of=cluster)["rows"]
    assert sum(costs) * HOUR == pytest.approx(whole["dollars"])
    assert (whole["f1"], whole["windows"]) == (90.0, 300 * 32)
    assert whole["$/1,000 windows"] == pytest.approx(whole["dollars"] / 9.6)

    # Trials of one size are one point of a series.
    point, *_ = report("scaling", "--experiment", "9", of=cluster)["rows"]
    assert (point["N"], point["runs"], point["windows/s"]) == (8, 3, 50.0)


def test_a_masters_first_trial_is_a_run_and_another_task_is_none():
    trials = []
    for owner in (Owner("e", experiment=1, trial=1), Owner("notebook")):
        trials.append(Trial(owner, "completed", [allocation(0)._replace(owner=owner)]))
    records = Records(trials, POOLS, until=moment(NOW), whole=True)
    (run,) = trial_runs(records, bill(records, PRICES))
    assert (run["trial"], run["hours"], run["work"]) == (1, 0.5, 4.0)
