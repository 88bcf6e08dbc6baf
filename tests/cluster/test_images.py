"""The package as a task of a Determined cluster: uploaded, unpacked, prepared, launched, stopped.

Everything but the master is Determined's own: the packing of the context, the preparation of the
container (`determined.exec`), the launcher, the trainer.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from determined.common import v1file_utils

from detalbert.redact import masked
from tests.cluster.conftest import steps_of, uploaded
from tests.conftest import ROOT
from tests.fakes import secrets
from tests.fakes.hub import put
from tests.fakes.master import FakeMaster
from tests.fakes.metadata import MetadataServer
from tests.fakes.no_models import plant
from tests.fakes.runs import newest, wait_for
from workloads import TABLE

# Folders of which nothing is uploaded.
LEFT_OUT = "tests cluster runs .cache .git .venv docs reports data benchmarks configs".split()


@pytest.fixture(scope="module")
def ignored() -> set[str]:
    """The paths that .detignore leaves out, from the root on."""
    lines = (ROOT / ".detignore").read_text().splitlines()
    return {line[1:] for line in lines if line.startswith("/")}


def test_the_upload_holds_what_a_task_needs_and_no_more(ignored):
    sizes = {file.path: v1file_utils.v1File_size(file) for file in uploaded()}
    paths = set(sizes)
    assert 100_000 < sum(sizes.values()) < 2**21
    assert not ignored & paths
    for path in paths:
        assert not path.startswith(("lm/inference", "pretrain/encoder_folder"))
        assert not path.endswith(".md")
        assert path.split("/")[0] not in LEFT_OUT

    # Modules of the root and of the package, of all workloads, and the embedded model.
    modules = {path.name for path in ROOT.glob("*.py")} - ignored
    assert {"train.py", "model_def.py", "data.py", "workloads.py"} <= modules
    assert modules <= paths
    package = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("detalbert/**/*.py")}
    in_package = {path for path in paths if path.startswith("detalbert/")}
    assert in_package & package == package - ignored
    for row in TABLE:
        for name in (row.parsers, row.workload):
            module = name.split(":")[0].replace(".", "/")
            assert f"{module}.py" in paths
    files = ["predict.py", "requirements.txt", "constraints.txt", "startup-hook.sh", "LICENSE"]
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        files.append(f"embedded/albert-tiny/{name}")
    assert set(files) <= paths


def test_what_is_left_out_of_the_upload_is_there(ignored):
    assert "lm/inference/" in ignored
    for name in ignored:
        if name.endswith(".py") and "*" not in name:
            assert (ROOT / name).exists(), name


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
    tiny = ROOT / "embedded" / "albert-tiny"
    moved = tmp_path / "moved"
    shutil.copytree(tiny, moved)
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**config, "hidden_dropout_prob": 0.5}))
    cache = tmp_path / "hf/hub"
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE.format(str(cache)))
    commit = put(cache, "org/tiny", "main", tiny)
    fork = trial.python

    with trial.master() as master:
        trial.python = real_python
        first = trial.run(master, HF_HOME=str(cache.parent))
        assert master.metadata["commits"] == {"models/org/tiny@main": commit}
        (half,) = [c for c in master.checkpoints if c.metadata["steps_completed"] == 8]
        undisturbed = trial.weights(master.checkpoints[-1])

        put(cache, "org/tiny", "main", moved)
        trial.python = fork
        trial.config["entrypoint"] = f"python3 {tmp_path}/elsewhere.py"
        second = trial.run(master, checkpoint=half.uuid, steps=8)

    last = master.checkpoints[-1]
    weights = trial.weights(last)
    assert last.metadata["steps_completed"] == 12
    assert all(torch.equal(weights[name], value) for name, value in undisturbed.items())

    # Secrets are in no file, no line and no request; the environment is stored without them.
    assert secrets.found_in([trial.storage]) == set()
    stored = json.loads((trial.storage / half.uuid / "load_data.json").read_text())
    assert stored["experiment_config"]["environment"] == masked(secrets.PLANTED["environment"])
    # DET_TRIAL_SEED, for the config names no `hyperparameters.seed`.
    assert stored["hparams"]["seed"] == 1234
    log = first.stdout + first.stderr + second.stdout + second.stderr
    for line in log.splitlines():
        assert "New trial runner" in line or "planted-" not in line  # Determined's own: all of it
    assert "planted-" not in json.dumps(master.heard)


def rates(master: FakeMaster) -> list[float]:
    """Return the learning rates that a master was given."""
    return [report["metrics"]["learning_rate_1e6"] for report in master.reports("training")]


def test_a_warm_start_takes_the_weights_alone(ran, branch):
    branch.config["perform_initial_validation"] = True
    source = ran.master.checkpoints[-1]
    with branch.master() as master:
        # Determined gives it the checkpoint of trial 11, and step 0
        done = branch.run(master, checkpoint=source.uuid, DET_TRIAL_ID="12")

    assert done.stderr.count("another trial's weights; optimizer and schedule begin anew") == 1
    before, *_, after = master.reports("validation")
    assert before["steps"] == 0
    assert after["steps"] == 60
    # Its first scores are the last ones of the other trial; the trainer counts from 0.
    expected = dict(ran.master.reports("validation")[-1]["metrics"])
    for name in ("batches", "epochs"):
        expected[name] = before["metrics"][name]
    assert before["metrics"] == expected
    assert rates(master) == rates(ran.master)
    assert min(rates(master)) > 0


LONG = {
    "max_steps": 5000,
    "checkpoint_period": 5000,
    "validation_period": 5000,
    "reporting_period": 5,
    "spot_notice": True,
}


@pytest.mark.parametrize("trial", [LONG], indirect=True)
def test_a_recommendation_makes_a_checkpoint_and_a_notice_ends_the_trial(trial):
    """The notice is passed to a master that fails first."""
    rebalance = '{"noticeTime": "2026-01-01T00:00:00Z"}'
    notice = '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'
    with MetadataServer() as service, trial.master() as master:

        def announce() -> None:
            wait_for(lambda: "rebalance" in str(service.asked))
            service.notice = notice if master.checkpoints else None

        service.rebalance = rebalance
        master.pending_faults = [500]
        master.on_training = announce
        done = trial.run(master, AWS_EC2_METADATA_SERVICE_ENDPOINT=service.url)

    assert master.pending == 1
    assert master.acknowledged == 1
    assert master.pending_faults == []
    early, last = steps_of(master.checkpoints)
    assert early % 5 == 0
    assert early < last < 5000
    lines = (done.stdout + done.stderr).splitlines()
    for words in (rebalance, notice, "spot notices: not passed on"):
        assert sum(words in line for line in lines) == 1, words


UUID = "aaaaaaaa-1111-2222-3333-444444444444"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Determined gives a warm start, or a fork, the checkpoint of trial 11, and step 0.
@pytest.mark.parametrize(
    ("name", "steps", "number"), [("trial_state.pkl", 12, "11"), ("state_dict.pth", 0, "12")]
)
def test_code_in_a_stored_checkpoint_is_refused(name, steps, number, finished, trial, tmp_path):
    """Where torch unpickles anything, too."""
    checkpoint = trial.storage / UUID
    touched = tmp_path / "touched"
    shutil.copytree(newest(finished / "out"), checkpoint)
    plant(checkpoint, name, touched)
    before = contents(checkpoint)

    variables = {"DET_TRIAL_ID": number, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    with trial.master() as master:
        done = trial.run(master, UUID, steps, fails=True, **variables)

    errors = {line for line in done.stderr.splitlines() if "train.py: error: " in line}
    assert done.returncode == 2, done.stderr
    assert len(errors) == 1, done.stderr
    assert "not the tensors and numbers it should hold" in errors.pop()
    assert "Traceback" not in done.stderr
    assert not touched.exists()
    assert master.checkpoints == []
    assert contents(checkpoint) == before
