"""What the WebUI is given of a run, from the exchanges that a master receives: charts, epochs,
the lines of the log with their levels, the resolved config."""

import json
import re

import pytest
import torch

from tests.cluster.conftest import LAUNCHED, steps_of
from tests.fakes.master import FakeMaster

TRAINING = {"loss", "learning_rate_1e6", "grad_norm", "examples_per_second", "epochs"}
VALIDATION = {"exact", "f1", "HasAns_f1", "NoAns_exact", "best_f1", "loss", "epochs"}
# As ship_logs.py of 0.38.1 reads a line: the rank first, where there is one, then the level.
RANK = re.compile(r" ?\[rank=[0-9]+\] ?(.*)")
LEVEL = re.compile(r" ?(DEBUG|INFO|WARNING|ERROR|CRITICAL): ?(.*)")


def ours(stderr: str) -> list[str]:
    """The lines of the entry point: what follows the last line that the hook's shell traced."""
    lines = stderr.splitlines()
    return lines[max(n for n, line in enumerate(lines) if line.startswith("+")) + 1 :]


def levels(lines: list[str]) -> list[str | None]:
    bare = [(RANK.fullmatch(line) or [line, line])[1] for line in lines]
    return [found and found[1] for found in map(LEVEL.fullmatch, bare)]


def test_few_charts_and_what_a_run_says(ran):
    for report in ran.master.reports("training"):
        assert report["metrics"].keys() == TRAINING | {"batches"}
    for report in ran.master.reports("validation"):
        assert report["metrics"].keys() == VALIDATION | {"batches"}
    assert ran.master.progress[-1] == 1.0 and ran.master.acknowledged == 0
    assert set(ran.master.states) == {"loading", "training", "validating", "checkpointing", "done"}
    assert (ran.master.states[0], ran.master.states[-1]) == ("loading", "done")
    assert not [line for line in ours(ran.done.stderr) if len(line) > 100 and "batch" not in line]
    assert all("] determined: " in line for line in ran.done.stdout.splitlines())  # the launcher's
    assert set(levels(ours(ran.done.stderr))) == {"INFO"}
    folder = ran.trial.storage / ran.master.checkpoints[-1].uuid
    scores = json.loads((folder / "scores.json").read_text())
    last = ran.master.reports("validation")[-1]["metrics"]
    assert {"total", "HasAns_total", "NoAns_f1", "best_f1_thresh"} <= scores.keys()
    assert all(scores[name] == last[name] for name in scores.keys() & last.keys())
    resolved = ran.master.metadata["resolved"]
    assert resolved["seed"] == 1234 and resolved["peak_learning_rate"] == 1e-3 * 8 / 48
    assert resolved["steps"] == 60 and resolved["warmup_steps"] == 6
    assert resolved["precision"] == "float32"
    assert ran.master.metadata["hyperparameters"]["weight_decay"] == 0.0  # a default
    assert ran.master.metadata["data"]["train"] == "generated"
    # The hook's commands are traced, and the config has the patterns of the log policies in it.
    traced = [line for line in ran.done.stderr.splitlines() if line.startswith("+")]
    assert "+ source startup-hook.sh" in traced
    assert any(line.endswith("workloads.py") for line in traced)
    assert not any("a text of a policy" in line for line in traced)


