"""The keys of `data:` where text is read, not questions."""

from dataclasses import dataclass
from typing import Any

from detalbert.errors import UserError
from detalbert.settings.sections import parse_section


@dataclass(frozen=True)
class TextConfig:
    """Where text comes from: `text`, made into token shards here, or `shards` made before."""

    text: str | None = None  # see sources.py for what it may name
    tokenizer: str | None = None  # a folder or hub name
    vocab_size: int | None = None  # or: pieces of a tokenizer that is learned from `text`
    validation: str | None = None  # held-out text; default: a fraction of the documents
    validation_fraction: float = 0.01  # which ones, a hash of their text decides
    shards: str | None = None  # a folder or address that `python -m pretrain` wrote
    shard_mib: float = 1024  # of tokens in a shard, about
    shuffle_shards: int = 8  # read at the same time, their windows mixed
    cache_dir: str = ".cache"
    cache_gib: float = 64  # for shards fetched from afar
    max_validation_examples: int | None = 10_000


def parse_text_config(values: Any) -> TextConfig:
    """`data:` of a pretraining experiment. Raises UserError as `parse_data_config` does."""
    data = parse_section(TextConfig, "data", values)
    if (data.text is None) == (data.shards is None):
        raise UserError("data.text: set exactly one of 'text' and 'shards'")
    if (data.tokenizer is None) == (data.vocab_size is None):
        raise UserError(
            "data.tokenizer: set either 'tokenizer' (a folder or hub name) or 'vocab_size' (pieces "
            "of one that is learned from the text)"
        )
    if data.vocab_size is not None and data.text is None:
        raise UserError(
            "data.vocab_size: shards have a tokenizer already; give its folder as data.tokenizer"
        )
    if data.vocab_size is not None and not 300 <= data.vocab_size <= 65_536:
        raise UserError(f"data.vocab_size: {data.vocab_size} is not between 300 and 65536")
    if not 0 <= data.validation_fraction < 1:
        raise UserError(
            f"data.validation_fraction: {data.validation_fraction} is not from 0 to below 1"
        )
    if data.shuffle_shards < 1:
        raise UserError(f"data.shuffle_shards: {data.shuffle_shards} must be greater than 0")
    return data
