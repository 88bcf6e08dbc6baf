"""The package as a task of a Determined cluster: uploaded, unpacked, prepared, launched, stopped.

Everything but the master is Determined's own: the packing of the context, the preparation of the
container (`determined.exec`), the launcher, the trainer.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from determined.common import api, v1file_utils

from detalbert.settings.experiment import masked
from tests.cluster.conftest import LAUNCHED, finished, steps_of, uploaded
from tests.cluster.container import Trial
from tests.conftest import ROOT
from tests.fakes import secrets
from tests.fakes.hub import put
from tests.fakes.master import FakeMaster
from tests.fakes.metadata import MetadataServer
from tests.fakes.runs import wait_for


def test_the_upload_holds_what_a_task_needs_and_no_more() -> None:
    paths = {file.path for file in uploaded()}
    lines = (ROOT / ".detignore").read_text().splitlines()
    left = {line[1:] for line in lines if line.startswith("/")}
    needed = {path.name for path in ROOT.glob("*.py")} - left
    assert {"train.py", "model_def.py", "data.py", "workloads.py"} <= needed <= paths
    assert "lm/inference/" in left and not left & paths
    assert all((ROOT / name).exists() for name in left if name.endswith(".py") and "*" not in name)
    package = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("detalbert/**/*.py")}
    assert {path for path in paths if path.startswith("detalbert/")} & package == package - left
    used = {"predict.py", "requirements.txt", "constraints.txt", "startup-hook.sh", "LICENSE"}
    assert used | {"pretrain/trial.py", "lm/trial.py"} <= paths
    assert not [path for path in paths if path.startswith(("lm/inference", "pretrain/score"))]
    model = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    assert {f"embedded/albert-tiny/{name}" for name in model} <= paths
    out = ("tests", "cluster", "runs", ".cache", ".git", ".venv", "docs", "reports", "data")
    out += ("benchmarks", "configs")
    assert not [path for path in paths if path.split("/")[0] in out or path.endswith(".md")]


def test_the_upload_is_small() -> None:
    sizes = {file.path: v1file_utils.v1File_size(file) for file in uploaded()}
    for path, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"{size:9,}  {path}")
    assert 100_000 < sum(sizes.values()) < 2**21


def test_a_trial_runs_from_what_was_uploaded(trial: Trial, real_python: str) -> None:
    trial.python = real_python
    with trial.master() as master:
        done = trial.run(master)
        finished(done, master)
    assert "+ source startup-hook.sh" in done.stderr
    assert [report["steps"] for report in master.reports("training")][-1] == 12
    validations = master.reports("validation")
    assert [report["steps"] for report in validations] == [6, 12]
    assert {"exact", "f1", "loss", "best_f1"} <= set(validations[0]["metrics"])
    assert steps_of(master.checkpoints)[-1] == 12 and 4 in steps_of(master.checkpoints)
    assert master.progress[-1] == 1.0
    assert set(master.states) >= {"training", "validating", "checkpointing"}
    assert master.acknowledged == 0
    saved = trial.storage / master.checkpoints[-1].uuid
    assert (saved / "code" / "train.py").is_file()
    # DET_TRIAL_SEED, for the config names no `hyperparameters.seed`.
    assert json.loads((saved / "load_data.json").read_text())["hparams"]["seed"] == 1234


FROM_HUB = {"model": "org/tiny@main", "model_config": None, "max_steps": 4, "checkpoint_period": 2}


@pytest.mark.parametrize("trial", [FROM_HUB], indirect=True)
def test_a_restart_reads_the_commits_of_the_first_start_and_no_secret_leaves(
    trial: Trial, real_python: str, tmp_path: Path
) -> None:
    """The branch moves in between: the model's config then has another dropout."""
    trial.python = real_python  # reads HF_HOME
    trial.config.update(secrets.PLANTED)
    moved, tiny, cache = tmp_path / "moved", ROOT / "embedded" / "albert-tiny", tmp_path / "hf/hub"
    shutil.copytree(tiny, moved)
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**config, "hidden_dropout_prob": 0.5}))
    commit, home = put(cache, "org/tiny", "main", tiny), {"HF_HOME": str(cache.parent)}
    with trial.master() as master:
        first = trial.run(master, **home)
        finished(first, master)
        half, whole = master.checkpoints[0], trial.weights(master.checkpoints[-1])
        assert master.metadata["commits"] == {"models/org/tiny@main": commit}
        put(cache, "org/tiny", "main", moved)
        second = trial.run(master, checkpoint=half.uuid, steps=2, **home)
        finished(second, master)
    again = trial.weights(master.checkpoints[-1])
    assert steps_of([half, master.checkpoints[-1]]) == [2, 4]
    assert all(torch.equal(again[name], value) for name, value in whole.items())
    assert secrets.found_in([trial.storage]) == set()
    kept = json.loads((trial.storage / half.uuid / "load_data.json").read_text())
    assert kept["experiment_config"]["environment"] == masked(secrets.PLANTED["environment"])
    said = (first.stdout + first.stderr + second.stdout + second.stderr).splitlines()
    ours = [line for line in said if "New trial runner" not in line]  # Determined's own: all of it
    assert "planted-" not in "\n".join([*ours, json.dumps(master.heard)])


