"""The step: what the optimizer sees of a batch, what is told, and what the parts are given."""

from types import SimpleNamespace

import pytest
import torch

from detalbert.engine.forward import row_losses
from detalbert.engine.trial import read_experiment
from detalbert.errors import UserError
from detalbert.settings.hparams import parse_hparams
from tests.conftest import NO_DROPOUT
from tests.engine.trials import first_batch, one_step, trial_of
from tests.fakes.runs import change


def norm(gradients):
    return float(torch.cat([gradient.flatten() for gradient in gradients.values()]).norm())


def test_the_optimizer_sees_the_gradients_of_the_mean_loss(tiny_config):
    change(tiny_config, model_config=NO_DROPOUT)
    with trial_of(tiny_config, max_grad_norm=0, max_tokens_per_forward=256) as trial:
        assert trial.meter.epoch == trial.data.summary().windows / 8
        gradients = one_step(trial)

        batch = first_batch(trial)
        losses = torch.cat([row_losses(row, *trial.forward(row)) for row in batch])
        assert len(batch) > 1
        assert len(losses) == 8
        expected = torch.autograd.grad(losses.mean(), list(trial.model.parameters()))
        torch.testing.assert_close(list(gradients.values()), list(expected), rtol=1e-4, atol=1e-7)

        sums = trial.meter.per_slot_reduce()
        assert sums["loss"] == pytest.approx(losses.sum().item(), rel=1e-5)
        assert sums["tokens"] == sum(len(row["input_ids"]) for row in batch)
        assert sums["windows"] == 8


def test_a_step_starts_from_no_gradients_and_clips_them(tiny_config):
    """The rate of step 0 is 0, so the weights stay and the second step must see the same."""
    norms = {}
    for limit in (0, 1e9, 1e-3):
        with trial_of(tiny_config, max_grad_norm=limit) as trial:
            gradients = one_step(trial)
            again = one_step(trial)
        for name, gradient in gradients.items():
            assert torch.equal(gradient, again[name])
        norms[limit] = norm(gradients)
    assert norms[0] == norms[1e9] > 1e-2
    assert norms[1e-3] == pytest.approx(1e-3, rel=1e-3)


def test_half_precision_weights_follow_at_every_step_and_validation(tiny_config):
    with trial_of(tiny_config, precision="bf16") as trial:
        rows = first_batch(trial)
        validation_batch = next(iter(trial.build_validation_data_loader()))
        trial.reducer.reset()
        linear = trial.forward.linears[0]

        def change_weight():
            with torch.no_grad():
                linear.weight.mul_(2)
            assert not torch.equal(linear.copy, linear.weight.bfloat16())

        change_weight()
        trial.train_batch(rows, 0, 0)
        assert torch.equal(linear.copy, linear.weight.bfloat16())

        change_weight()
        with torch.no_grad():
            trial.evaluate_batch(validation_batch, 0)
        assert torch.equal(linear.copy, linear.weight.bfloat16())


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        (10, "10 after the first 3 steps are more than the run's 12"),
        (-1, "profile_steps: -1; "),
    ],
)
def test_a_profile_that_fits_no_run_is_refused(steps, problem, tiny_config):
    with pytest.raises(UserError, match=problem), trial_of(tiny_config, profile_steps=steps):
        pass


@pytest.mark.parametrize(("configured", "expected"), [(None, 77), (5, 5)])
def test_a_trial_reads_its_config_from_determined(configured, expected):
    context = SimpleNamespace(
        get_hparams=lambda: {"model": "m", "seed": configured},
        get_data_config=lambda: {"train": "x"},
        get_trial_seed=lambda: 77,
    )

    def load(data, hparams):
        return data, hparams

    hparams, loaded = read_experiment(context, parse_hparams, load)

    assert hparams == parse_hparams({"model": "m", "seed": expected})
    assert loaded == ({"train": "x"}, hparams)
