"""Pretraining end to end: its files, two processes, fine-tuning, bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from detalbert.corpus import api_text
from detalbert.engine import safe_load  # noqa: F401 (lets torch.load read checkpoints)
from detalbert.engine.models import build_span_model
from detalbert.engine.safe_load import read_weights
from detalbert.settings.hparams import parse_hparams
from detalbert.squad.tokenizer import named_tokenizer
from pretrain.hparams import parse_pretrain_hparams
from pretrain.objectives import label_losses
from pretrain.trial import build_albert
from tests.conftest import NO_DROPOUT, ROOT, TINY_PRETRAINING, Train, settings
from tests.engine.trials import config_file, first_batch, trial_of
from tests.fakes.runs import change, newest, refusal, run


@pytest.fixture
def config(tmp_path: Path, cache_dir: Path) -> Path:
    return config_file(tmp_path, TINY_PRETRAINING, cache_dir)


def test_a_run_writes_its_files_and_fine_tunes(
    config: Path, tiny_config: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "pretrained"
    change(config, span_fraction=0.5, beta2=0.98)
    assert run(config, out) == 0
    shown = capsys.readouterr().err
    for text in ("documents", "lamb", "mlm_accuracy", "sop_accuracy", "metrics and checkpoints"):
        assert text in shown
    best = json.loads((out / "metrics.json").read_text())["best"]
    assert 0 < best["mlm_baseline"] < 20 and {"mlm_accuracy", "sop_accuracy"} <= set(best)
    parts = [best[f"{name}_loss"] for name in ("mlm", "sop", "span")]
    assert best["loss"] == pytest.approx(sum(parts)) and 0 <= best["span_accuracy"] < 100
    assert not (out / "predictions.json").exists()
    folder = newest(out)
    saved = read_weights(folder / "state_dict.pth")
    state = torch.load(folder / "state_dict.pth", weights_only=True)
    assert state["optimizers_state_dict"][0]["param_groups"][0]["betas"] == (0.9, 0.98)

    # Fine-tuning and pretraining start from all of it, the tokenizer beside it.
    values: dict[str, Any] = {"model": str(folder), "max_seq_length": 64, "seed": 0}
    tuning = {"max_query_length": 16, "doc_stride": 8, "max_tokens_per_forward": 512}
    tokenizer = named_tokenizer(str(folder))
    model = build_span_model(parse_hparams({**values, **tuning}), tokenizer)
    assert "qa_outputs.weight" in model.state_dict()
    on = build_albert(parse_pretrain_hparams({**values, "span_fraction": 0.5}), tokenizer)
    for loaded in (model.state_dict(), on.state_dict()):
        assert all(torch.equal(value, saved[name]) for name, value in loaded.items())
    config_values = yaml.safe_load(tiny_config.read_text())
    del config_values["hyperparameters"]["model_config"], config_values["data"]["tokenizer"]
    tiny_config.write_text(yaml.safe_dump(config_values))
    words = settings(**values, doc_stride=16, max_query_length=24, max_steps=3)
    assert run(tiny_config, tmp_path / "squad", *words) == 0
    assert "from random weights" not in capsys.readouterr().err


def test_the_local_config_learns_its_vocabulary_and_pretrains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: None
) -> None:
    services = [path for path in api_text.find_services() if path.parent.parent.name < "ap"]
    monkeypatch.setattr(api_text, "find_services", lambda: services)
    words = settings(max_steps=3, validation_period=3, checkpoint_period=3)
    cache = ["--set", f"data.cache_dir={tmp_path / 'cache'}"]
    assert run(ROOT / "configs" / "pretrain_local.yaml", tmp_path / "out", *words, *cache) == 0
    folder = newest(tmp_path / "out")
    tokenizer = named_tokenizer(str(folder))
    assert 3000 < len(tokenizer) <= 4096 and "▁amazon" in tokenizer.get_vocab()


def test_two_slots_and_small_micro_batches_compute_the_same(
    config: Path, tmp_path: Path, train: Train
) -> None:
    """The loss is a mean over the global batch's hidden tokens, pairs and spans, however dealt."""
    shape = {**NO_DROPOUT, "classifier_dropout_prob": 0.0}
    change(config, max_steps=4, optimizer="adamw", span_fraction=0.4, model_config=shape)
    assert run(config, tmp_path / "one") == 0
    small = settings(max_tokens_per_forward=64)
    done = train("--config", config, "--output-dir", tmp_path / "two", *small, processes=2)
    assert done.returncode == 0, done.stderr
    one, two = (read_weights(newest(tmp_path / n) / "state_dict.pth") for n in ("one", "two"))
    # A constant on all start logits changes no loss: this bias has rounding for a gradient.
    del one["qa_outputs.bias"]
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=1e-3, atol=1e-5)
    scores = [json.loads((tmp_path / n / "metrics.json").read_text()) for n in ("one", "two")]
    assert scores[0]["best"]["loss"] == pytest.approx(scores[1]["best"]["loss"], rel=1e-4)


def test_a_steps_loss_is_the_sum_of_the_means_of_its_parts(config: Path) -> None:
    shape = {**NO_DROPOUT, "classifier_dropout_prob": 0.0}
    change(config, max_tokens_per_forward=4096, model_config=shape)
    with trial_of(config) as trial:
        (row,) = rows = first_batch(trial)
        tokens, order = label_losses(row, *trial.forward(row))
        pairs = (row["sop_labels"] >= 0).sum()
        wanted = tokens.mean() + order.sum() / pairs
        torch.testing.assert_close([*trial.losses(rows)], [wanted])


LINES = "data.text=./constraints.txt"
BAD: dict[str, Any] = {
    "no such text": (["data.text=./none.txt"], "data.text: none.txt: no such file"),
    "all held out": ([LINES, "data.validation_fraction=0.9999"], "data.text: no text in ./constr"),
    "none held out": ([LINES, "data.validation_fraction=0"], "constraints.txt is held out; set"),
    "no shards": (["data.text=null", "data.shards=."], "no index.json there"),
    "metric": (["searcher.metric=f1"], "validation gives no 'f1'"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_one_line(fault: str, config: Path, tmp_path: Path, capsys: Any) -> None:
    changes, said = BAD[fault]
    out = tmp_path / "out"
    words = (word for change in changes for word in ("--set", change))
    assert said in refusal(capsys, config, out, *words)
    assert not list(out.glob("checkpoints/*")) and not (out / "config.yaml").exists()
