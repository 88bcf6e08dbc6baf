"""A run that learns nothing says so, once, with the key to look at; no other run does."""

import logging
import math

import numpy as np
import pytest

from detalbert.engine.history import History, LossWatch
from tests.engine.trials import trial_of


def messages(losses, caplog, **arguments):
    """What is logged of a run that reports these losses, every 20 steps; 5.0 is guessing."""
    chosen = {"done": 0, "warmup": 20, "guess": 5.0, "rate": 2e-3, "chief": True, **arguments}
    history = History(chosen.pop("done"))
    watch = LossWatch(history, **chosen)
    with caplog.at_level(logging.WARNING):
        for loss in losses:
            history.step += 20
            watch.on_training_workload_end({"loss": loss}, [None] * 20)
    return [record.getMessage() for record in caplog.records]


def test_a_level_loss_is_told_once(caplog):
    (line,) = messages([5.1, 5.0, 5.0, 5.0, 4.99, 5.0, 5.0], caplog)
    assert line == (
        "after 100 steps the loss is 4.99, and that of guessing 5.00; if it stays so, the learning "
        "rate does not suit this model: try hyperparameters.base_learning_rate 0.0002, or 0.006"
    )


def test_a_fall_to_the_loss_of_guessing_is_no_fall(caplog):
    (line,) = messages([6.5, 5.2, 5.0, 4.9, 4.8, 4.8], caplog)
    assert line.startswith("after 100 steps the loss is 4.80, and that of guessing 5.00;")


@pytest.mark.parametrize(
    ("losses", "arguments"),
    [
        ([5.1, 4.9, 4.8, 4.6, 4.5, 4.5], {}),  # it falls
        ([1.9, 1.9, 1.9, 1.9, 1.9, 1.9], {}),  # it goes on with what it knows
        ([5.1] * 6, {"warmup": 200}),
        ([5.1] * 6, {"done": 40}),
        ([5.1] * 6, {"chief": False}),
        ([5.1] * 4, {}),  # ends earlier
    ],
    ids=["falls", "knows", "warm-up", "restart", "rank 1", "short"],
)
def test_others_are_let_alone(losses, arguments, caplog):
    assert messages(losses, caplog, **arguments) == []


def test_the_loss_of_guessing_answers_is_that_of_their_frequency(tiny_config):
    """That of a model whose logits are the same for every token but [CLS]: the best of these."""
    with trial_of(tiny_config) as trial:
        guess = trial.guess_loss()
        windows = trial.data.train.windows
        row = trial.data.train.windows.pack(np.arange(len(windows)))
    losses = []
    for logit in np.linspace(0, 6, 61):  # of [CLS]
        tokens = (row["context_end"] - row["context_start"]).astype(float)
        answer = np.where(row["start_positions"] == row["null_positions"], logit, 0)
        losses.append((np.log(tokens + np.exp(logit)) - answer).mean())
    assert guess == pytest.approx(min(losses), rel=0.02)
    assert guess < math.log(tokens.mean()) - 0.3
