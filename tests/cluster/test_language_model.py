"""A language model on a cluster: two slots of a container, each with half of the model."""

import json
import pathlib
from typing import Any

import pytest
import torch

from tests.cluster.conftest import LAUNCHED, finished, steps_of
from tests.cluster.container import Trial
from tests.conftest import TINY_LM
from tests.lm.test_trial import tensors

SHARDED = {"base": TINY_LM, "entrypoint": LAUNCHED, "layout": {"shard": 2}, "checkpoint_period": 5}


def kept(trial: Trial, checkpoint: Any) -> pathlib.Path:
    return trial.storage / checkpoint.uuid


@pytest.mark.parametrize("trial", [SHARDED], indirect=True)
def test_every_process_saves_its_part_and_a_preempted_trial_goes_on_to_the_same_bits(
    trial: Trial,
) -> None:
    trial.config["resources"] = {"slots_per_trial": 2}
    with trial.master(slots=(2,), metric="loss") as master:
        done = trial.run(master)
        finished(done, master)
        assert f"checkpoint at step 12: {master.checkpoints[-1].uuid}\n" in done.stderr
        validations = master.reports("validation")
        assert [report["steps"] for report in validations] == [6, 12]
        assert set(validations[0]["metrics"]) >= {"loss", "perplexity", "bits_per_byte"}
        assert steps_of(master.checkpoints) == [5, 6, 10, 12]
        assert set(master.states) >= {"training", "validating", "checkpointing"}
    whole = kept(trial, master.checkpoints[-1])
    sizes = [path.stat().st_size for path in sorted(whole.glob("*.distcp"))]
    assert len(sizes) == 2 and max(sizes) < 1.3 * min(sizes)
    assert whole.stat().st_mode & 0o777 == 0o755  # others read the storage, too
    listed = master.checkpoints[-1].resources
    assert int(listed["__1_0.distcp"]) == sizes[1]
    assert {"code/lm/trial.py", "tensors.json"} <= set(listed) and ".metadata" not in listed
    assert json.loads((whole / "pretrained" / "config.json").read_text())["model_type"] == "llama"

    with trial.master(slots=(2,), metric="loss", preempt_at=("training", 2)) as master:
        finished(trial.run(master), master)
        first = master.checkpoints[-1]
        stopped = first.metadata["steps_completed"]
        assert stopped < 12 and master.acknowledged == 1
        master.preempt_at = None
        master.preempt.clear()
        finished(trial.run(master, checkpoint=first.uuid, steps=stopped), master)
        assert steps_of(master.checkpoints)[-1] == 12
    resumed = tensors(kept(trial, master.checkpoints[-1]))
    assert all(torch.equal(resumed[name], value) for name, value in tensors(whole).items())

    part = kept(trial, first) / "__1_0.distcp"
    part.write_bytes(part.read_bytes()[:-5])
    with trial.master(slots=(2,), metric="loss") as master:
        done = trial.run(master, checkpoint=first.uuid, steps=stopped)
    said = [line for line in done.stderr.splitlines() if "train.py: error: " in line]
    assert done.returncode and said and master.checkpoints == []
    assert all("__1_0.distcp is not as it was written; go on from" in line for line in said)
