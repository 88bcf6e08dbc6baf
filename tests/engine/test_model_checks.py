"""What is wrong with a model is said before a window or a shard is written."""

import copy
import logging

import pytest
from transformers import AutoConfig, BertForMaskedLM

import train
from detalbert.hub import find_local
from tests.conftest import TINY, TINY_PRETRAINING
from tests.engine.trials import config_file
from tests.fakes.masked import FAMILIES, make_tokenizer
from tests.fakes.runs import refusal

BERT = FAMILIES["bert"].keys


def save_bert(folder, cls=BertForMaskedLM, **keys):
    """Save a small BERT with its tokenizer; the folder."""
    tokenizer = make_tokenizer("bert")
    values = {**copy.deepcopy(BERT), "vocab_size": len(tokenizer), **keys}
    config = AutoConfig.for_model(**values)
    cls(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def named(config, model, **data):
    """A copy of a config that goes on from a folder, with its tokenizer unless `data` has one."""
    config = copy.deepcopy(config)
    hparams = config["hyperparameters"]
    for key in ("model_config", "size", "span_fraction", "matching_start", "sentence_order"):
        hparams.pop(key, None)
    hparams["model"] = model
    config["data"].pop("tokenizer", None)
    config["data"].pop("vocab_size", None)
    config["data"].update(data)
    return config


@pytest.mark.parametrize("workload", ["fine-tuning", "pretraining"])
def test_windows_are_no_longer_than_a_named_model_s_positions(workload, tmp_path, capsys):
    content = TINY if workload == "fine-tuning" else TINY_PRETRAINING
    model = save_bert(tmp_path / "model")
    hparams = {"max_seq_length": 256, "max_tokens_per_forward": 512}
    cache = tmp_path / "cache"
    config = config_file(tmp_path, named(content, model), cache, **hparams)
    capsys.readouterr()  # transformers' bars
    assert refusal(capsys, config, tmp_path / "out") == (
        "train.py: error: hyperparameters.max_seq_length: 256 tokens, and the model has 130 "
        "positions; lower it, or name a model with more"
    )
    assert not cache.exists()


def test_other_tokens_than_the_weights_are_a_warning_before_the_windows(tmp_path, caplog):
    """Fine-tuning starts from random weights then."""
    model = save_bert(tmp_path / "model", max_position_embeddings=512)
    content = named(TINY, model, tokenizer=find_local("embedded/albert-tiny"))
    config = config_file(tmp_path, content, tmp_path / "cache", max_steps=1)
    with caplog.at_level(logging.INFO):
        assert train.main(["--config", str(config), "--output-dir", str(tmp_path / "out")]) == 0
    lines = [record.getMessage() for record in caplog.records]
    (warning,) = [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]
    assert warning.startswith(f"data.tokenizer: its tokens are not those of the weights of {model}")
    assert warning.endswith(
        "leave data.tokenizer out, or set hyperparameters.model_config in place of model"
    )
    encoding = next(line for line in lines if line.startswith("encoding the questions"))
    assert lines.index(warning) < lines.index(encoding)


@pytest.mark.parametrize("name", ["finetuning", "pretraining"])
def test_a_decoder_is_no_encoder(name, tmp_path, capsys):
    content = TINY if name == "finetuning" else TINY_PRETRAINING
    model = save_bert(tmp_path / "model", is_decoder=True)
    config = config_file(tmp_path, named(content, model), tmp_path / "cache")
    line = refusal(capsys, config, tmp_path / "out")
    assert f"{model}: config.json.is_decoder: true: each token would attend" in line
    assert "set it to false" in line
    assert not (tmp_path / "cache").exists()
