"""Made-up text, its shards, examples of them, and a model for these."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.reader import Corpus
from detalbert.corpus.writer import write_shards
from detalbert.engine.forward import Forward
from detalbert.settings.text import TextConfig, parse_text_config
from detalbert.squad import world
from detalbert.squad.tokenizer import named_tokenizer
from pretrain.examples import PretrainExamples
from pretrain.hparams import PretrainHParams, parse_pretrain_hparams
from pretrain.masking import Vocabulary, read_vocabulary
from pretrain.objectives import read_pretraining
from pretrain.trial import build_albert

TOKENIZER = "embedded/albert-tiny"
LENGTH = 96

# Pieces 0..4 are special, 5..14 start a word, 15..24 continue one.
NUMBERS = np.arange(25)
VOCABULARY = Vocabulary(NUMBERS < 15, NUMBERS > 4, NUMBERS[5:], mask=4, cls=2, sep=3)


def contexts(paragraphs: int) -> list[str]:
    document = world.generate("train", seed=3, paragraphs=paragraphs)
    return [p["context"] for article in document["data"] for p in article["paragraphs"]]


def text_config(text: Any, folder: Path, **more: Any) -> TextConfig:
    text = text if isinstance(text, list) else str(text)
    values = {"text": text, "tokenizer": TOKENIZER, "cache_dir": str(folder / "cache"), **more}
    return parse_text_config(values)


def write(text: Any, folder: Path, processes: int = 1, **more: Any) -> Path:
    config = text_config(text, folder, **more)
    kind = ExampleKind(LENGTH)
    return Path(write_shards(config, named_tokenizer(TOKENIZER), kind, processes=processes))


def sums(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file that readers read."""
    files = [*folder.glob("*.bin"), *folder.glob("*.npy"), folder / "index.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def tiny(**hparams: Any) -> PretrainHParams:
    return parse_pretrain_hparams({"size": "tiny", "max_seq_length": LENGTH, "seed": 42, **hparams})


def read_examples(address: Any, config: TextConfig, **hparams: Any) -> PretrainExamples:
    """The training examples of shards."""
    vocabulary = read_vocabulary(named_tokenizer(TOKENIZER))
    return PretrainExamples(Corpus(str(address), "train", config), vocabulary, tiny(**hparams))


def make_examples(folder: Path, text: str | None = None, **hparams: Any) -> PretrainExamples:
    """Examples of `text`; default: twenty documents of words that name them, one per line."""
    sentence = "{0}{0}{0} the {1} was {0}."
    lines = [
        " ".join(sentence.format(x, x * (i % 4 + 2)).capitalize() for i in range(30))
        for x in "abcdefghijklmnopqrst"
    ]
    (folder / "text.txt").write_text("\n".join(lines))
    where, more = (text or folder / "text.txt", folder), {"validation_fraction": 0.0}
    return read_examples(write(*where, **more), text_config(*where, **more), **hparams)


def tickets(count: int) -> np.ndarray:
    """The first `count` examples in epoch 0, int64 [count, 2]."""
    return np.stack([np.zeros(count, np.int64), np.arange(count)], axis=1)


def make_forward(**hparams: Any) -> Forward:
    """A tiny model from random weights, changed so that every part of its heads matters."""
    model = build_albert(tiny(**hparams), named_tokenizer(TOKENIZER))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return Forward(model.eval(), "fp32", torch.device("cpu"), read=read_pretraining)
