"""`data:` of a pretraining experiment: both splits, ready to be packed into rows.

The text is read, cut and tokenized once, into shards; examples are masked when they are needed.
"""

from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.mixture import draw_windows
from detalbert.corpus.read import Corpus
from detalbert.corpus.write import write_shards
from detalbert.errors import UserError
from detalbert.settings.values import Config
from detalbert.squad.encoding import named_tokenizer, tokenizer_sum
from detalbert.training.workload import DataSummary
from pretrain.corpus import load_tokenizer
from pretrain.encoders import check_pretraining, find_family
from pretrain.examples import PretrainExamples
from pretrain.hparams import PretrainHParams, parse_text_config
from pretrain.masking import read_vocabulary

# The key of each split's text.
TEXTS = {"train": "text", "validation": "validation"}


class PretrainText(NamedTuple):
    """Data of a pretraining trial."""

    tokenizer: PreTrainedTokenizerBase
    train: PretrainExamples
    validation: PretrainExamples
    held_out: list[np.ndarray]  # examples of `validation` that are used, of each source

    @classmethod
    def load(cls, config: Config, hparams: PretrainHParams) -> "PretrainText":
        """Load `data:`; write token shards if there are none yet, once per machine.

        Args:
            config: `data:` of the experiment.
            hparams: its `hyperparameters:`.

        Raises:
            UserError: if text, tokenizer or shards are invalid or do not match.
        """
        data = parse_text_config(config)
        hparams = hparams.of_family(find_family(hparams))
        tokenizer = load_tokenizer(data, hparams, load=named_tokenizer)
        check_pretraining(hparams, tokenizer)
        address = data.shards
        if address is None:
            kind = ExampleKind(tokenizer, hparams.max_seq_length, data.language)
            address = write_shards(data, kind)

        vocabulary = read_vocabulary(tokenizer)
        splits = {}
        for split in ("train", "validation"):
            corpus = Corpus(address, split=split, data=data)
            corpus.check_tokenizer(tokenizer)
            _check(corpus, hparams)
            splits[split] = PretrainExamples(corpus, vocabulary, hparams=hparams)

        # A validation takes some examples of each source.
        held_out = splits["validation"].corpus
        sources = np.repeat(held_out.sources, np.diff(held_out.bounds))  # of every example
        return cls(
            tokenizer=tokenizer,
            train=splits["train"],
            validation=splits["validation"],
            held_out=draw_windows(sources, data.max_validation_windows),
        )

    def summary(self) -> DataSummary:
        """Return what is logged of the data at the start, and its numbers of windows and tokens."""
        lines = {
            "train": self.train.corpus.describe(),
            "validation": f"{self.validation.corpus.describe()}, {self._used:,} examples used",
        }
        order = self._describe_order()
        if order:
            lines["order"] = order
        return DataSummary(
            lines=lines,
            windows=len(self.train.lengths),
            tokens=int(self.train.lengths.sum()),
            validation_windows=self._used,
        )

    def fingerprints(self) -> Config:
        """Return hashes and values that identify text and tokenizer, by config key."""
        return {
            "data.text": self.train.corpus.fingerprint(),
            "data.validation": self.validation.corpus.fingerprint(),
            "data.tokenizer": tokenizer_sum(self.tokenizer),
            "data.shuffle_shards": self.train.corpus.data.shuffle_shards,
            "data.max_validation_examples": self._used,
            # As it is trained: a run of before has it in its manifest.
            "hyperparameters.sentence_order": self.train.hparams.sentence_order,
            "data.weights": self.train.corpus.weights,
        }

    def _describe_order(self) -> str:
        """Return a line if fewer than half of the windows can train sentence order, else ""."""
        windows = len(self.train.lengths)
        pairs = self.train.pairs
        if not self.train.hparams.sentence_order or 2 * pairs >= windows:
            return ""
        return (
            f"windows of two sentences or more: {pairs:,} of {windows:,}; the others train "
            "masked tokens alone (sentences end at a mark and at a line end; if blank lines part "
            "documents, set data.article: blank_line)"
        )

    @property
    def _used(self) -> int:
        return sum(len(examples) for examples in self.held_out)


def _check(corpus: Corpus, hparams: PretrainHParams) -> None:
    """Raise UserError if a split has no examples, or windows of another length."""
    length = corpus.index["max_seq_length"]
    if length != hparams.max_seq_length:
        raise UserError(
            f"the shards of {corpus.address} hold windows of {length}",
            key="hyperparameters.max_seq_length",
            cure="set that",
        )
    if not len(corpus.table):
        sources = [source.source for source in corpus.data.training]
        place = ", ".join(sources) or corpus.address
        raise UserError(
            f"the {corpus.split} split of {place} has no text",
            key="data.shards" if corpus.data.shards else f"data.{TEXTS[corpus.split]}",
            cure="give more text, or raise data.validation_fraction; or set data.article, if it is "
            "one document",
        )
