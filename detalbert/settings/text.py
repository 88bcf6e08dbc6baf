"""Keys of `data:` for text that becomes token shards: for pretraining, and language models."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from detalbert.errors import UserError
from detalbert.settings.sections import Section, limited, parse_section


@dataclass(frozen=True)
class CorpusConfig(Section):
    """A text corpus: text to tokenize into shards, or ready-made `shards`. `source` and
    `held_out_source` are the names of the keys that hold the text and the validation text.
    """

    source: ClassVar[str]
    held_out_source: ClassVar[str]

    tokenizer: str | None = None  # a folder or hub name
    # Or: pieces of a tokenizer that is learned from the text.
    vocab_size: int | None = limited(None, least=300, most=65_536)
    # Which documents are held out where no other text is named, a hash of their text decides.
    validation_fraction: float = limited(0.01, least=0, below=1)
    shards: str | None = None  # a folder or address of token shards
    shard_mib: float = limited(1024, above=0)  # of tokens in a shard, about
    shuffle_shards: int = limited(8, above=0)  # read at the same time, their windows mixed
    cache_dir: str = ".cache"
    cache_gib: float = limited(64, above=0)  # for shards fetched from afar

    @property
    def validation_text(self) -> str | None:
        """Address of the validation text; None if a fraction of the documents is held out."""
        text, held_out = getattr(self, self.source), getattr(self, self.held_out_source)
        return text if held_out is None and text == "generated" else held_out

    def check(self) -> None:
        text = getattr(self, self.source)
        if (text is None) == (self.shards is None):
            raise UserError(f"data.{self.source}: set exactly one of {self.source!r} and 'shards'")
        if (self.tokenizer is None) == (self.vocab_size is None):
            raise UserError(
                "data.tokenizer: set either 'tokenizer' (a folder or hub name) or 'vocab_size' "
                f"(pieces of one that is learned from the {self.source})"
            )
        if self.vocab_size is not None and text is None:
            raise UserError(
                "data.vocab_size: shards have a tokenizer already; give its folder as "
                "data.tokenizer"
            )


@dataclass(frozen=True)
class TextConfig(CorpusConfig):
    """Text for pretraining ALBERT; `shards` are those written by `python -m pretrain`."""

    source = "text"
    held_out_source = "validation"

    text: str | None = None  # see corpus/sources.py for what it may name
    validation: str | None = None  # held-out text; default: a fraction of the documents
    max_validation_windows: int | None = limited(10_000, above=0)


parse_text_config = partial(parse_section, TextConfig, "data")  # raises as `parse_section` does
