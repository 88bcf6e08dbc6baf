"""What the WebUI is given of a run, from the exchanges that a master receives: charts, epochs,
the lines of the log with their levels, the resolved config."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.conftest import LAUNCHED, finished
from tests.cluster.container import Trial
from tests.fakes.master import FakeMaster

TRAINING = {"loss", "learning_rate", "grad_norm", "examples_per_second", "epochs"}
VALIDATION = {"exact", "f1", "HasAns_f1", "NoAns_exact", "best_f1", "loss", "epochs"}
# As ship_logs.py of 0.38.1 reads a line: the rank first, where there is one, then the level.
RANK = re.compile(r" ?\[rank=[0-9]+\] ?(.*)")
LEVEL = re.compile(r" ?(DEBUG|INFO|WARNING|ERROR|CRITICAL): ?(.*)")


def charts(master: FakeMaster) -> set[str]:
    """The WebUI draws one for each name, but for the x axis."""
    return {name for report in master.metrics for name in report["metrics"]} - {"batches"}


def ours(stderr: str) -> list[str]:
    """The lines of the entry point: what follows the last line that the hook's shell traced."""
    lines = stderr.splitlines()
    return lines[max(n for n, line in enumerate(lines) if line.startswith("+")) + 1 :]


def levels(lines: list[str]) -> list[str | None]:
    bare = [(RANK.fullmatch(line) or [line, line])[1] for line in lines]
    return [found and found[1] for found in map(LEVEL.fullmatch, bare)]


def epochs(master: FakeMaster) -> list[tuple[int, float]]:
    return [(report["steps"], report["metrics"]["epochs"]) for report in master.metrics]


@pytest.mark.parametrize("metric", ["f1", "best_exact"])
def test_few_charts_and_the_searchers_among_them(trial: Trial, metric: str) -> None:
    trial.config["searcher"]["metric"] = metric
    with trial.master() as master:
        done = trial.run(master)
        finished(done, master)
    for report in master.reports("training"):
        assert report["metrics"].keys() == TRAINING | {"batches"}
    for report in master.reports("validation"):
        assert report["metrics"].keys() == VALIDATION | {metric, "batches"}
    assert metric in charts(master) and len(charts(master)) <= 11
    assert all("] determined: " in line for line in done.stdout.splitlines())  # the launcher's
    assert set(levels(ours(done.stderr))) == {"INFO"}
    scores = json.loads((trial.storage / master.checkpoints[-1].uuid / "scores.json").read_text())
    last = master.reports("validation")[-1]["metrics"]
    assert {"total", "HasAns_total", "NoAns_f1", "best_f1_thresh"} <= scores.keys()
    assert all(scores[name] == last[name] for name in scores.keys() & last.keys())


@pytest.mark.parametrize("trial", [{"max_steps": 3, "validation_period": 5}], indirect=True)
def test_the_best_validation_is_logged_when_its_report_is_slow(trial: Trial) -> None:
    """Determined's thread reports it to the master, on a real one after the request for the best
    validation: the line was missing."""
    with trial.master() as master:
        master.slow = 2.0
        done = trial.run(master)
        finished(done, master)
    assert [report["steps"] for report in master.reports("validation")] == [3]
    assert ours(done.stderr)[-1].startswith("INFO: best validation (step 3):  exact ")


FAST = {"reporting_period": 10, "checkpoint_period": 20, "validation_period": 20, "max_steps": 60}


