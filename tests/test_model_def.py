"""The trial: what steps, dropout and order, answers of all slots, models."""

import dataclasses
import json

import numpy as np
import pytest
import torch
import torch_optimizer

from data import load_tokenizer
from detalbert.engine.models import build_span_model, starts_from_scratch
from detalbert.engine.order import TrainOrder
from detalbert.hub import PRETRAINED
from detalbert.settings.hparams import DataConfig, HParams
from detalbert.squad.answers import merge_answers
from detalbert.squad.metrics import score
from detalbert.training.folder import SCORES
from model_def import AnswerReducer, SquadTrial
from tests.engine.trials import first_batch, trial_of
from tests.fakes.runs import official


def test_what_steps_is_radam_at_the_scheduled_rate(tiny_config):
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


def test_dropout_and_order_depend_on_seed_step_and_rank(tiny_config):
    def gradients(step: int, rank: int, seed: int = 1) -> torch.Tensor:
        with trial_of(tiny_config, seed=seed) as trial:
            batch = first_batch(trial)
            torch.rand(step + 7)  # whatever the generator went through before
            trial.rank = rank
            trial.train_batch(batch, 0, step)
            return trial.gradients.flat.clone()

    one, *others = gradients(3, 0), gradients(4, 0), gradients(3, 1), gradients(3, 0, seed=2)
    assert torch.equal(one, gradients(3, 0))
    assert not any(torch.equal(one, other) for other in others)
    with trial_of(tiny_config, seed=3) as trial:  # windows are dealt in the order of the seed
        trial.slots, trial.rank = 2, 1
        order = TrainOrder(trial.data.train.windows.lengths, 8, 2, seed=3)
        numbers = [row["windows"].tolist() for row in first_batch(trial)]
        assert sorted(sum(numbers, [])) == sorted(order.share(0, 1).tolist())


def validated(trial: SquadTrial) -> list[tuple[list, list]]:
    trial.model.eval()
    parts = []
    with torch.no_grad():
        for batch in trial.build_validation_data_loader():
            trial.scores.reset()
            assert trial.evaluate_batch(batch, 0) == {}
            parts.append(trial.scores.per_slot_reduce())
    return parts


def test_the_chief_scores_the_answers_of_all_slots(tiny_config, tmp_path):
    with trial_of(tiny_config, null_score_diff_threshold=-1.0) as trial:
        parts, reducer, split = validated(trial), trial.scores, trial.data.validation
        assert len(parts) > 2 and trial.validated()[0] is None
        metrics = reducer.cross_slot_reduce(parts)
        spans = [span for part in parts for span in part[0]]
        wanted = merge_answers(split.examples, split.windows, spans, -1.0)
        assert trial.validated() == (wanted, reducer.metrics)
        loss = metrics.pop("loss")
        assert official(metrics) == score(split.examples, *wanted, -1.0)
        others = merge_answers(split.examples, split.windows, spans)
        assert official(metrics) != score(split.examples, *others)
        losses = np.concatenate([part[1][0] for part in parts])
        assert loss == pytest.approx(losses.mean(), rel=1e-6) and len(losses) == len(split.windows)
        # However rows are dealt, the bits are the same; what is kept is not what is handed on.
        assert reducer.cross_slot_reduce(parts[::-1])["loss"] == loss == reducer.metrics["loss"]

        trial.on_checkpoint_write_end(str(tmp_path / "scored"))
        assert json.loads((tmp_path / "scored" / SCORES).read_text()) == reducer.metrics
        answers = json.loads((tmp_path / "scored" / "predictions.json").read_text())
        assert answers == wanted.predictions and (tmp_path / "scored" / PRETRAINED).is_dir()
        next(trial.losses(first_batch(trial)))  # the weights move on
        assert trial.validated()[0] is None
        trial.on_checkpoint_write_end(str(tmp_path / "later"))
        assert [path.name for path in (tmp_path / "later").iterdir()] == [PRETRAINED]

        other = AnswerReducer(trial.hparams, split, rank=1)
        assert other.cross_slot_reduce(parts) == {} and other.latest is None


def test_the_span_head_alone_is_drawn_from_the_seed():
    hparams = HParams(model="embedded/albert-tiny", max_seq_length=192)
    tokenizer = load_tokenizer(DataConfig("generated", "generated"), hparams)
    assert not starts_from_scratch(hparams, tokenizer)
    seeds = (dataclasses.replace(hparams, seed=seed) for seed in (1, 2))
    one, other = (build_span_model(each, tokenizer) for each in seeds)
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b) != (name == "qa_outputs.weight"), name
