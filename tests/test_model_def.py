"""The trial: segments reach the model, one batch is one step, what steps, precision, models."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_optimizer
import yaml
from determined import core

from data import SquadData, load_tokenizer
from detalbert.engine.models import build_model, starts_from_scratch
from detalbert.engine.precision import resolve_precision
from detalbert.errors import UserError
from detalbert.settings.hparams import DataConfig, HParams, parse_hparams
from detalbert.training.checkpoints import LocalCheckpoints
from detalbert.training.local import trial_context
from detalbert.training.metrics import RunMetrics
from detalbert.training.stopping import StopRequest
from detalbert.training.workload import Training
from model_def import FINE_TUNING, SquadTrial
from tests.conftest import NO_DROPOUT, ROOT
from tests.fakes.runs import change


@contextlib.contextmanager
def trial_of(config_file: Path, **changes: Any) -> Iterator[SquadTrial]:
    """The trial of a config, as `train.py` makes it, before its first step."""
    config: dict[str, Any] = yaml.safe_load(config_file.read_text())
    config["hyperparameters"].update(changes)
    hparams = parse_hparams(config["hyperparameters"])
    training = Training.load(FINE_TUNING, config, hparams)
    alone, config = core.DummyDistributedContext(), training.config
    metrics = RunMetrics(config_file.parent / "out", config["searcher"], hparams.global_batch_size)
    checkpoints = LocalCheckpoints(alone, metrics, {}, {})
    with trial_context(alone, checkpoints, metrics, StopRequest(alone), config, 0) as context:
        context._current_batch_idx = 0  # the trial loop counts it
        yield training.trial(context)


def one_step(trial: SquadTrial, step: int = 0) -> dict[str, torch.Tensor]:
    """Train on the first batch; returns the gradients that the optimizer saw."""
    batch = next(iter(trial.build_training_data_loader()))
    seen = {}

    clip = trial.gradients.clip

    def keep(limit: float) -> None:
        seen.update((name, p.grad.clone()) for name, p in trial.model.named_parameters())
        clip(limit)

    trial.gradients.clip = keep
    trial.model.train()
    trial.train_batch(batch, 0, step)
    assert seen
    return seen


def test_segments_reach_albert(tiny_config: Path) -> None:
    """transformers 5 gives no token_type_ids unless asked: both texts would be in segment 0."""
    with trial_of(tiny_config) as trial:
        seen = []
        embedding = trial.model.albert.embeddings.token_type_embeddings
        embedding.register_forward_hook(lambda module, given, out: seen.append(given[0]))
        batch = next(iter(trial.build_training_data_loader()))
        trial.meter.reset()
        trial.train_batch(batch, 0, 0)
        assert len(seen) == len(batch) > 1
        windows = trial.data.train.windows
        for row, segments in zip(batch, seen, strict=True):
            assert segments.shape == row["input_ids"][None].shape
            for window, first, last in zip(
                row["windows"], row["cu_seqlens"], row["cu_seqlens"][1:], strict=False
            ):
                context = int(windows.context_length[window]) + 1  # and its [SEP]
                expected = np.repeat([0, 1], [int(last - first) - context, context])
                assert segments[0, first:last].tolist() == expected.tolist()


def test_micro_batches_add_up_to_the_whole_batch(tiny_config: Path) -> None:
    change(tiny_config, model_config=NO_DROPOUT)
    gradients = []
    for budget in (256, 100_000):
        with trial_of(tiny_config, max_tokens_per_forward=budget) as trial:
            trial.meter.reset()
            gradients.append(one_step(trial))
            trial.meter.per_slot_reduce()
            assert trial.meter.windows == 8
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-7)


def test_what_steps_is_radam_at_the_scheduled_rate(tiny_config: Path) -> None:
    with trial_of(tiny_config, max_steps=100, lr_scale=0.75) as trial:
        assert isinstance(trial.optimizer, torch_optimizer.RAdam)
        assert (trial.steps, trial.warmup) == (100, 10)
        peak = 1e-3 * 8 / 48 * 0.75
        rates = []
        for _ in range(100):
            rates.append(trial.optimizer.param_groups[0]["lr"])
            trial.optimizer.step()  # torch warns of a schedule that steps first
            trial.schedule.step()
        assert max(rates) == rates[10] == pytest.approx(peak)
        assert rates[5] == pytest.approx(peak / 2) and rates[55] == pytest.approx(peak / 2)


def test_dropout_depends_on_seed_step_and_rank(tiny_config: Path) -> None:
    def gradients(step: int, rank: int, seed: int = 1) -> torch.Tensor:
        with trial_of(tiny_config, seed=seed) as trial:
            trial.meter.reset()
            batch = next(iter(trial.build_training_data_loader()))
            torch.rand(step + 7)  # whatever the generator went through before
            trial.rank = rank
            trial.train_batch(batch, 0, step)
            return trial.gradients.flat.clone()

    assert torch.equal(gradients(3, 0), gradients(3, 0))
    assert not torch.equal(gradients(3, 0), gradients(4, 0))
    assert not torch.equal(gradients(3, 0), gradients(3, 1))
    assert not torch.equal(gradients(3, 0), gradients(3, 0, seed=2))


def test_precision_on_a_cpu(tiny_config: Path) -> None:
    cpu = torch.device("cpu")
    assert resolve_precision("auto", cpu) is torch.float32
    assert resolve_precision("bf16", cpu) is torch.bfloat16
    with pytest.raises(UserError, match="hyperparameters.precision: fp16 needs a GPU"):
        resolve_precision("fp16", cpu)
    with trial_of(tiny_config, precision="bf16") as trial:
        trial.meter.reset()
        gradients = one_step(trial)
        assert all(g.dtype is torch.float32 for g in gradients.values())
        assert all(p.dtype is torch.float32 for p in trial.model.parameters())


def test_weights_come_from_the_folder() -> None:
    hparams = HParams(model="embedded/albert-tiny", max_seq_length=192)
    tokenizer = SquadData.load(
        {"train": "generated", "validation": "generated", "max_train_examples": 4,
         "max_validation_examples": 4}, hparams
    ).tokenizer  # fmt: skip
    assert not starts_from_scratch(hparams, tokenizer)
    one, other = (build_model(HParams(model=hparams.model, seed=s), tokenizer) for s in (1, 2))
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        drawn = name == "qa_outputs.weight"  # the span head alone is drawn from the seed
        assert torch.equal(a, b) != drawn, name


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_model_folder_without(missing: str, tmp_path: Path) -> None:
    shipped = ROOT / "embedded" / "albert-tiny"
    tokenizer = load_tokenizer(DataConfig("g", "g", tokenizer=str(shipped)), HParams(model="x"))
    folder = tmp_path / "model"
    shutil.copytree(shipped, folder)
    (folder / missing).unlink()
    with pytest.raises(UserError, match="hyperparameters.model: .* does not load"):
        build_model(HParams(model=str(folder)), tokenizer)


def test_a_model_too_short_or_of_another_kind() -> None:
    hparams = HParams(model="embedded/albert-tiny", max_seq_length=512)
    tokenizer = load_tokenizer(DataConfig("g", "g"), hparams)
    with pytest.raises(UserError, match="hyperparameters.max_seq_length: 512 tokens"):
        build_model(hparams, tokenizer)
    mpnet = {"model_type": "mpnet", "hidden_size": 32, "num_attention_heads": 2,
             "num_hidden_layers": 1, "intermediate_size": 32}  # fmt: skip
    with pytest.raises(UserError, match="cannot run packed rows"):
        build_model(HParams(model_config=mpnet, max_seq_length=128), tokenizer)
