"""What is taken of a checkpoint: all of the same trial's, the weights alone of another's."""

import pytest
import torch

from tests.engine.trials import one_step, trial_of
from tests.fakes.runs import newest
from tests.same_bits import of_value


@pytest.fixture
def state(finished):
    """The checkpoint at the end of a run, as Determined reads it: the rate has come down to 0."""
    return torch.load(newest(finished / "out") / "state_dict.pth", weights_only=True)


def test_of_another_trial_only_the_weights_are_taken(tiny_config, state, caplog):
    caplog.set_level("INFO", "detalbert")
    state["callbacks"]["handover"] = {"threads": 2, "trial": 7}  # this one has none
    assert state["lr_schedulers_state_dict"][0]["_last_lr"] == [0.0, 0.0]
    with trial_of(tiny_config) as trial:
        optimizer_before = of_value(trial.optimizer.state_dict())
        schedule_before = of_value(trial.schedule.state_dict())

        load(trial, state, 0)

        assert of_value(trial.optimizer.state_dict()) == optimizer_before
        assert of_value(trial.schedule.state_dict()) == schedule_before
        assert trial.resume.threads == 1
        assert state["callbacks"] == {}  # no validation of its own counts
        assert "warm start    another trial's weights" in caplog.text
        trial.meter.reset()
        one_step(trial)
        assert len(trial.optimizer.state) > 0  # it moves


def test_a_checkpoint_that_names_no_trial_gives_its_weights_alone(tiny_config, state):
    del state["callbacks"]["handover"]  # of other code for the same model
    with trial_of(tiny_config) as trial:
        trial.resume.on_checkpoint_load_start(state)
    assert state["optimizers_state_dict"][0]["state"] == {}


def load(trial, state, step):
    """What Determined does with a checkpoint, for a start at `step`."""
    trial.history.step = step
    trial.resume.on_checkpoint_load_start(state)
    trial.model.load_state_dict(state["models_state_dict"][0])
    trial.optimizer.load_state_dict(state["optimizers_state_dict"][0])
    trial.schedule.load_state_dict(state["lr_schedulers_state_dict"][0])


def resumed_group(trial, state):
    """The parameter group of the first step after `state`, which is of step 12 of 12."""
    load(trial, state, 12)
    trial.resume.on_training_start()
    return trial.optimizer.param_groups[0]


def test_a_continued_trial_follows_its_config_of_now(tiny_config, state):
    with trial_of(tiny_config) as trial:
        earlier_peak = trial.hparams.learning_rate()
    with trial_of(
        tiny_config, max_steps=24, base_learning_rate=0.5, weight_decay=0.25, beta2=0.9
    ) as trial:
        rate = trial.hparams.learning_rate() * (12 / (24 - trial.warmup))
        group = resumed_group(trial, state)
        assert group["lr"] == rate > earlier_peak
        assert group["weight_decay"] == 0.25
        assert group["betas"] == (0.9, 0.9)
        trial.schedule.step()
        assert trial.optimizer.param_groups[1]["lr"] == pytest.approx(rate * 11 / 12)