def test_preempted_after_a_step_and_resumed_to_the_same_bits(trial: Trial) -> None:
    trial.config["hyperparameters"].update(reporting_period=5000, checkpoint_period=5000)
    with trial.master() as master:
        finished(trial.run(master), master)
        whole = trial.weights(master.checkpoints[-1])

    with trial.master(preempt_at=("training", 2)) as master:  # the second time: after validation
        finished(trial.run(master), master)
        first = master.checkpoints[-1]
        stopped = first.metadata["steps_completed"]
        assert 6 < stopped < 12  # soon after; a busy machine takes a step or two more
        assert steps_of(master.checkpoints) == sorted({6, stopped})  # 6: the best so far
        assert master.acknowledged == 1

        master.preempt_at = None
        master.preempt.clear()
        validated = len(master.reports("validation"))
        finished(trial.run(master, checkpoint=first.uuid, steps=stopped), master)
        assert [r["steps"] for r in master.reports("training")][-1] == 12
        assert [r["steps"] for r in master.reports("validation")[validated:]] == [12]
    last = master.checkpoints[-1]
    assert last.metadata["steps_completed"] == 12
    resumed = trial.weights(last)
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())
    assert not all(torch.equal(trial.weights(first)[name], whole[name]) for name in whole)


def test_a_warm_start_takes_the_weights_alone_and_restarts_as_itself(trial: Trial) -> None:
    trial.config["perform_initial_validation"] = True
    with trial.master() as master:
        finished(trial.run(master), master)
    source, rates = master.checkpoints[-1], learning_rates(master)
    assert source.metadata["steps_completed"] == 12 and min(rates) > 0

    warm = {"DET_TRIAL_ID": "12"}  # Determined gives it the checkpoint of trial 11, and step 0
    with trial.master() as other:
        done = trial.run(other, checkpoint=source.uuid, steps=0, **warm)
        finished(done, other)
        assert done.stderr.count("another trial's weights; optimizer and schedule begin anew") == 1
        before, *_, after = other.reports("validation")
        assert (before["steps"], after["steps"]) == (0, 12)
        assert scores_of(before) == scores_of(master.reports("validation")[-1])
        assert learning_rates(other) == rates
        own = next(c for c in other.checkpoints if c.metadata["steps_completed"] == 8)
        whole = trial.weights(other.checkpoints[-1])
        done = trial.run(other, checkpoint=own.uuid, steps=8, **warm)
        finished(done, other)
        assert "another trial's weights" not in done.stderr
    again = trial.weights(other.checkpoints[-1])
    assert other.checkpoints[-1].metadata["steps_completed"] == 12
    assert all(torch.equal(again[name], value) for name, value in whole.items())


def scores_of(report: dict[str, Any]) -> dict[str, float]:
    counted = ("batches", "epochs")  # by the trainer
    return {name: value for name, value in report["metrics"].items() if name not in counted}


def learning_rates(master: FakeMaster) -> list[float]:
    return [report["metrics"]["learning_rate"] for report in master.reports("training")]


PERIODS = dict.fromkeys(["checkpoint_period", "validation_period", "reporting_period"], 5000)
LONG = {"max_steps": 5000, **PERIODS, "spot_notice": True}


