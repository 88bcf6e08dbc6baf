"""The keys of `data:` where text is read, not questions."""

from dataclasses import dataclass
from typing import Any

from detalbert.errors import UserError
from detalbert.settings.sections import Section, limited, parse_section


@dataclass(frozen=True)
class TextConfig(Section):
    """Where text comes from: `text`, made into token shards here, or `shards` made before."""

    text: str | None = None  # see sources.py for what it may name
    tokenizer: str | None = None  # a folder or hub name
    # Or: pieces of a tokenizer that is learned from `text`.
    vocab_size: int | None = limited(None, least=300, most=65_536)
    validation: str | None = None  # held-out text; default: a fraction of the documents
    # Which documents are held out, a hash of their text decides.
    validation_fraction: float = limited(0.01, least=0, below=1)
    shards: str | None = None  # a folder or address that `python -m pretrain` wrote
    shard_mib: float = limited(1024, above=0)  # of tokens in a shard, about
    shuffle_shards: int = limited(8, above=0)  # read at the same time, their windows mixed
    cache_dir: str = ".cache"
    cache_gib: float = limited(64, above=0)  # for shards fetched from afar
    max_validation_examples: int | None = limited(10_000, above=0)

    def check(self) -> None:
        if (self.text is None) == (self.shards is None):
            raise UserError("data.text: set exactly one of 'text' and 'shards'")
        if (self.tokenizer is None) == (self.vocab_size is None):
            raise UserError(
                "data.tokenizer: set either 'tokenizer' (a folder or hub name) or 'vocab_size' "
                "(pieces of one that is learned from the text)"
            )
        if self.vocab_size is not None and self.text is None:
            raise UserError(
                "data.vocab_size: shards have a tokenizer already; give its folder as "
                "data.tokenizer"
            )


def parse_text_config(values: Any) -> TextConfig:
    """`data:` of a pretraining experiment. Raises UserError as `parse_section` does."""
    return parse_section(TextConfig, "data", values)
