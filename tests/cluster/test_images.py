"""The package as a task of a Determined cluster: uploaded, unpacked, prepared, launched, stopped.

Everything but the master is Determined's own: the packing of the context, the preparation of the
container (`determined.exec`), the launcher, the trainer.
"""

import json
import shutil

import pytest
import torch
from determined.common import v1file_utils

from detalbert.redact import masked
from tests.cluster.conftest import steps_of, uploaded
from tests.conftest import ROOT
from tests.fakes import secrets
from tests.fakes.hub import put
from tests.fakes.metadata import MetadataServer
from tests.fakes.no_models import plant
from tests.fakes.runs import newest, wait_for
from workloads import TABLE


def test_the_upload_holds_what_a_task_needs_and_no_more():
    sizes = {file.path: v1file_utils.v1File_size(file) for file in uploaded()}
    assert 100_000 < sum(sizes.values()) < 2**21
    lines = (ROOT / ".detignore").read_text().splitlines()
    left, paths = {line[1:] for line in lines if line.startswith("/")}, set(sizes)
    needed = {path.name for path in ROOT.glob("*.py")} - left
    assert {"train.py", "model_def.py", "data.py", "workloads.py"} <= needed <= paths
    assert "lm/inference/" in left and not left & paths
    assert all((ROOT / name).exists() for name in left if name.endswith(".py") and "*" not in name)
    package = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("detalbert/**/*.py")}
    assert {path for path in paths if path.startswith("detalbert/")} & package == package - left
    used = {"predict.py", "requirements.txt", "constraints.txt", "startup-hook.sh", "LICENSE"}
    modules = [name.split(":")[0] for row in TABLE for name in (row.parsers, row.workload)]
    assert used | {f"{module.replace('.', '/')}.py" for module in modules} <= paths
    assert not [path for path in paths if path.startswith(("lm/inference", "pretrain/score"))]
    model = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    assert {f"embedded/albert-tiny/{name}" for name in model} <= paths
    out = "tests cluster runs .cache .git .venv docs reports data benchmarks configs".split()
    assert not [path for path in paths if path.split("/")[0] in out or path.endswith(".md")]


# train.py that looks for models of the hub in another place than the process that it is a fork of.
ELSEWHERE = """import runpy, sys
from huggingface_hub import constants
constants.HF_HUB_CACHE = {!r}
sys.path.insert(0, "")
runpy.run_path("train.py", run_name="__main__")"""
FROM_HUB = {"model": "org/tiny@main", "model_config": None}


@pytest.mark.parametrize("trial", [FROM_HUB], indirect=True)
def test_a_restart_reads_the_first_commits_and_no_secret_leaves(trial, real_python, tmp_path):
    """The first by a real Python. The branch moves in between: the model has another dropout."""
    trial.config.update(secrets.PLANTED)
    moved, tiny, cache = tmp_path / "moved", ROOT / "embedded" / "albert-tiny", tmp_path / "hf/hub"
    shutil.copytree(tiny, moved)
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**config, "hidden_dropout_prob": 0.5}))
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE.format(str(cache)))
    commit = put(cache, "org/tiny", "main", tiny)
    fork, trial.python = trial.python, real_python
    with trial.master() as master:
        first = trial.run(master, HF_HOME=str(cache.parent))
        assert master.metadata["commits"] == {"models/org/tiny@main": commit}
        half = next(c for c in master.checkpoints if c.metadata["steps_completed"] == 8)
        whole = trial.weights(master.checkpoints[-1])
        put(cache, "org/tiny", "main", moved)
        trial.python = fork
        trial.config["entrypoint"] = f"python3 {tmp_path}/elsewhere.py"
        second = trial.run(master, checkpoint=half.uuid, steps=8)
    again, saved = trial.weights(master.checkpoints[-1]), trial.storage / half.uuid
    assert master.checkpoints[-1].metadata["steps_completed"] == 12
    assert all(torch.equal(again[name], value) for name, value in whole.items())
    assert secrets.found_in([trial.storage]) == set()
    kept = json.loads((saved / "load_data.json").read_text())
    assert kept["experiment_config"]["environment"] == masked(secrets.PLANTED["environment"])
    # DET_TRIAL_SEED, for the config names no `hyperparameters.seed`.
    assert kept["hparams"]["seed"] == 1234
    said = (first.stdout + first.stderr + second.stdout + second.stderr).splitlines()
    ours = [line for line in said if "New trial runner" not in line]  # Determined's own: all of it
    assert "planted-" not in "\n".join([*ours, json.dumps(master.heard)])


