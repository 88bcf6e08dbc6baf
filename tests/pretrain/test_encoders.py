"""Masked language models of any family beside transformers' own; words, layouts, refusals."""

import copy

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForMaskedLM

from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.read import Corpus
from detalbert.corpus.write import write_shards
from detalbert.engine.forward import Forward
from detalbert.engine.rows import pack_rows
from detalbert.errors import UserError
from pretrain.encoders import build_encoder
from pretrain.examples import PretrainExamples
from pretrain.hparams import parse_pretrain_hparams
from pretrain.masking import read_vocabulary
from pretrain.objectives import label_losses, read_pretraining, score_row
from tests.fakes.masked import FAMILIES, make_tokenizer
from tests.fakes.text import LENGTH, text_config, tickets

CPU = torch.device("cpu")
WINDOWS = 12


def hparams_of(family, **keys):
    values = {
        "model_config": copy.deepcopy(FAMILIES[family].keys),
        "max_seq_length": LENGTH,
        "masked_fraction": 0.3,
        "seed": 42,
        **keys,
    }
    return parse_pretrain_hparams(values)


def examples_of(family, folder):
    """Return examples of made-up text by the family's tokenizer."""
    tokenizer = make_tokenizer(FAMILIES[family].tokenizer)
    config = text_config("generated", folder, validation_fraction=0.0)
    shards = write_shards(config, ExampleKind(tokenizer, LENGTH), processes=1)
    hparams = hparams_of(family).of_family(family)
    return PretrainExamples(Corpus(shards, "train", config), read_vocabulary(tokenizer), hparams)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_loss_gradients_and_accuracy_are_the_librarys(name, tmp_path):
    """Of windows of several lengths, padded as transformers has them, with its own loss."""
    family = FAMILIES[name]
    examples = examples_of(name, tmp_path)
    tokenizer = make_tokenizer(family.tokenizer)
    model = build_encoder(hparams_of(name), tokenizer)
    library = AutoModelForMaskedLM.from_config(
        copy.deepcopy(model.config), attn_implementation="eager"
    )
    library.load_state_dict(model.state_dict())
    forward = Forward(model.eval(), "fp32", CPU, read_logits=read_pretraining)
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


TEXT = "The harbour of Zanto was closed. Ships waited, and nobody unloaded the salt! It rained."


@pytest.mark.parametrize("kind", ["roberta", "bert", "xlm"])
def test_a_window_has_the_tokens_of_its_text(kind, tmp_path):
    """A sentence is encoded with the space before it, where a token holds it."""
    path = tmp_path / "text.txt"
    path.write_text(f"{TEXT}\n{TEXT.upper()}\n")
    tokenizer = make_tokenizer(kind)
    config = text_config(path, tmp_path, validation_fraction=0.0)
    shards = write_shards(config, ExampleKind(tokenizer, 512), processes=1)
    corpus = Corpus(shards, "train", config)
    for number, text in enumerate([TEXT, TEXT.upper()]):
        tokens, sentences = corpus.example(number)
        assert tokens.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert len(sentences) == 3


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_windows_are_laid_out_as_the_tokenizer_does(family, tmp_path):
    """One segment, and, for an ALBERT with this tokenizer, pairs; none is too long."""
    tokenizer = make_tokenizer(family)
    examples = examples_of(family, tmp_path)
    order = parse_pretrain_hparams({"size": "tiny", "max_seq_length": LENGTH, "seed": 42})
    pairs = PretrainExamples(examples.corpus, examples.vocabulary, order.of_family("albert"))
    for number in range(40):
        for made, length in ((examples, examples.lengths), (pairs, pairs.lengths)):
            example = made.make(0, number)
            ids = example["input_ids"]
            assert len(ids) == length[number] <= LENGTH
            assert (example["token_type_ids"] > 0).any() == (example["sop_labels"] >= 0)

            # What transformers' own call lays out of the same texts.
            ids = ids.copy()
            ids[example["masked"]] = example["mlm_labels"]
            special = np.isin(ids, [tokenizer.cls_token_id, tokenizer.sep_token_id])
            texts = [
                ids[place : place + size] for place, size in zip(*_runs(~special), strict=True)
            ]
            assert len(texts) == 1 + (example["sop_labels"] >= 0)
            layout = tokenizer.backend_tokenizer.post_process(
                *[_encoding(tokenizer, text) for text in texts]
            )
            assert layout.ids == ids.tolist()


def _runs(mask):
    """Return the first place and the length of each run of True."""
    edges = np.diff(mask.astype(int), prepend=0, append=0)
    begins = np.flatnonzero(edges == 1)
    return begins, np.flatnonzero(edges == -1) - begins


def test_weights_that_lack_a_layer_are_refused_and_a_head_is_drawn(tmp_path):
    tokenizer = make_tokenizer("bert")
    model = build_encoder(hparams_of("bert"), tokenizer)
    weights = model.state_dict()
    head = {name for name in weights if name.startswith("cls.predictions.transform")}
    model.save_pretrained(
        tmp_path / "a", state_dict={key: weights[key] for key in weights if key not in head}
    )
    named = hparams_of("bert", model_config=None, model=str(tmp_path / "a"))
    again = build_encoder(named, tokenizer).state_dict()
    for name, weight in build_encoder(named, tokenizer).state_dict().items():
        assert torch.equal(weight, again[name])  # drawn from the seed
        if name not in head:
            assert torch.equal(weight, weights[name])

    layer = "bert.encoder.layer.1.output.dense.weight"
    model.save_pretrained(
        tmp_path / "b", state_dict={key: weights[key] for key in weights if key != layer}
    )
    named = hparams_of("bert", model_config=None, model=str(tmp_path / "b"))
    with pytest.raises(UserError, match=f"its weights lack '{layer}' and 0 more; give another"):
        build_encoder(named, tokenizer)


def _encoding(tokenizer, ids):
    """Return ids as an encoding of tokenizers, which has no way to make one but from words."""
    backend = Tokenizer(WordLevel({str(number): number for number in range(len(tokenizer))}))
    return backend.encode([str(number) for number in ids], is_pretokenized=True)
