"""`data:` of a language model's experiment: its tokenizer, and the windows of both splits."""

import copy
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from detalbert.corpus.chunks import Plan
from detalbert.corpus.documents import Documents
from detalbert.corpus.learn_tokenizer import own_byte_tokenizer
from detalbert.corpus.reader import Shards
from detalbert.corpus.shards import FORMAT
from detalbert.corpus.sources import Text, open_documents
from detalbert.corpus.writer import shards_folder, text_bytes, write_shards
from detalbert.errors import UserError
from detalbert.squad.tokenizer import named_tokenizer, tokenizer_sum
from detalbert.training.workload import DataSummary
from lm.hparams import DocumentsConfig, parse_documents_config
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
        return DataSummary(lines, len(self.train), len(self.train) * self.train.length)

    def fingerprints(self) -> dict[str, Any]:
        """Return hashes and values that identify text and tokenizer, by config key."""
        return {
            "data.documents": self.train.shards.fingerprint(),
            "data.validation_documents": self.validation.shards.fingerprint(),
            "data.tokenizer": tokenizer_sum(self.tokenizer),
            "data.shuffle_shards": self.shuffle_shards,
        }


def load_text(data: DocumentsConfig, length: int, across_documents: bool = False) -> LmText:
    """Load windows of `length` + 1 tokens; write token shards if there are none yet, once per
    machine. Raises UserError if text, tokenizer or shards are invalid or do not match.
    """
    tokenizer = load_tokenizer(data)
    address = data.shards or str(write_documents(data, tokenizer))
    splits = []
    for split in ("train", "validation"):
        shards = Shards(address, split, data)
        if shards.index["tokenizer"] != tokenizer_sum(tokenizer):
            raise UserError(
                f"data.tokenizer: {data.tokenizer!r} is not the one that the shards of {address} "
                "were written with; give that one, or write them again"
            )
        splits.append(LmWindows(shards, length, across_documents))
    return LmText(tokenizer, splits[0], splits[1], data.shuffle_shards)


def load_tokenizer(data: DocumentsConfig) -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of `data.tokenizer`, or one trained on the documents. Raises
    UserError if it has no end-of-text token.
    """
    if data.tokenizer is None:
        assert data.vocab_size is not None and data.documents is not None
        text = open_documents(data.documents, "data.documents", "train")
        held_out = 0.0 if _has_validation(data) else data.validation_fraction
        folder = own_byte_tokenizer(text, data.vocab_size, held_out, Path(data.cache_dir))
        return named_tokenizer(str(folder))
    return named_tokenizer(data.tokenizer, "eos_token", kind="a causal language model")


def write_documents(
    data: DocumentsConfig,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path | None = None,
    processes: int | None = None,
) -> Path:
    """Write `data.documents` as shards for any length (`write_shards`); return the folder."""
    texts = _open_texts(data)
    facts = {
        "format": FORMAT,
        "kind": Shards.kind,
        "tokenizer": tokenizer_sum(tokenizer),
        "end_of_text": tokenizer.eos_token_id,
        "part_bytes": text_bytes(data.shard_mib),
        "held_out": 0.0 if "validation" in texts else data.validation_fraction,
        "text": {key: text.fingerprint for key, text in texts.items()},
    }
    folder = folder or shards_folder(Path(data.cache_dir), facts)
    plan = Plan(folder, _exact(tokenizer), Documents(tokenizer.eos_token_id))
    write_shards(plan, facts, texts, processes)
    return folder


def _exact(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a copy that truncates nothing, and reads "<|endoftext|>" in documents as text."""
    exact: Any = copy.deepcopy(tokenizer)
    exact.backend_tokenizer.no_truncation()
    exact.backend_tokenizer.no_padding()
    exact.backend_tokenizer.encode_special_tokens = True
    return exact


def _has_validation(data: DocumentsConfig) -> bool:
    return data.validation_documents is not None or data.documents == "generated"


def _open_texts(data: DocumentsConfig) -> dict[str, Text]:
    """Open the texts by purpose. Without "validation", some documents of "text" are held out."""
    assert data.documents is not None
    texts = {"text": open_documents(data.documents, "data.documents", "train")}
    if _has_validation(data):
        name = data.validation_documents or data.documents
        texts["validation"] = open_documents(name, "data.validation_documents", "validation")
    return texts
