"""Pretraining end to end: its files, two processes, fine-tuning, bad input."""

import json
import re

import pytest
import torch
import yaml

from detalbert.corpus import api_text
from detalbert.engine import safe_load  # noqa: F401
from detalbert.engine.models import build_span_model
from detalbert.engine.safe_load import read_weights
from detalbert.settings.hparams import parse_hparams
from detalbert.squad.encoding import named_tokenizer
from pretrain.encoders import build_encoder
from pretrain.hparams import parse_pretrain_hparams
from tests.conftest import NO_DROPOUT, ROOT, TINY_PRETRAINING, settings
from tests.engine.trials import config_file
from tests.fakes.runs import change, newest, run


@pytest.fixture
def config(tmp_path, cache_dir):
    return config_file(tmp_path, TINY_PRETRAINING, cache_dir)


def test_a_run_writes_its_files_and_fine_tunes(config, tiny_config, tmp_path, capsys):
    out = tmp_path / "pretrained"
    change(config, span_fraction=0.5, beta2=0.98)
    assert run(config, out) == 0

    log = capsys.readouterr().err
    for text in ("documents", "lamb", "mlm_accuracy", "sop_accuracy", "metrics and checkpoints"):
        assert text in log
    best = json.loads((out / "metrics.json").read_text())["best"]
    assert {"mlm_accuracy", "sop_accuracy"} <= set(best)
    assert 0 <= best["span_accuracy"] < 100
    total = best["mlm_loss"] + best["sop_loss"] + best["span_loss"]
    assert best["loss"] == pytest.approx(total)
    assert not (out / "predictions.json").exists()

    folder = newest(out)
    saved = read_weights(folder / "state_dict.pth")
    state = torch.load(folder / "state_dict.pth", weights_only=True)
    group, *_ = state["optimizers_state_dict"][0]["param_groups"]
    assert group["betas"] == (0.9, 0.98)

    # The tokenizer is beside the weights.
    assert_starts_from(folder, saved)
    config_of_tuning = yaml.safe_load(tiny_config.read_text())
    del config_of_tuning["hyperparameters"]["model_config"]
    del config_of_tuning["data"]["tokenizer"]
    tiny_config.write_text(yaml.safe_dump(config_of_tuning))
    words = settings(**start_from(folder), doc_stride=16, max_query_length=24, max_steps=3)
    assert run(tiny_config, tmp_path / "squad", *words) == 0
    assert "from random weights" not in capsys.readouterr().err


def start_from(folder):
    return {"model": str(folder), "max_seq_length": 64, "seed": 0}


def assert_starts_from(folder, saved):
    """Assert that fine-tuning and pretraining start from all saved weights."""
    values = start_from(folder)
    tokenizer = named_tokenizer(str(folder))
    tuning = parse_hparams(
        {**values, "max_query_length": 16, "doc_stride": 8, "max_tokens_per_forward": 512}
    )
    span_model = build_span_model(tuning, tokenizer)
    assert "qa_outputs.weight" in span_model.state_dict()
    pretraining = parse_pretrain_hparams({**values, "span_fraction": 0.5})
    for model in (span_model, build_encoder(pretraining, tokenizer)):
        for name, value in model.state_dict().items():
            assert torch.equal(value, saved[name]), name


def test_the_local_config_learns_its_vocabulary_and_pretrains(tmp_path, monkeypatch, fork):
    # A part of the services' descriptions: all of them take minutes.
    services = [path for path in api_text.find_services() if path.parent.parent.name < "ap"]
    monkeypatch.setattr(api_text, "find_services", lambda: services)
    config = ROOT / "configs" / "pretrain_local.yaml"
    out = tmp_path / "out"
    words = settings(max_steps=3, validation_period=3, checkpoint_period=3)

    assert run(config, out, *words, "--set", f"data.cache_dir={tmp_path / 'cache'}") == 0

    tokenizer = named_tokenizer(str(newest(out)))
    assert 3000 < len(tokenizer) <= 4096
    assert "▁amazon" in tokenizer.get_vocab()


def weights_and_loss(out):
    """Return the newest weights of a run, and the loss of its best validation."""
    weights = read_weights(newest(out) / "state_dict.pth")
    metrics = json.loads((out / "metrics.json").read_text())
    return weights, metrics["best"]["loss"]


NO_DROPOUT_AT_ALL = {**NO_DROPOUT, "classifier_dropout_prob": 0.0}


def printed_losses(log):
    """Return the losses of the steps' lines of a run's log."""
    return [float(loss) for loss in re.findall(r"step \d+/\d+  loss (\S+)", log)]


def test_two_slots_and_small_micro_batches_compute_the_same(config, tmp_path, train, capfd):
    """The loss is a mean over the global batch's hidden tokens, pairs and spans, however dealt."""
    change(
        config,
        max_steps=4,
        reporting_period=1,
        optimizer="adamw",
        span_fraction=0.4,
        model_config=NO_DROPOUT_AT_ALL,
    )
    assert run(config, tmp_path / "one") == 0
    losses = printed_losses(capfd.readouterr().err)
    small = settings(max_tokens_per_forward=64)
    done = train("--config", config, "--output-dir", tmp_path / "two", *small, processes=2)
    assert done.returncode == 0, done.stderr
    assert len(losses) == 4
    assert printed_losses(done.stderr) == pytest.approx(losses, abs=2e-4)

    weights, loss = weights_and_loss(tmp_path / "one")
    dealt_weights, dealt_loss = weights_and_loss(tmp_path / "two")
    # A constant on all start logits changes no loss: this bias has rounding for a gradient.
    del weights["qa_outputs.bias"]
    for name, value in weights.items():
        torch.testing.assert_close(value, dealt_weights[name], rtol=1e-3, atol=1e-5)
    assert loss == pytest.approx(dealt_loss, rel=1e-4)


LINES = "data.text=./constraints.txt"