def excluding() -> set[str]:
    """Patterns of log policies that exclude the machine of a notice."""
    configs = [yaml.safe_load(path.read_text()) for path in ROOT.glob("c*/*.yaml")]
    policies = [policy for config in configs for policy in config.get("log_policies") or ()]
    patterns = {policy["pattern"] for policy in policies}
    return {pattern for pattern in patterns if "EC2" in pattern} | {".*EC2 announces: .*"}


@pytest.mark.parametrize("trial", [LONG], indirect=True)
def test_a_spot_notice_is_passed_to_a_master_that_fails_first(trial: Trial) -> None:
    service = MetadataServer()
    service.notice = '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'
    with trial.master() as master:
        master.pending_faults = [500, "cut"]
        done = trial.run(master, AWS_EC2_METADATA_SERVICE_ENDPOINT=service.url)
        finished(done, master)
    service.close()
    assert master.pending == 1 and master.acknowledged == 1 and master.pending_faults == []
    (checkpoint,) = master.checkpoints
    assert 0 < checkpoint.metadata["steps_completed"] < 5000
    lines = (done.stdout + done.stderr).splitlines()
    (notice,) = [line for line in lines if service.notice in line]
    assert all(re.match(pattern, notice) for pattern in excluding())
    assert sum("spot notices: not passed on" in line for line in lines) == 2  # two kinds


ADVISED = {"max_steps": 100, "checkpoint_period": 5000, "validation_period": 100}
ADVISED |= {"reporting_period": 5, "spot_notice": True}


@pytest.mark.parametrize("trial", [ADVISED], indirect=True)
def test_a_rebalance_recommendation_makes_a_checkpoint_and_the_trial_goes_on(trial: Trial) -> None:
    """Where the metadata hop limit is 1: no token arrives."""
    service = MetadataServer()
    service.rebalance = '{"noticeTime": "2026-01-01T00:00:00Z"}'
    service.tokens, service.required = "unanswered", False
    with trial.master() as master:
        master.on_training = lambda: wait_for(lambda: "rebalance" in str(service.asked))
        done = trial.run(master, AWS_EC2_METADATA_SERVICE_ENDPOINT=service.url)
        finished(done, master)
    service.close()
    assert master.pending == 0 and master.acknowledged == 0
    early, last = steps_of(master.checkpoints)
    assert early < last == 100 and early % 5 == 0
    lines = (done.stdout + done.stderr).splitlines()
    (advice,) = [line for line in lines if service.rebalance in line]
    assert not any(re.match(pattern, advice) for pattern in excluding())
    assert sum("spot notices: read without a token" in line for line in lines) == 1


@pytest.mark.parametrize("trial", [{"entrypoint": LAUNCHED, "max_steps": 6}], indirect=True)
def test_two_slots_by_determineds_launcher(trial: Trial) -> None:
    with trial.master(slots=(2,)) as master:
        done = trial.run(master)
        finished(done, master)
        assert "[rank=0] INFO: step 3/6  " in done.stderr
        assert "Setting OMP_NUM_THREADS" not in done.stderr  # torchrun's banner
        assert [report["steps"] for report in master.reports("training")] == [3, 4, 6]
        assert [report["steps"] for report in master.reports("validation")] == [6]
        assert steps_of(master.checkpoints)[-1] == 6
        assert master.calls.count("POST /api/v1/checkpoints") == len(master.checkpoints)


@pytest.mark.parametrize("trial", [{"entrypoint": LAUNCHED}], indirect=True)
def test_a_mistake_is_one_line_in_the_log_and_a_failed_task(trial: Trial) -> None:
    trial.config["data"]["train"] = "/nowhere/train.json"
    with trial.master(slots=(2,)) as master:
        done = trial.run(master)
    assert done.returncode not in (0, None)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "error: " in line]
    said = [line for line in lines if "/nowhere/train.json" in line]
    assert said and all(re.match(r"\[rank=\d\] ERROR: train\.py: error: ", x) for x in said)
    assert master.metrics == [] and master.checkpoints == []


def test_the_master_refuses_strangers() -> None:
    with FakeMaster() as master:
        session = api.TaskSession(master.url, "determined", "another-token", None)
        with pytest.raises(api.errors.UnauthenticatedException):
            session.get("/api/v1/trials/11")
