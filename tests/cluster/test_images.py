"""The package as a task of a Determined cluster: uploaded, unpacked, prepared, launched, stopped.

Everything but the master is Determined's own: the packing of the context, the preparation of the
container (`determined.exec`), the launcher, the trainer.
"""

import pytest
from determined.common import v1file_utils

from tests.cluster.conftest import steps_of, uploaded
from tests.conftest import ROOT
from tests.fakes.metadata import MetadataServer
from tests.fakes.runs import wait_for
from workloads import TABLE

# Folders of which nothing is uploaded.
LEFT_OUT = "tests cluster runs .cache .git .venv docs reports data benchmarks configs".split()


@pytest.fixture(scope="module")
def ignored():
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

        def announce():
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
