"""`data:` of a pretraining experiment: both splits, ready to be packed into rows."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.mixture import draw_windows
from detalbert.corpus.reader import Corpus
from detalbert.corpus.writer import write_shards
from detalbert.errors import UserError
from detalbert.settings.text import parse_text_config
from detalbert.squad.encoding import tokenizer_sum
from detalbert.squad.tokenizer import named_tokenizer
from detalbert.training.workload import DataSummary
from pretrain.corpus import load_tokenizer
from pretrain.examples import PretrainExamples
from pretrain.hparams import PretrainHParams
from pretrain.masking import read_vocabulary


class PretrainText(NamedTuple):
    """Data of a pretraining trial."""

    tokenizer: PreTrainedTokenizerBase
    train: PretrainExamples
    validation: PretrainExamples
    held_out: list[np.ndarray]  # examples of `validation` that are used, of each source

    @classmethod
    def load(cls, config: dict[str, Any], hparams: PretrainHParams) -> "PretrainText":
        """Load `data:`; write token shards if there are none yet, once per machine. Raises
        UserError if text, tokenizer or shards are invalid or do not match.
        """
        data = parse_text_config(config)
        tokenizer = load_tokenizer(data, hparams, named_tokenizer)
        kind = ExampleKind(hparams.max_seq_length)
        address = data.shards or write_shards(data, tokenizer, kind)
        vocabulary = read_vocabulary(tokenizer)
        splits = []
        for split in ("train", "validation"):
            corpus = Corpus(address, split, data)
            corpus.check_tokenizer(tokenizer)
            _check(corpus, hparams)
            splits.append(PretrainExamples(corpus, vocabulary, hparams))
        corpus = splits[1].corpus
        owners = np.repeat(corpus.sources, np.diff(corpus.bounds))
        held_out = draw_windows(owners, data.max_validation_windows)
        return cls(tokenizer, splits[0], splits[1], held_out)

    def summary(self) -> DataSummary:
        lines = {
            "train": self.train.corpus.describe(),
            "validation": f"{self.validation.corpus.describe()}, {self._used:,} examples used",
            **self.train.corpus.describe_sources(np.diff(self.train.corpus.bounds)),
        }
        return DataSummary(
            lines,
            windows=len(self.train.lengths),
            tokens=int(self.train.lengths.sum()),
            validation_windows=self._used,
        )

    def fingerprints(self) -> dict[str, Any]:
        """Return hashes and values that identify text and tokenizer, by config key."""
        return {
            "data.text": self.train.corpus.fingerprint(),
            "data.validation": self.validation.corpus.fingerprint(),
            "data.tokenizer": tokenizer_sum(self.tokenizer),
            "data.shuffle_shards": self.train.corpus.data.shuffle_shards,
            "data.max_validation_examples": self._used,  # its name in older checkpoints
            **self.train.corpus.weights_by_name(),
        }

    @property
    def _used(self) -> int:
        return sum(map(len, self.held_out))


def _check(corpus: Corpus, hparams: PretrainHParams) -> None:
    index, key = corpus.index, f"data.{'shards' if corpus.data.shards else 'text'}"
    if index["max_seq_length"] != hparams.max_seq_length:
        said = f"the shards of {corpus.address} hold windows of {index['max_seq_length']}"
        raise UserError(f"hyperparameters.max_seq_length: {said}; set that")
    place = ", ".join(source.source for source in corpus.data.training) or corpus.address
    if not len(corpus) and corpus.split == "train":
        raise UserError(f"{key}: no text in {place}; give another")
    if not len(corpus):
        said = f"no document of {Path(place).name} is held out"
        raise UserError(f"data.validation: {said}; set it, or raise data.validation_fraction")
