"""`data:` of a language model's experiment: its tokenizer, and the windows of both splits."""

from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from detalbert.corpus.documents import document_kind
from detalbert.corpus.reader import Shards
from detalbert.corpus.writer import write_shards
from detalbert.settings.text import parse_documents_config
from detalbert.squad.encoding import tokenizer_sum
from detalbert.squad.tokenizer import named_tokenizer
from detalbert.training.workload import DataSummary
from lm.corpus import load_tokenizer
from lm.windows import LmWindows


class LmText(NamedTuple):
    """Data of a language model."""

    tokenizer: PreTrainedTokenizerBase
    train: LmWindows
    validation: LmWindows

    @classmethod
    def load(cls, values: dict[str, Any], hparams: Any) -> "LmText":
        """Load `data:` of an experiment for its `hyperparameters:`; write token shards if there are
        none yet, once per machine. Raises UserError if text, tokenizer or shards are invalid or do
        not match.
        """
        data = parse_documents_config(values)
        tokenizer = load_tokenizer(data, named_tokenizer)
        kind = document_kind(tokenizer)
        address = data.shards or write_shards(data, tokenizer, kind)
        splits = []
        for split in ("train", "validation"):
            shards = Shards(address, split, data)
            shards.check_tokenizer(tokenizer)
            splits.append(LmWindows(shards, hparams.max_seq_length, hparams.across_documents))
        return cls(tokenizer, *splits)

    def summary(self) -> DataSummary:
        splits = {"train": self.train, "validation": self.validation}
        size = "{}, {:,} windows of {:,}".format
        lines = {k: size(s.shards.describe(), len(s), s.length) for k, s in splits.items()}
        lines |= self.train.shards.describe_sources(self.train.counts)
        return DataSummary(
            lines,
            windows=len(self.train),
            tokens=len(self.train) * self.train.length,
            validation_windows=len(self.validation),
        )

    def fingerprints(self) -> dict[str, Any]:
        """Return hashes and values that identify text and tokenizer, by config key."""
        return {
            "data.documents": self.train.shards.fingerprint(),
            "data.validation_documents": self.validation.shards.fingerprint(),
            "data.tokenizer": tokenizer_sum(self.tokenizer),
            "data.shuffle_shards": self.train.shards.data.shuffle_shards,
            **self.train.shards.weights_by_name(),
        }