def test_a_trial_stopped_between_reports_goes_on_to_the_same_bits(ran, branch):
    """Stopped at the first validation, so after step 21; the metadata is set once, at the start."""
    with branch.master(preempt_at=("training", 3)) as master:
        done = branch.run(master)
        stopped = master.checkpoints[-1]
        steps = stopped.metadata["steps_completed"]
        assert 20 < steps < 30 and master.acknowledged == 1  # a busy machine takes some more
        assert steps_of(master.checkpoints) == [20, steps] and master.states[-1] == "stopped"
        shown = done.stderr
        assert shown.count("INFO: asked to stop by the master (a pause, ") == 1
        assert f"INFO: checkpoint at step {steps}: {stopped.uuid}\n" in shown
        assert f"INFO: stopped after step {steps} of 60\n" in shown
        master.preempt_at = None
        master.preempt.clear()
        before = len(master.metrics)
        done = branch.run(master, checkpoint=stopped.uuid, steps=steps)
    assert len(master.kept) == 1
    lines = ours(done.stderr)
    assert set(levels(lines)) == {"INFO"} and "INFO: loading data and model" in lines
    resumed = f"INFO: resumed at step {steps} of 60 from {stopped.uuid}, on CPU, 1 slot(s)"
    assert lines.count(resumed) == 1
    assert not [x for x in lines if "learning rate " in x or "another trial's weights" in x]
    best = max(master.reports("validation"), key=lambda report: report["metrics"]["f1"])
    assert lines[-1].startswith(f"INFO: best validation (step {best['steps']}):  exact ")

    found = [report["metrics"]["epochs"] for report in master.metrics]
    assert found == sorted(found) and len({value % 1 for value in found}) > 4
    windows = 8 * 60 / master.metadata["resolved"]["epochs"]
    assert found == pytest.approx([report["steps"] * 8 / windows for report in master.metrics])
    # No report of the first few steps of a start: they say how it began.
    after = [report["steps"] for report in master.metrics[before:] if report["group"] == "training"]
    assert after[0] - steps >= 5 and after[-1] == 60
    assert [r["steps"] for r in master.reports("validation")] == [20, 40, 60]
    weights = branch.weights(master.checkpoints[-1])
    whole = ran.trial.weights(ran.master.checkpoints[-1])
    assert all(torch.equal(weights[name], value) for name, value in whole.items())
    assert not all(torch.equal(branch.weights(stopped)[name], whole[name]) for name in whole)


def test_a_continued_experiment_says_its_new_values(ran, branch):
    branch.config["hyperparameters"]["max_steps"] = 64
    with branch.master() as master:
        master.metadata = {**ran.master.metadata, "notes": "of somebody else"}
        last = ran.master.checkpoints[-1]
        branch.run(master, checkpoint=last.uuid, steps=60)
    assert [kept["resolved"]["steps"] for kept in (*ran.master.kept, *master.kept)] == [60, 64]
    assert master.metadata["notes"] == "of somebody else"


@pytest.mark.parametrize("trial", [{"max_steps": 3, "validation_period": 5}], indirect=True)
def test_a_master_that_is_slow_and_keeps_no_metadata(trial, monkeypatch):
    """Determined's thread reports the validation to the master, on a real one after the request for
    the best validation: the line was missing."""
    refused = 500, {"message": "no metadata here"}
    monkeypatch.setattr(FakeMaster, "keep_metadata", lambda *_: refused)
    trial.config["searcher"]["metric"] = "best_exact"
    with trial.master() as master:
        master.slow = 1.0
        done = trial.run(master)
    (validation,) = master.reports("validation")
    assert validation["steps"] == 3
    assert validation["metrics"].keys() == VALIDATION | {"best_exact", "batches"}
    assert ours(done.stderr)[-1].startswith("INFO: best validation (step 3):  exact ")
    assert done.stderr.count("WARNING: the master does not keep the resolved config (") == 1
    assert '"hyperparameters": {' in done.stderr  # in that line


@pytest.mark.parametrize("trial", [{"entrypoint": LAUNCHED}], indirect=True)
@pytest.mark.parametrize("launched", ["a wrong key", "no such file"])
def test_a_mistake_is_an_error_that_the_policies_know(trial, launched, shared):
    """In the config's own sections: one line of the hook, before torchrun is there."""
    if launched == "a wrong key":
        trial.config["hyperparameters"]["optimizer"] = "sgdd"
    else:
        trial.config["data"]["train"] = "/nowhere/train.json"
    with trial.master(slots=(2,)) as master:
        done = trial.run(master, fails=True)
    assert master.metrics == master.checkpoints == []
    lines = done.stderr.splitlines()
    said = [line for line in lines if "train.py: error: " in line]
    assert said and set(levels(said)) == {"ERROR"}
    answers = json.loads((shared / "golden" / "determined-answers.json").read_text())
    taken = [base.get("log_policies", ()) for base in answers["bases"].values()]  # by a real master
    known = {policy["pattern"]: policy["action"] for policies in taken for policy in policies}
    assert {known[p] for p in known for line in said if re.search(p, line)} == {"cancel_retries"}
    others = [line for line in lines if line not in said]
    assert not [line for line in others for p in known if re.search(p, line)]
    if launched == "a wrong key":
        fault = "hyperparameters.optimizer: 'sgdd' is not one of radam, adamw"
        assert said == [f"ERROR: train.py: error: {fault}"]
        assert "Traceback" not in done.stderr and lines[-2:] == [said[0], "++ exit 2"]
