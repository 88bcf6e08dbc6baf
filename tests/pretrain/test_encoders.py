"""Masked language models of any family beside transformers' own; words, layouts, refusals."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForMaskedLM

from detalbert.corpus.examples import example_kind
from detalbert.corpus.reader import Corpus
from detalbert.corpus.writer import write_shards
from detalbert.engine.forward import Forward
from detalbert.engine.rows import pack_rows
from pretrain.encoders import build_encoder
from pretrain.examples import PretrainExamples
from pretrain.hparams import PretrainHParams, parse_pretrain_hparams
from pretrain.masking import read_vocabulary
from pretrain.objectives import label_losses, read_pretraining, score_row
from tests.fakes.masked import FAMILIES, make_tokenizer
from tests.fakes.text import LENGTH, text_config, tickets

CPU = torch.device("cpu")
WINDOWS = 12


def hparams_of(family: str, **keys: Any) -> PretrainHParams:
    values = {
        "model_config": copy.deepcopy(FAMILIES[family].keys),
        "max_seq_length": LENGTH,
        "masked_fraction": 0.3,
        "seed": 42,
        **keys,
    }
    return parse_pretrain_hparams(values)


def examples_of(family: str, folder: Path) -> PretrainExamples:
    """Return examples of made-up text by the family's tokenizer."""
    tokenizer = make_tokenizer(FAMILIES[family].tokenizer)
    config = text_config("generated", folder, validation_fraction=0.0)
    kind = example_kind(tokenizer, LENGTH)
    shards = write_shards(config, tokenizer, kind, processes=1)
    hparams = hparams_of(family).of_family(family)
    return PretrainExamples(Corpus(shards, "train", config), read_vocabulary(tokenizer), hparams)


@pytest.mark.parametrize("name", FAMILIES)
def test_loss_gradients_and_accuracy_are_the_librarys(name: str, tmp_path: Path) -> None:
    """Of windows of several lengths, padded as transformers has them, with its own loss."""
    family = FAMILIES[name]
    examples = examples_of(name, tmp_path)
    tokenizer = make_tokenizer(family.tokenizer)
    model = build_encoder(hparams_of(name), tokenizer)
    library = AutoModelForMaskedLM.from_config(
        copy.deepcopy(model.config), attn_implementation="eager"
    )
    library.load_state_dict(model.state_dict())
    forward = Forward(model.eval(), "fp32", CPU, read=read_pretraining)
    assert forward.padded != family.packed

    (row,) = pack_rows(examples, tickets(WINDOWS), 4096)
    logits = forward(row)
    loss = label_losses(row, *logits)[0].mean()
    loss.backward()

    windows = [examples.make(0, number) for number in range(WINDOWS)]
    labels = []
    for window in windows:
        column = torch.full((len(window["input_ids"]),), -100)
        column[window["masked"]] = torch.from_numpy(window["mlm_labels"])
        labels.append(column)
    ids = [torch.from_numpy(window["input_ids"]) for window in windows]
    expected = library.eval()(
        input_ids=pad_sequence(ids, batch_first=True, padding_value=tokenizer.pad_token_id),
        attention_mask=pad_sequence([torch.ones_like(i) for i in ids], batch_first=True),
        labels=pad_sequence(labels, batch_first=True, padding_value=-100),
    )
    expected.loss.backward()

    assert len(set(map(len, ids))) > 1
    assert logits[0].shape == (len(row["masked"]), model.config.vocab_size)
    torch.testing.assert_close(loss, expected.loss, rtol=0, atol=1e-5)
    gradients = {key: value.grad for key, value in model.named_parameters()}
    for key, parameter in library.named_parameters():
        torch.testing.assert_close(gradients[key], parameter.grad, rtol=1e-4, atol=1e-5)

    # Masked accuracy: the likeliest token of transformers' logits.
    guesses = expected.logits.argmax(-1)
    correct = sum(
        int((guess[: len(label)] == label).sum())
        for guess, label in zip(guesses, labels, strict=True)
    )
    sums = score_row(row, *[tensor.detach() for tensor in logits])
    assert sums[:, 1:].tolist() == [[correct, len(row["masked"])]]
