"""The trial: what steps, dropout and order, answers of all slots, models."""

import dataclasses
import json

import numpy as np
import pytest
import torch
import torch_optimizer

import model_def
from data import load_tokenizer
from detalbert.engine.models import build_span_model, starts_from_scratch
from detalbert.engine.order import TrainOrder
from detalbert.hub import PRETRAINED
from detalbert.settings.hparams import DataConfig, HParams
from detalbert.squad import calibration
from detalbert.squad.answers import merge_answers
from detalbert.squad.metrics import score
from detalbert.training.folder import SCORES
from model_def import AnswerReducer
from tests.engine.trials import first_batch, trial_of
from tests.fakes.runs import official


def test_what_steps_is_radam_at_the_scheduled_rate(tiny_config):
    with trial_of(tiny_config, max_steps=100, lr_scale=0.75) as trial:
        assert isinstance(trial.optimizer, torch_optimizer.RAdam)
        assert trial.steps == 100
        assert trial.warmup == 10
        rates = []
        for _ in range(100):
            rates.append(trial.optimizer.param_groups[0]["lr"])
            trial.optimizer.step()  # torch warns of a schedule that steps first
            trial.schedule.step()

    peak = 1e-3 * 8 / 48 * 0.75
    assert max(rates) == rates[10] == pytest.approx(peak)
    assert rates[5] == pytest.approx(peak / 2)
    assert rates[55] == pytest.approx(peak / 2)


def test_dropout_depends_on_seed_step_and_rank(tiny_config):
    def gradients(step=3, rank=0, seed=1):
        with trial_of(tiny_config, seed=seed) as trial:
            batch = first_batch(trial)
            torch.rand(step + 7)  # whatever the generator went through before
            trial.data_rank = rank
            trial.train_batch(batch, 0, step)
            return trial.gradients.flat.clone()

    expected = gradients()
    assert torch.equal(gradients(), expected)
    assert not torch.equal(gradients(step=4), expected)
    assert not torch.equal(gradients(rank=1), expected)
    assert not torch.equal(gradients(seed=2), expected)


def test_windows_are_dealt_in_the_order_of_the_seed(tiny_config):
    with trial_of(tiny_config, seed=3) as trial:
        trial.slots = 2
        trial.rank = trial.data_rank = 1
        order = TrainOrder(trial.data.train.windows.lengths, 8, 2, seed=3)
        windows = []
        for row in first_batch(trial):
            windows += row["windows"].tolist()
    assert sorted(windows) == sorted(order.share(0, 1).tolist())


@torch.no_grad()
def validate(trial):
    """Validate as many slots would, each with one batch; what each has for the chief."""
    trial.model.eval()
    slots = []
    for batch in trial.build_validation_data_loader():
        trial.reducer.reset()
        assert trial.evaluate_batch(batch, 0) == {}
        slots.append(trial.reducer.per_slot_reduce())
    assert len(slots) > 2
    return slots


def merge(trial, slots, threshold):
    """The answers of all slots at a threshold."""
    candidates = []
    for slot_candidates, _ in slots:
        candidates += slot_candidates
    split = trial.data.validation
    return merge_answers(split.examples, split.windows, candidates, threshold)


def test_the_chief_scores_the_answers_of_all_slots(tiny_config):
    with trial_of(tiny_config, null_score_diff_threshold=-1.0) as trial:
        slots = validate(trial)
        examples = trial.data.validation.examples
        assert trial.validated()[0] is None

        metrics = trial.reducer.cross_slot_reduce(slots)
        trial.history.record(metrics)

        answers = merge(trial, slots, -1.0)
        latest, scores = trial.validated()
        assert latest._replace(probabilities={}) == answers
        assert scores == trial.reducer.metrics
        loss = metrics.pop("loss")
        assert official(metrics) == score(examples, answers.spans, answers.null_odds, -1.0)
        written = score(examples, answers.predictions, answers.null_odds, -1.0)
        same = [key for key in written if not key.startswith("best_")]
        assert [metrics[key] for key in same] == [written[key] for key in same]
        at_zero = merge(trial, slots, 0.0)
        assert official(metrics) != score(examples, at_zero.spans, at_zero.null_odds)
        losses = np.concatenate([slot_losses[0] for _, slot_losses in slots])
        assert len(losses) == len(trial.data.validation.windows)
        assert loss == pytest.approx(losses.mean(), rel=1e-6)
        # However rows are dealt, the bits are the same; what is kept is not what is handed on.
        assert trial.reducer.cross_slot_reduce(slots[::-1])["loss"] == loss
        assert trial.reducer.metrics["loss"] == loss

        other_rank = AnswerReducer(trial.hparams, trial.data.validation, rank=1)
        assert other_rank.cross_slot_reduce(slots) == {}
        assert other_rank.latest is None


def test_answers_are_scored_in_the_language_of_the_data(tiny_config, monkeypatch):
    languages = []

    def recorded(function):
        def call(*args, language, **kwargs):
            languages.append(language)
            return function(*args, language=language, **kwargs)

        return call

    monkeypatch.setattr(model_def, "score", recorded(score))
    monkeypatch.setattr(
        model_def.calibration, "fit_calibration", recorded(calibration.fit_calibration)
    )
    with trial_of(tiny_config) as trial:
        slots = validate(trial)
        split = trial.data.validation
        config = dataclasses.replace(split.config, language="zh")
        trial.reducer.split = dataclasses.replace(split, config=config)
        trial.reducer.cross_slot_reduce(slots)
    assert languages == ["zh", "zh"]


def test_answers_are_in_the_checkpoint_of_their_weights(tiny_config, tmp_path):
    with trial_of(tiny_config) as trial:
        slots = validate(trial)
        trial.history.record(trial.reducer.cross_slot_reduce(slots))
        answers, _ = trial.validated()
        validated = tmp_path / "scored"
        trial.on_checkpoint_write_end(str(validated))
        scores = {**trial.reducer.metrics, "language": "en"}
        assert json.loads((validated / SCORES).read_text()) == scores
        assert json.loads((validated / "predictions.json").read_text()) == answers.predictions
        assert (validated / PRETRAINED).is_dir()

        trial.train_batch(first_batch(trial), 0, 0)  # the weights move on
        assert trial.validated()[0] is None
        later = tmp_path / "later"
        trial.on_checkpoint_write_end(str(later))
        assert [path.name for path in later.iterdir()] == [PRETRAINED]


def test_the_span_head_alone_is_drawn_from_the_seed():
    hparams = HParams(model="embedded/albert-tiny", max_seq_length=192)
    tokenizer = load_tokenizer(DataConfig("generated", "generated"), hparams)
    assert not starts_from_scratch(hparams, tokenizer)
    model = build_span_model(dataclasses.replace(hparams, seed=1), tokenizer)
    other_model = build_span_model(dataclasses.replace(hparams, seed=2), tokenizer)
    other_weights = dict(other_model.named_parameters())
    for name, weight in model.named_parameters():
        drawn = name == "qa_outputs.weight"
        assert torch.equal(weight, other_weights[name]) != drawn, name
