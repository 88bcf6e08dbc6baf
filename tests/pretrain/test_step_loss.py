"""The loss that a step prints: the mean over its labels of each objective, whatever the rows."""

import itertools
import math

import pytest
import torch

from tests.conftest import NO_DROPOUT, TINY_PRETRAINING
from tests.engine.trials import config_file, first_batch, trial_of

OBJECTIVES = {
    "masked tokens": {"sentence_order": False},
    "with order": {},
    "with spans": {"span_fraction": 0.4},
}


def means_over_labels(trial, batch):
    """Return the mean loss of each objective over the labels of a step, by a loop over them."""
    losses = {"token": [], "order": [], "span": []}

    def add(objective, logits, label):
        if label >= 0:
            losses[objective].append(-float(logits.log_softmax(0)[label]))

    for row in batch:
        mlm, *others = trial.forward(row)
        for logits, label in zip(mlm, row["mlm_labels"], strict=True):
            add("token", logits, label)
        if others:
            for logits, label in zip(others[0], row["sop_labels"], strict=True):
                add("order", logits, label)
        if len(others) == 2:
            bounds = row["cu_seqlens"].tolist()
            for window, (begin, end) in enumerate(itertools.pairwise(bounds)):
                add("span", others[1][begin:end, 0], row["start_positions"][window])
                add("span", others[1][begin:end, 1], row["end_positions"][window])
    return [math.fsum(values) / len(values) for values in losses.values() if values]


@pytest.mark.parametrize("keys", OBJECTIVES.values(), ids=OBJECTIVES)
def test_a_step_prints_the_mean_over_its_labels(keys, cache_dir, tmp_path):
    shape = TINY_PRETRAINING["hyperparameters"]["model_config"] | NO_DROPOUT
    shape = shape | {"classifier_dropout_prob": 0.0}
    config = config_file(tmp_path, TINY_PRETRAINING, cache_dir, model_config=shape, **keys)
    printed = {}
    for max_tokens in (512, 128, 64):
        with trial_of(config, max_tokens_per_forward=max_tokens) as trial:
            batch = first_batch(trial)
            with torch.no_grad():
                means = means_over_labels(trial, batch)
            assert trial.guess_loss() == pytest.approx(sum(means), rel=0.02)  # untrained
            trial.train_batch(batch, 0, 0)
            report = trial.meter.cross_slot_reduce([trial.meter.per_slot_reduce()])
        printed[len(batch)] = report["loss"]

    assert min(printed) == 1
    assert max(printed) > 3
    assert len(means) == list(OBJECTIVES.values()).index(keys) + 1
    assert list(printed.values()) == pytest.approx([sum(means)] * len(printed), rel=1e-5)
