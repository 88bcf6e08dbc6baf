"""Gradients, weights and scores that are not finite: skipped, counted, and the end of a run."""

import shutil
import subprocess
from typing import Any

import pytest
import torch

from detalbert.engine.gradients import LIMIT, FiniteSteps
from detalbert.errors import Diverged
from tests.conftest import ROOT, TINY, TINY_LM, in_soak, launcher
from tests.engine.trials import config_file, first_batch, trial_of
from tests.fakes.runs import newest, run, steps_of
from tests.same_bits import differences

Config = dict[str, Any]


def test_ten_in_a_row_end_a_run_at_the_next_report():
    steps = FiniteSteps(torch.device("cpu"))
    norms = [torch.inf] * (LIMIT - 1) + [3.0] + [torch.inf] * (LIMIT - 1)
    for step, norm in enumerate(norms, start=1):
        steps.update(torch.tensor(norm), step)
        steps.on_training_workload_end({}, [])
    steps.update(torch.tensor(torch.nan), 20)
    steps.update(torch.tensor(3.0), 21)  # the report comes after it
    with pytest.raises(Diverged, match="step 21: no finite gradient in 10 steps in a row; lower"):
        steps.on_training_workload_end({}, [])


def test_a_gradient_that_is_not_finite_is_taken_as_zero(tiny_config):
    with trial_of(tiny_config) as trial:
        batch = first_batch(trial)
        trial.train_batch(batch, 0, 0)
        before = [trial.optimizer.state[p]["exp_avg"].clone() for p in trial.model.parameters()]

        backward = trial.backward
        trial.backward = lambda loss: backward(loss * torch.inf)
        trial.train_batch(batch, 0, 1)

        for parameter, mean in zip(trial.model.parameters(), before, strict=True):
            assert torch.equal(trial.optimizer.state[parameter]["exp_avg"], mean * 0.9)
            assert parameter.isfinite().all()
        report = trial.meter.cross_slot_reduce([trial.meter.per_slot_reduce()])
        assert report["skipped_steps"] == 1
        assert report["grad_norm"] > 0


SKIPPED = "WARNING: steps without a finite gradient, taken as zero: 1"


@pytest.mark.parametrize(
    ("config", "processes", "hparams"),
    [
        (TINY, 2, {}),
        in_soak(TINY_LM, 4, {"layout": {"shard": 2, "tensor": 2}}),
    ],
)
def test_one_rank_s_infinity_is_skipped_on_all_and_a_cut_leaves_no_trace(
    config, processes, hparams, tmp_path, cache_dir, python
):
    config = {**config, "checkpoint_storage": {"save_trial_latest": 2}}
    path = config_file(tmp_path, config, cache_dir, max_steps=8, validation_period=8, **hparams)
    command = [*launcher(processes, python), "-m", "tests.broken", "gradient", "--config", path]

    def train(output):
        """What a run logs that ends well."""
        ended = subprocess.run(
            [*command, "--output-dir", output],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stderr

    uncut = tmp_path / "uncut"
    assert train(uncut).count(SKIPPED) == 1
    if not hparams:  # a sharded model that is cut: tests/lm/test_trial.py
        cut = shutil.copytree(uncut, tmp_path / "cut")
        shutil.rmtree(newest(cut))
        logged = train(cut)
        assert "resumed at step 4 of 8" in logged
        assert logged.count(SKIPPED) == 1
        assert differences(uncut, cut) == []


@pytest.mark.parametrize(
    ("config", "validation_period", "checkpoint_period", "problem"),
    [
        (TINY, 40, 2, "; lower"),
        (TINY, 5, 6, "validation at step 5: "),
        (TINY_LM, 5, 2, "a weight is not finite"),
    ],
)
def test_a_rate_that_is_far_too_high_ends_the_run(
    config,
    validation_period,
    checkpoint_period,
    problem,
    tmp_path,
    cache_dir,
    capsys,
):
    path = config_file(
        tmp_path,
        config,
        cache_dir,
        base_learning_rate=1e20,
        max_steps=40,
        validation_period=validation_period,
        reporting_period=40,
        checkpoint_period=checkpoint_period,
    )
    output = tmp_path / "out"

    assert run(path, output) == 1

    *logged, error = capsys.readouterr().err.splitlines()
    assert error.startswith("train.py: error: ")
    assert problem in error
    assert "hyperparameters.base_learning_rate" in error
    assert all(line.startswith(("INFO: ", "WARNING: ")) for line in logged)
    # A sharded checkpoint that is still being written when the run ends is not published.
    assert all(step < 20 for step in steps_of(output))
    for weights in output.glob("checkpoints/*/state_dict.pth"):  # a sharded model has none
        state = torch.load(weights, weights_only=True)["models_state_dict"][0]
        assert all(weight.isfinite().all() for weight in state.values())
