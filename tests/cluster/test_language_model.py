"""A language model on a cluster: two slots of a container, each with half of the model."""

import pytest
import torch
from torch.distributed import checkpoint as dcp

from tests.cluster.conftest import LAUNCHED, steps_of
from tests.conftest import TINY_LM

SHARDED = {
    "base": TINY_LM,
    "entrypoint": LAUNCHED,
    "layout": {"shard": 2},
    "checkpoint_period": 4,
}


def tensors(folder):
    """Return weights and the optimizer's state of a checkpoint, unsharded."""
    reader = dcp.HuggingFaceStorageReader(str(folder))
    state = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        state[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state


@pytest.mark.parametrize("trial", [SHARDED], indirect=True)
def test_every_process_saves_its_part_and_a_preempted_restart_has_the_same_bits(trial):
    """From step 4 of a run to the validation at step 6 of it, at which it is preempted."""
    trial.config["resources"] = {"slots_per_trial": 2}
    with trial.master(slots=(2,), metric="loss") as master:
        done = trial.run(master)

    assert f"checkpoint at step 12: {master.checkpoints[-1].uuid}\n" in done.stderr
    validations = master.reports("validation")
    assert [report["steps"] for report in validations] == [6, 12]
    assert set(validations[0]["metrics"]) >= {"loss", "perplexity", "bits_per_byte"}
    assert steps_of(master.checkpoints) == [4, 6, 8, 12]
    fourth, sixth, *_, last = master.checkpoints
    folder = trial.storage / last.uuid
    _, second_shard = sorted(folder.glob("shard-*"))
    assert folder.stat().st_mode & 0o777 == 0o755  # others read the storage, too
    assert int(last.resources[second_shard.name]) == second_shard.stat().st_size
    assert "code/lm/trial.py" in last.resources
    assert ".metadata" not in last.resources  # pickled

    with trial.master(slots=(2,), metric="loss", preempt_at=("validating", 1)) as restarted:
        trial.run(restarted, checkpoint=fourth.uuid, steps=4)

    assert steps_of(restarted.checkpoints) == [6]
    assert restarted.acknowledged == 1
    state = tensors(trial.storage / restarted.checkpoints[0].uuid)
    expected = tensors(trial.storage / sixth.uuid)
    later = tensors(folder)
    assert all(torch.equal(state[name], value) for name, value in expected.items())
    assert not all(torch.equal(state[name], value) for name, value in later.items())
