"""The step: what the optimizer sees of a batch, what is told, and what the parts are given."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from detalbert.engine import trial as trial_module
from detalbert.engine.evaluation import row_losses
from detalbert.engine.forward import Forward
from detalbert.engine.trial import read_experiment
from detalbert.errors import UserError
from detalbert.settings.hparams import parse_hparams
from tests.conftest import NO_DROPOUT
from tests.engine.trials import first_batch, one_step, trial_of
from tests.fakes.runs import change


def norm(gradients: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([g.flatten() for g in gradients.values()]).norm())


def test_the_optimizer_sees_the_gradients_of_the_mean_loss(tiny_config: Path) -> None:
    change(tiny_config, model_config=NO_DROPOUT)
    with trial_of(tiny_config, max_grad_norm=0, max_tokens_per_forward=256) as trial:
        seen = one_step(trial)
        batch = first_batch(trial)
        losses = torch.cat([row_losses(row, *trial.forward(row)) for row in batch])
        assert len(batch) > 1 and len(losses) == 8
        wanted = torch.autograd.grad(losses.mean(), list(trial.model.parameters()))
        torch.testing.assert_close([*seen.values()], [*wanted], rtol=1e-4, atol=1e-7)
        found = trial.meter.per_slot_reduce()
        assert found["loss"] == pytest.approx(losses.sum().item(), rel=1e-5)
        assert found["tokens"] == sum(len(row["input_ids"]) for row in batch)
        assert found["windows"] == 8


def test_a_step_starts_from_no_gradients_and_clips_them(tiny_config: Path) -> None:
    """The rate of step 0 is 0, so the weights stay and the second step must see the same."""
    norms = []
    for limit in (0, 1e9, 1e-3):
        with trial_of(tiny_config, max_grad_norm=limit) as trial:
            one, again = one_step(trial), one_step(trial)
            assert all(torch.equal(one[name], again[name]) for name in one)
            norms.append(norm(one))
    assert norms[0] == norms[1] > 1e-2 and norms[2] == pytest.approx(1e-3, rel=1e-3)


def test_half_precision_weights_follow_at_every_step_and_validation(tiny_config: Path) -> None:
    with trial_of(tiny_config, precision="bf16") as trial:
        rows, held_out = first_batch(trial), next(iter(trial.build_validation_data_loader()))
        trial.scores.reset()
        (linear, *_) = trial.forward.linears
        for training in (True, False):
            with torch.no_grad():
                linear.weight.mul_(2)
            assert not torch.equal(linear.copy, linear.weight.bfloat16())
            with torch.set_grad_enabled(training):
                trial.train_batch(rows, 0, 0) if training else trial.evaluate_batch(held_out, 0)
            assert torch.equal(linear.copy, linear.weight.bfloat16())


def test_what_determined_is_told(tiny_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with trial_of(tiny_config) as trial:
        context = trial.context
        found = context._wrapped_reducers
        wrapped = {type(w.reducer).__name__: (w.for_training, w.for_validation) for w in found}
        assert wrapped == {"TrainingMeter": (True, False), "AnswerReducer": (False, True)}
        assert context.experimental._data_repro_checks_disabled
        assert not context.experimental._auto_to_device
        model = nn.Linear(1, 1)
        assert context._PyTorchDistributedDataParallel(model) is model  # no wrapper
        assert not trial.scaler.is_enabled()  # fp16 alone wants one
        names = {"handover", "progress", "trial", "early_stopping", "profile"}
        assert trial.build_callbacks().keys() == names
        assert trial.progress.chief and (trial.progress.steps, trial.progress.done) == (12, 0)
        batch = first_batch(trial)
        assert trial.get_batch_length(batch) == 8
        trial.model.config.model_type = "modernbert"  # nobody knows its FLOPs
        assert trial.row_flops(batch[0]) is None
        for rate in (0.0, 0.5):
            trial.optimizer.param_groups[0]["lr"] = rate
            assert trial.train_batch(batch, 0, 0) == {"learning_rate_1e6": 1e6 * rate}


def test_what_loaders_and_the_compiler_are_given(tiny_config: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(trial_module, "default_workers", lambda processes: 10 + processes)
    with trial_of(tiny_config, num_workers=3) as trial:
        monkeypatch.setattr(trial.context, "get_initial_batch", lambda: 5)
        trial.rank = 1
        loader = trial.train_loader(lambda tokens: [tokens], range(8))
        assert loader.dataset.dataset == [512]  # in one that sends its errors
        assert (loader.num_workers, loader.pin_memory) == (3, False)
        assert vars(loader.sampler) == {"order": range(8), "slot": 1, "first_step": 5}
    asked = []
    monkeypatch.setattr(Forward, "compile_layers", lambda self, *sizes: asked.append(sizes))
    for budget in (512, "auto"):
        with trial_of(tiny_config, max_tokens_per_forward=budget, num_workers=None) as trial:
            asked.append(trial.max_tokens)
            assert trial.workers() == 11
    assert asked == [(512, 192), 512, (2 * 192, 192), 4096]


def test_a_profile_ends_with_the_run_at_the_latest(
    tiny_config: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    caplog.set_level("INFO", "detalbert")
    with trial_of(tiny_config, profile_steps=9) as trial:
        assert trial.profile.running  # 9 steps and 3 of warm-up: all 12
        monkeypatch.setattr(trial.context, "get_initial_batch", lambda: 1)
        assert trial._prepare_profile().running is None
        assert "no profile: 11 steps are left, 12 are needed" in caplog.text
        trial.rank = 1
        monkeypatch.undo()
        assert trial._prepare_profile().running is None
    wrong = {10: "10 steps after 3 of warm-up are more than the run's 12", -1: "must be at least 0"}
    for steps, said in wrong.items():
        with pytest.raises(UserError, match=said):
            trial_of(tiny_config, profile_steps=steps).__enter__()


def test_a_trial_reads_its_config_from_determined() -> None:
    for named, seed in ((None, 77), (5, 5)):
        context = SimpleNamespace(get_hparams=lambda named=named: {"model": "m", "seed": named})
        context.get_data_config, context.get_trial_seed = lambda: {"train": "x"}, lambda: 77
        found = read_experiment(context, parse_hparams, lambda data, h: ("loaded", data, h))
        wanted = parse_hparams({"model": "m", "seed": seed})
        assert found == (wanted, ("loaded", {"train": "x"}, wanted))