def test_a_warm_start_takes_the_weights_alone(ran, branch):
    branch.config["perform_initial_validation"] = True
    source = ran.master.checkpoints[-1]
    with branch.master() as master:
        # Determined gives it the checkpoint of trial 11, and step 0
        done = branch.run(master, checkpoint=source.uuid, DET_TRIAL_ID="12")
    assert done.stderr.count("another trial's weights; optimizer and schedule begin anew") == 1
    before, *_, after = master.reports("validation")
    assert (before["steps"], after["steps"]) == (0, 60)
    counted = ("batches", "epochs")  # by the trainer
    trained = ran.master.reports("validation")[-1]["metrics"]
    assert before["metrics"] == {**trained, **{name: before["metrics"][name] for name in counted}}
    rates = [
        [report["metrics"]["learning_rate_1e6"] for report in heard.reports("training")]
        for heard in (master, ran.master)
    ]
    assert rates[0] == rates[1] and min(rates[0]) > 0


LONG = dict.fromkeys(["max_steps", "checkpoint_period", "validation_period"], 5000)
LONG |= {"reporting_period": 5, "spot_notice": True}


@pytest.mark.parametrize("trial", [LONG], indirect=True)
def test_a_recommendation_makes_a_checkpoint_and_a_notice_ends_the_trial(trial):
    """The notice is passed to a master that fails first."""
    notice = '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'
    with MetadataServer() as service, trial.master() as master:

        def announce() -> None:
            wait_for(lambda: "rebalance" in str(service.asked))
            service.notice = notice if master.checkpoints else None

        master.pending_faults, master.on_training = [500], announce
        service.rebalance = '{"noticeTime": "2026-01-01T00:00:00Z"}'
        done = trial.run(master, AWS_EC2_METADATA_SERVICE_ENDPOINT=service.url)
    assert master.pending == 1 and master.acknowledged == 1 and master.pending_faults == []
    early, last = steps_of(master.checkpoints)
    assert early % 5 == 0 and early < last < 5000
    lines = (done.stdout + done.stderr).splitlines()
    assert all(sum(told in x for x in lines) == 1 for told in (service.rebalance, notice))
    assert sum("spot notices: not passed on" in line for line in lines) == 1


UUID = "aaaaaaaa-1111-2222-3333-444444444444"


# Determined gives a warm start, or a fork, the checkpoint of trial 11, and step 0.
@pytest.mark.parametrize(
    ("name", "steps", "number"), [("trial_state.pkl", 12, "11"), ("state_dict.pth", 0, "12")]
)
def test_code_in_a_stored_checkpoint_is_refused(name, steps, number, finished, trial, tmp_path):
    """Where torch unpickles anything, too."""
    kept, touched = trial.storage / UUID, tmp_path / "touched"
    shutil.copytree(newest(finished / "out"), kept)
    plant(kept, name, touched)
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    given = {"DET_TRIAL_ID": number, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    with trial.master() as master:
        done = trial.run(master, UUID, steps, fails=True, **given)
    said = {line for line in done.stderr.splitlines() if "train.py: error: " in line}
    assert done.returncode == 2 and len(said) == 1, done.stderr
    assert "not the tensors and numbers it should hold" in said.pop()
    assert not touched.exists() and master.checkpoints == [] and "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == before
