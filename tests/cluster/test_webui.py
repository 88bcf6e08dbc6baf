"""What the WebUI is given of a run, from the exchanges that a master receives: charts, epochs,
the lines of the log with their levels, the resolved config."""

import json
import re

import pytest
import torch

from tests.cluster.conftest import LAUNCHED, steps_of

# As ship_logs.py of 0.38.1 reads a line: the rank first, where there is one, then the level.
RANK = re.compile(r" ?\[rank=[0-9]+\] ?(.*)")
LEVEL = re.compile(r" ?(DEBUG|INFO|WARNING|ERROR|CRITICAL): ?(.*)")


def ours(stderr):
    """The lines of the entry point: what follows the last line that the hook's shell traced."""
    lines = stderr.splitlines()
    last_traced = max(n for n, line in enumerate(lines) if line.startswith("+"))
    return lines[last_traced + 1 :]


def test_the_scores_and_the_resolved_config_of_a_run(ran):
    folder = ran.trial.storage / ran.master.checkpoints[-1].uuid
    scores = json.loads((folder / "scores.json").read_text())
    last = ran.master.reports("validation")[-1]["metrics"]
    assert {"total", "HasAns_total", "NoAns_f1", "best_f1_thresh"} <= scores.keys()
    for name in scores.keys() & last.keys():
        assert scores[name] == last[name]
    page = (folder / "report.html").read_text()
    assert f"{scores['exact']:.1f} %" in page

    metadata = ran.master.metadata
    resolved = metadata["resolved"]
    assert resolved["seed"] == 1234
    assert resolved["peak_learning_rate"] == 1e-3 * 8 / 48
    assert resolved["steps"] == 60
    assert resolved["warmup_steps"] == 6
    assert resolved["precision"] == "float32"
    assert metadata["hyperparameters"]["weight_decay"] == 0.0  # a default
    assert metadata["data"]["train"] == "generated"


def test_a_trial_stopped_between_reports_goes_on_to_the_same_bits(ran, branch):
    """Stopped at the first validation, so after step 21; the metadata is set once, at the start."""
    with branch.master(preempt_at=("training", 3)) as master:
        done = branch.run(master)
        stopped = master.checkpoints[-1]
        steps = stopped.metadata["steps_completed"]
        assert 20 < steps < 30  # a busy machine takes some more
        assert master.acknowledged == 1
        assert steps_of(master.checkpoints) == [20, steps]
        assert master.states[-1] == "stopped"
        log = done.stderr
        assert log.count("INFO: asked to stop by the master (a pause, ") == 1
        assert f"INFO: checkpoint at step {steps}: {stopped.uuid}\n" in log
        assert f"INFO: stopped after step {steps} of 60\n" in log

        master.preempt_at = None
        master.preempt.clear()
        reports_before = len(master.metrics)
        done = branch.run(master, checkpoint=stopped.uuid, steps=steps)
    check_resumed_log(ours(done.stderr), master, stopped, steps)
    check_epochs(master)

    later = [r for r in master.metrics[reports_before:] if r["group"] == "training"]
    assert later[-1]["steps"] == 60
    assert [report["steps"] for report in master.reports("validation")] == [20, 40, 60]
    assert len(master.kept) == 1

    # The weights are those of the run that nothing disturbed, and not those of the stop.
    weights = branch.weights(master.checkpoints[-1])
    undisturbed = ran.trial.weights(ran.master.checkpoints[-1])
    at_stop = branch.weights(stopped)
    assert all(torch.equal(weights[name], value) for name, value in undisturbed.items())
    assert not all(torch.equal(at_stop[name], value) for name, value in undisturbed.items())


def check_resumed_log(lines, master, stopped, steps):
    """Check what a run logs that is resumed at `steps` from the checkpoint `stopped`."""
    assert set(levels(lines)) == {"INFO"}
    assert "INFO: loading data and model" in lines
    resumed = f"INFO: resumed at step {steps} of 60 from {stopped.uuid}, on CPU, 1 slot"
    assert lines.count(resumed) == 1
    for words in ("learning rate ", "another trial's weights"):
        assert not [line for line in lines if words in line]
    best = max(master.reports("validation"), key=lambda report: report["metrics"]["f1"])
    assert lines[-1].startswith(f"INFO: best validation (step {best['steps']}):  exact ")


def check_epochs(master):
    """Check that every report has the epochs that its steps of 8 windows are."""
    epochs = [report["metrics"]["epochs"] for report in master.metrics]
    assert epochs == sorted(epochs)
    assert len({value % 1 for value in epochs}) > 4
    windows = 8 * 60 / master.metadata["resolved"]["epochs"]  # of an epoch
    expected = [report["steps"] * 8 / windows for report in master.metrics]
    assert epochs == pytest.approx(expected)


@pytest.mark.parametrize("trial", [{"entrypoint": LAUNCHED}], indirect=True)
@pytest.mark.parametrize("launched", ["a wrong key", "no such file"])
def test_a_mistake_is_an_error_that_the_policies_know(trial, launched, golden_dir):
    """In the config's own sections: one line of the hook, before torchrun is there."""
    if launched == "a wrong key":
        trial.config["hyperparameters"]["optimizer"] = "sgdd"
    else:
        trial.config["data"]["train"] = "/nowhere/train.json"
    with trial.master(slots=(2,)) as master:
        done = trial.run(master, fails=True)

    assert master.metrics == []
    assert master.checkpoints == []
    lines = done.stderr.splitlines()
    errors = [line for line in lines if "train.py: error: " in line]
    assert errors
    assert set(levels(errors)) == {"ERROR"}

    # No other line matches a policy; all policies that match have one action.
    patterns = policy_actions(golden_dir)
    actions = set()
    for pattern, action in patterns.items():
        for line in lines:
            if re.search(pattern, line):
                assert line in errors
                actions.add(action)
    assert actions == {"cancel_retries"}

    if launched == "a wrong key":
        fault = "hyperparameters.optimizer: 'sgdd'; Input should be 'radam' or 'adamw'"
        assert errors == [f"ERROR: train.py: error: {fault}"]
        assert "Traceback" not in done.stderr
        assert lines[-2:] == [*errors, "++ exit 2"]


def policy_actions(golden_dir):
    """Return the actions of all log policies that a real master took, by pattern."""
    answers = json.loads((golden_dir / "determined-answers.json").read_text())
    actions = {}
    for base in answers["bases"].values():
        for policy in base.get("log_policies", ()):
            actions[policy["pattern"]] = policy["action"]
    return actions


def levels(lines):
    """Return the level of each line, None if it has none."""
    names = []
    for line in lines:
        rank = RANK.fullmatch(line)
        level = LEVEL.fullmatch(rank[1] if rank else line)
        names.append(level[1] if level else None)
    return names
