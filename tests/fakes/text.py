"""Made-up text, its shards, and examples of them."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from detalbert.corpus.reader import Corpus
from detalbert.corpus.writer import write_corpus
from detalbert.settings.text import TextConfig, parse_text_config
from detalbert.squad import world
from detalbert.squad.tokenizer import named_tokenizer
from pretrain.examples import Examples
from pretrain.hparams import parse_pretrain_hparams
from pretrain.masking import Vocabulary, read_vocabulary

TOKENIZER = "embedded/albert-tiny"
LENGTH = 96

# Pieces 0..4 are special, 5..14 start a word, 15..24 continue one.
VOCABULARY = Vocabulary(
    starts_word=np.array([True] * 15 + [False] * 10),
    lettered=np.array([False] * 5 + [True] * 20),
    ordinary=np.arange(5, 25),
    mask=4,
    cls=2,
    sep=3,
)


def contexts(paragraphs: int) -> list[str]:
    document = world.generate("train", seed=3, paragraphs=paragraphs)
    return [p["context"] for article in document["data"] for p in article["paragraphs"]]


def text_config(text: Any, folder: Path, **more: Any) -> TextConfig:
    values = {"text": str(text), "tokenizer": TOKENIZER, "cache_dir": str(folder / "cache"), **more}
    return parse_text_config(values)


def write(text: Any, folder: Path, processes: int = 1, **more: Any) -> Path:
    config = text_config(text, folder, **more)
    return write_corpus(config, named_tokenizer(TOKENIZER), LENGTH, processes=processes)


def sums(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file that readers read."""
    files = [*folder.glob("*.bin"), *folder.glob("*.npy"), folder / "index.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def read_examples(address: Any, config: TextConfig, **hparams: Any) -> Examples:
    """The training examples of shards."""
    values = parse_pretrain_hparams({"size": "tiny", "max_seq_length": LENGTH, **hparams})
    vocabulary = read_vocabulary(named_tokenizer(TOKENIZER))
    return Examples(Corpus(str(address), "train", config), vocabulary, values)


def make_examples(folder: Path, text: str | None = None, **hparams: Any) -> Examples:
    """Examples of `text`; default: twenty documents of words that name them, one per line."""
    sentence = "{0}{0}{0} the {1} was {0}."
    (folder / "text.txt").write_text("\n".join(
        " ".join(sentence.format(x, x * (i % 4 + 2)).capitalize() for i in range(30))
        for x in "abcdefghijklmnopqrst"
    ))  # fmt: skip
    where = text or folder / "text.txt", folder
    config = text_config(*where, validation_fraction=0.0)
    return read_examples(write(*where, validation_fraction=0.0), config, **hparams)


def tickets(count: int) -> np.ndarray:
    """The first `count` examples in epoch 0, int64 [count, 2]."""
    return np.stack([np.zeros(count, np.int64), np.arange(count)], axis=1)
