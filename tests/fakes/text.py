"""Made-up text, its shards, examples of them, and a model for these."""

import hashlib
from pathlib import Path

import numpy as np
import torch

from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.read import Corpus
from detalbert.corpus.write import write_shards
from detalbert.engine.forward import Forward
from detalbert.squad.encoding import named_tokenizer
from pretrain.encoders import build_encoder
from pretrain.examples import PretrainExamples
from pretrain.hparams import ALBERT, parse_pretrain_hparams, parse_text_config
from pretrain.masking import Vocabulary, read_vocabulary
from pretrain.objectives import read_pretraining
from tests.fakes.questions import shipped

TOKENIZER = "embedded/albert-tiny"
LENGTH = 96

# Tokens 0..4 are special, 5..14 start a word, 15..24 continue one.
NUMBERS = np.arange(25)
VOCABULARY = Vocabulary(
    starts_word=NUMBERS < 15,
    lettered=NUMBERS > 4,
    ordinary=NUMBERS[5:],
    mask=4,
    prefix=np.array([2]),
    middle=np.array([3]),
    suffix=np.array([3]),
)


def contexts(paragraphs):
    document = shipped("train", paragraphs)
    texts = []
    for article in document["data"]:
        texts += [paragraph["context"] for paragraph in article["paragraphs"]]
    return texts


def text_config(text, folder, **more):
    values = {
        "text": text if isinstance(text, list) else str(text),
        "tokenizer": TOKENIZER,
        "cache_dir": str(folder / "cache"),
    }
    return parse_text_config({**values, **more})


def write(text, folder, processes=1, **more):
    config = text_config(text, folder, **more)
    kind = ExampleKind(named_tokenizer(TOKENIZER), LENGTH)
    return Path(write_shards(config, kind, processes=processes))


def sums(folder):
    """Return the SHA-256 of every file that readers read."""
    files = [*folder.glob("*.npy"), *folder.glob("tokenizer/*"), folder / "index.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def tiny(**hparams):
    values = {"size": "tiny", "max_seq_length": LENGTH, "seed": 42, **hparams}
    return parse_pretrain_hparams(values).of_family(ALBERT)


def read_examples(address, config, **hparams):
    """Return the training examples of shards."""
    vocabulary = read_vocabulary(named_tokenizer(TOKENIZER))
    return PretrainExamples(Corpus(str(address), "train", config), vocabulary, tiny(**hparams))


def make_examples(folder, text=None, **hparams):
    """Return examples of `text`; default: twenty documents of words of one letter each."""
    path = folder / "text.txt"
    path.write_text("\n".join(_document(letter) for letter in "abcdefghijklmnopqrst"))
    source = text or path
    shards = write(source, folder, validation_fraction=0.0)
    config = text_config(source, folder, validation_fraction=0.0)
    return read_examples(shards, config, **hparams)


def _document(letter):
    """Return thirty sentences of one letter, beside "the" and "was"."""
    sentences = []
    for number in range(30):
        noun = letter * (number % 4 + 2)
        sentences.append(f"{letter * 3} the {noun} was {letter}.".capitalize())
    return " ".join(sentences)


def tickets(count):
    """Return the first `count` examples in epoch 0, int64 [count, 2]."""
    return np.stack([np.zeros(count, np.int64), np.arange(count)], axis=1)


def make_forward(**hparams):
    """Return a tiny model from random weights, changed so that every part of its heads matters."""
    model = build_encoder(tiny(**hparams), named_tokenizer(TOKENIZER))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return Forward(model.eval(), "fp32", torch.device("cpu"), read_logits=read_pretraining)
