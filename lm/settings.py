"""The keys of `data:` where documents are read, for a causal language model."""

from dataclasses import dataclass
from typing import Any

from detalbert.errors import UserError
from detalbert.settings.sections import Section, limited, parse_section


@dataclass(frozen=True)
class DocumentsConfig(Section):
    """Where text comes from: `documents`, made into token shards here, or `shards` made before."""

    documents: str | None = None  # see corpus/sources.py for what it may name
    tokenizer: str | None = None  # a folder or hub name
    # Or: pieces of a byte-level tokenizer that is learned from `documents`.
    vocab_size: int | None = limited(None, least=300, most=65_536)
    validation_documents: str | None = None  # held-out text; default: a fraction of the documents
    # Which documents are held out, a hash of their text decides.
    validation_fraction: float = limited(0.01, least=0, below=1)
    shards: str | None = None  # a folder or address of token shards
    shard_mib: float = limited(1024, above=0)  # of tokens in a shard, about
    shuffle_shards: int = limited(8, above=0)  # read at the same time, their windows mixed
    cache_dir: str = ".cache"
    cache_gib: float = limited(64, above=0)  # for shards fetched from afar

    def check(self) -> None:
        if (self.documents is None) == (self.shards is None):
            raise UserError("data.documents: set exactly one of 'documents' and 'shards'")
        if (self.tokenizer is None) == (self.vocab_size is None):
            raise UserError(
                "data.tokenizer: set either 'tokenizer' (a folder or hub name) or 'vocab_size' "
                "(pieces of one that is learned from the documents)"
            )
        if self.vocab_size is not None and self.documents is None:
            raise UserError(
                "data.vocab_size: shards have a tokenizer already; give its folder as "
                "data.tokenizer"
            )


def parse_documents_config(values: Any) -> DocumentsConfig:
    """`data:` of a language model's experiment. Raises UserError as `parse_section` does."""
    return parse_section(DocumentsConfig, "data", values)
