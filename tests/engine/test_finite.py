"""Gradients, weights and scores that are not finite: skipped, counted, and the end of a run."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from detalbert.engine.finite import LIMIT, FiniteSteps
from detalbert.errors import Diverged
from tests.conftest import ROOT, TINY, TINY_LM, launcher
from tests.engine.trials import config_file, first_batch, trial_of
from tests.fakes.runs import newest, run, steps_of
from tests.same_bits import differences

GOOD, BAD = torch.tensor(3.0), torch.tensor(torch.inf)


def test_ten_in_a_row_end_a_run() -> None:
    steps = FiniteSteps(torch.device("cpu"))
    norms = [BAD] * (LIMIT - 1) + [GOOD] + [BAD] * (LIMIT - 1)
    kept = [steps.update(norm, number) for number, norm in enumerate(norms, 1)]
    assert [keep is None for keep in kept] == [bool(norm.isfinite()) for norm in norms]
    assert not any(kept[0::LIMIT])
    with pytest.raises(Diverged, match="step 20: no finite gradient in 10 steps in a row; lower"):
        steps.update(torch.tensor(torch.nan), 20)


def test_a_step_without_a_finite_gradient_changes_nothing(tiny_config: Path) -> None:
    with trial_of(tiny_config) as trial:
        batch = first_batch(trial)
        trial.train_batch(batch, 0, 0)
        state = trial.optimizer.state
        before = [p.clone() for p in trial.model.parameters()]
        moments = [state[p]["exp_avg"] + state[p]["exp_avg_sq"] for p in trial.model.parameters()]
        backward = trial.backward
        trial.backward = lambda loss: backward(loss * torch.inf)
        trial.train_batch(batch, 0, 1)
        for p, was, kept in zip(trial.model.parameters(), before, moments, strict=True):
            assert torch.equal(p, was)
            assert torch.equal(state[p]["exp_avg"] + state[p]["exp_avg_sq"], kept)
        report = trial.meter.cross_slot_reduce([trial.meter.per_slot_reduce()])
        assert report["skipped_steps"] == 1 and report["grad_norm"] > 0
        trial.check_weights(2)
        with torch.no_grad():
            p.view(-1)[0] = torch.nan
        with pytest.raises(Diverged, match="step 3: a weight is not finite"):
            trial.check_weights(3)


SPLIT = {"layout": {"shard": 2, "tensor": 2}}


@pytest.mark.parametrize("config, processes, hparams", [(TINY, 2, {}), (TINY_LM, 4, SPLIT)])
def test_one_rank_s_infinity_is_skipped_on_all_and_a_cut_leaves_no_trace(
    config: Any, processes: int, hparams: Any, tmp_path: Path, cache_dir: Path, python: str
) -> None:
    config = {**config, "checkpoint_storage": {"save_trial_latest": 2}}
    path = config_file(tmp_path, config, cache_dir, max_steps=8, validation_period=8, **hparams)

    def train(output: Path) -> str:
        command = [*launcher(processes, python), "-m", "tests.broken", "gradient"]
        command += ["--config", str(path), "--output-dir", str(output)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stderr

    skipped = "WARNING: 1 step(s) had no finite gradient and changed nothing"
    assert train(tmp_path / "uncut").count(skipped) == 1
    if not hparams:  # a sharded model that is cut: tests/lm/test_trial.py
        shutil.copytree(tmp_path / "uncut", tmp_path / "cut")
        shutil.rmtree(newest(tmp_path / "cut"))
        said = train(tmp_path / "cut")
        assert "resumed at step 4 of 8" in said and said.count(skipped) == 1
        assert differences(tmp_path / "uncut", tmp_path / "cut") == []


AT_5 = "validation at step 5: "
ENDS = [(TINY, 40, "no finite gradient in 10 steps in a row; lower"), (TINY, 5, AT_5)]


@pytest.mark.parametrize("config, period, said", [*ENDS, (TINY_LM, 5, AT_5)])
def test_a_rate_that_is_far_too_high_ends_the_run(
    config: dict[str, Any], period: int, said: str, tmp_path: Path, cache_dir: Path, capsys: Any
) -> None:
    steps = {"max_steps": 40, "reporting_period": 40, "checkpoint_period": 2}
    high = {"base_learning_rate": 1e20, "validation_period": period, **steps}
    assert run(config_file(tmp_path, config, cache_dir, **high), tmp_path / "out") == 1
    *others, line = capsys.readouterr().err.splitlines()
    assert line.startswith("train.py: error: ") and said in line
    assert "hyperparameters.base_learning_rate" in line
    assert not [other for other in others if not other.startswith(("INFO: ", "WARNING: "))]
    assert steps_of(tmp_path / "out")[-1] < 20
    if (weights := newest(tmp_path / "out") / "state_dict.pth").is_file():
        state = torch.load(weights, weights_only=True)["models_state_dict"][0]
        assert all(bool(value.isfinite().all()) for value in state.values())