@pytest.mark.parametrize("trial", [FAST], indirect=True)
def test_epochs_and_reports_over_a_resume(trial: Trial) -> None:
    """Stopped at the first validation, so after step 21; the metadata is set once, at the start."""
    with trial.master(preempt_at=("training", 3)) as master:
        done = trial.run(master)
        finished(done, master)
        stopped = master.checkpoints[-1]
        steps = stopped.metadata["steps_completed"]
        assert 20 < steps < 30 and master.acknowledged == 1
        shown = done.stderr
        assert shown.count("INFO: asked to stop by the master (a pause, ") == 1
        assert f"INFO: checkpoint at step {steps}: {stopped.uuid}\n" in shown
        assert f"INFO: stopped after step {steps} of 60\n" in shown
        resolved = master.metadata["resolved"]
        assert resolved["seed"] == 1234 and resolved["peak_learning_rate"] == 1e-3 * 8 / 48
        assert resolved["steps"] == 60 and resolved["warmup_steps"] == 6
        assert resolved["precision"] == "float32"
        assert master.metadata["hyperparameters"]["weight_decay"] == 0.0  # a default
        assert master.metadata["data"]["train"] == "generated"

        master.preempt_at = None
        master.preempt.clear()
        before = len(master.metrics)
        done = trial.run(master, checkpoint=stopped.uuid, steps=steps)
        finished(done, master)
    assert len(master.kept) == 1
    lines = ours(done.stderr)
    assert set(levels(lines)) == {"INFO"} and "INFO: loading data and model" in lines
    resumed = f"INFO: resumed at step {steps} of 60 from {stopped.uuid}, on CPU, 1 slot(s)"
    assert lines.count(resumed) == 1 and not [x for x in lines if "learning rate " in x]
    best = max(master.reports("validation"), key=lambda report: report["metrics"]["f1"])
    assert lines[-1].startswith(f"INFO: best validation (step {best['steps']}):  exact ")

    found = epochs(master)
    assert [value for _, value in found] == sorted(value for _, value in found)
    windows = 8 * 60 / resolved["epochs"]
    assert all(value == pytest.approx(step * 8 / windows) for step, value in found)
    assert len({value % 1 for _, value in found}) > 4
    # No report of the first few steps of a start: they say how it began.
    after = [report["steps"] for report in master.metrics[before:] if report["group"] == "training"]
    assert after[0] - steps >= 5 and after[-1] == 60


def test_a_continued_experiment_says_its_new_values(trial: Trial) -> None:
    with trial.master() as master:
        finished(trial.run(master), master)
        last = master.checkpoints[-1]
        master.metadata["notes"] = "of somebody else"
        trial.config["hyperparameters"]["max_steps"] = 16
        finished(trial.run(master, checkpoint=last.uuid, steps=12), master)
    assert [kept["resolved"]["steps"] for kept in master.kept] == [12, 16]
    assert master.metadata["notes"] == "of somebody else"


@pytest.fixture
def policies(shared: Path) -> list[dict[str, str]]:
    """Those of all bases that a real master took."""
    answers = shared / "golden" / "determined-answers.json"
    bases = json.loads(answers.read_text())["bases"].values()
    return [policy for base in bases for policy in base.get("log_policies") or ()]


@pytest.mark.parametrize("trial", [{"entrypoint": LAUNCHED}], indirect=True)
@pytest.mark.parametrize("launched", ["a wrong key", "no such file"])
def test_a_mistake_is_an_error_that_the_policies_know(
    trial: Trial, launched: str, policies: list[dict[str, str]]
) -> None:
    """In the config's own sections: one line of the hook, before torchrun is there."""
    if launched == "a wrong key":
        trial.config["hyperparameters"]["optimizer"] = "sgdd"
    else:
        trial.config["data"]["train"] = "/nowhere/train.json"
    with trial.master(slots=(2,)) as master:
        done = trial.run(master)
    assert done.returncode not in (0, None) and master.metrics == []
    lines = done.stderr.splitlines()
    said = [line for line in lines if "train.py: error: " in line]
    assert said and set(levels(said)) == {"ERROR"}
    known = {p["pattern"]: p["action"] for p in policies}
    assert {known[p] for p in known for line in said if re.search(p, line)} == {"cancel_retries"}
    others = [line for line in lines if line not in said]
    assert not [line for line in others for p in known if re.search(p, line)]
    if launched == "a wrong key":
        fault = "hyperparameters.optimizer: 'sgdd' is not one of radam, adamw"
        assert said == [f"ERROR: train.py: error: {fault}"]
        assert "Traceback" not in done.stderr and lines[-2:] == [said[0], "++ exit 2"]


def test_the_hook_prints_no_config(trial: Trial) -> None:
    """Its commands are traced, and the config has the patterns of the log policies in it."""
    trial.config["log_policies"] = yaml.safe_load("[{name: a, pattern: a text of a policy}]")
    trial.config["hyperparameters"]["max_steps"] = 1
    with trial.master() as master:
        done = trial.run(master)
        finished(done, master)
    traced = [line for line in done.stderr.splitlines() if line.startswith("+")]
    assert any(line.endswith("workloads.py") for line in traced)
    assert not any("a text of a policy" in line for line in traced)


def test_a_master_that_keeps_no_metadata_is_told_of_once(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FakeMaster, metadata: dict[str, Any]) -> tuple[int, Any]:
        return 500, {"message": "no metadata here"}

    monkeypatch.setattr(FakeMaster, "keep_metadata", refuse)
    with trial.master() as master:
        done = trial.run(master)
        finished(done, master)
    assert done.stderr.count("WARNING: the master does not keep the resolved config (") == 1
    assert "INFO: hyperparameters: {" in done.stderr
