"""A step reads nothing back from the device, so the host never waits for a GPU.

On torch's meta device tensors have no values: whoever asks for one gets an error.
"""

import contextlib
from unittest.mock import Mock

import pytest
import torch

from detalbert.engine.gradients import FiniteSteps
from detalbert.engine.rows import to_device
from lm.gradients import add_row, zero_sums
from lm.model import CausalLoss, empty_model
from lm.packed import pack
from tests.conftest import TINY, TINY_PRETRAINING
from tests.engine.trials import config_file, first_batch, trial_of
from tests.lm.ranks import tiny

META = torch.device("meta")


@pytest.mark.parametrize(
    ("config", "optimizer"), [(TINY, "radam"), (TINY, "adamw"), (TINY_PRETRAINING, "lamb")]
)
def test_a_step(
    config,
    optimizer,
    cache_dir,
    tmp_path,
    monkeypatch,
):
    # It is off in fp32, and torch has none for this device.
    monkeypatch.setattr(torch, "autocast", Mock(return_value=contextlib.nullcontext()))
    path = config_file(tmp_path, config, cache_dir, compile=False, optimizer=optimizer)
    with trial_of(path) as trial:
        batch = first_batch(trial)
        trial.context.device = META
        trial.context.optimizers = []
        trial.model.to_empty(device=META)
        trial.prepare_gradients()
        trial.finite = FiniteSteps(META)
        trial._prepare_optimizer(64)
        for step in range(7):  # the sixth is radam's first rectified one
            trial.train_batch(batch, 0, step)
        assert len(trial.optimizer.state) > 0
        assert trial.gradients.flat.device == META
        with pytest.raises(NotImplementedError):  # by the meter, at a report
            trial.meter.per_slot_reduce()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_row_of_the_language_model(family):
    causal_loss = CausalLoss(empty_model(tiny(family)))
    row = pack([(torch.zeros(25, dtype=torch.int64), torch.tensor([7, 5, 13]))])
    loss, correct = causal_loss(to_device(row, META))
    loss.backward()
    add_row(zero_sums(META), row, loss=loss.detach(), correct=correct)
    assert {parameter.grad.device for parameter in causal_loss.parameters()} == {META}
