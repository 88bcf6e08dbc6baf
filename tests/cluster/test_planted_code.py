"""Code in a stored checkpoint: a trial refuses it, in one line, and runs none of it."""

import shutil

import pytest

from tests.fakes.no_models import plant
from tests.fakes.runs import newest

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
