"""`data:` of a language model's experiment: its tokenizer, and the windows of both splits."""

from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from detalbert.corpus.documents import DocumentKind
from detalbert.corpus.index import fetch_tokenizer
from detalbert.corpus.learn_tokenizer import own_tokenizer
from detalbert.corpus.reader import Shards
from detalbert.corpus.writer import write_shards
from detalbert.settings.text import DocumentsConfig, parse_documents_config
from detalbert.squad.tokenizer import named_tokenizer, tokenizer_sum
from detalbert.training.workload import DataSummary
from lm.windows import LmWindows


class LmText(NamedTuple):
    """Data of a language model."""

    tokenizer: PreTrainedTokenizerBase
    train: LmWindows
    validation: LmWindows
    shuffle_shards: int  # read at the same time, their windows mixed

    @classmethod
    def load(cls, values: dict[str, Any], hparams: Any) -> "LmText":
        """Load `data:` of an experiment for its `hyperparameters:`; see `load_text`."""
        data = parse_documents_config(values)
        return load_text(data, hparams.max_seq_length, hparams.across_documents)

    def summary(self) -> DataSummary:
        splits = {"train": self.train, "validation": self.validation}
        size = "{}, {:,} windows of {:,}".format
        lines = {k: size(s.shards.describe(), len(s), s.length) for k, s in splits.items()}
        lines |= self.train.shards.describe_sources(self.train.counts)
        return DataSummary(lines, len(self.train), len(self.train) * self.train.length)

    def fingerprints(self) -> dict[str, Any]:
        """Return hashes and values that identify text and tokenizer, by config key."""
        return {
            "data.documents": self.train.shards.fingerprint(),
            "data.validation_documents": self.validation.shards.fingerprint(),
            "data.tokenizer": tokenizer_sum(self.tokenizer),
            "data.shuffle_shards": self.shuffle_shards,
            **self.train.shards.weights_by_name(),
        }


def load_text(data: DocumentsConfig, length: int, across_documents: bool = False) -> LmText:
    """Load windows of `length` + 1 tokens; write token shards if there are none yet, once per
    machine. Raises UserError if text, tokenizer or shards are invalid or do not match.
    """
    tokenizer = load_tokenizer(data)
    address = data.shards or write_documents(data, tokenizer)
    splits = []
    for split in ("train", "validation"):
        shards = Shards(address, split, data)
        shards.check_tokenizer(tokenizer)
        splits.append(LmWindows(shards, length, across_documents))
    return LmText(tokenizer, splits[0], splits[1], data.shuffle_shards)


def load_tokenizer(data: DocumentsConfig) -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of `data.tokenizer`, or one trained on the documents. Raises
    UserError if it has no end-of-text token.
    """
    name = data.tokenizer or (data.shards and str(fetch_tokenizer(data)))
    if name is None:
        held_out = 0.0 if data.held_out else data.validation_fraction
        return named_tokenizer(str(own_tokenizer(data, held_out)))
    return named_tokenizer(name, "eos_token", kind="a causal language model")


def write_documents(
    data: DocumentsConfig,
    tokenizer: PreTrainedTokenizerBase,
    output: str | None = None,
    processes: int | None = None,
) -> str:
    """Write `data.documents` as shards for any length (`write_shards`); return where."""
    return write_shards(data, tokenizer, DocumentKind(tokenizer.eos_token_id), output, processes)


def write_corpus(
    data: DocumentsConfig, hparams: Any, output: str | None, processes: int | None
) -> str:
    """Write the shards of an experiment's `data:`; return where they are."""
    return write_documents(data, load_tokenizer(data), output, processes)
